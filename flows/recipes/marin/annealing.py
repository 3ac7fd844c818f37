"""Microannealing: short cooldowns from Kestrel's end, each with another mixture, to compare sources (issues 784, 820, 845 to 847)."""

from phasewise.flows.recipes.benchmarks import WITH_MMLU
from phasewise.flows.recipes.marin.mixtures import DCLM, JELLYFISH_HIGH_QUALITY, Weights, percent
from phasewise.flows.recipes.marin.notes import R8, unstated
from phasewise.flows.recipes.marin.settings import ORDER, evaluated, gates, linear
from phasewise.flows.recipes.phase import Change, Phase, continued
from phasewise.trainer.config import MixtureShares, ModelConfig, always

START_STEP = 660_000
SEQ_LEN = 4096
TOKENS = 50e9
SMALL_COMPONENT, SMALL_TOKENS = "dolma_wiki", 3.65e9
SMALL_EPOCHS, CANDIDATE_PART = 4, 0.30
RATE = 1e-3 / 0.99
"""The helper's raised peak leaves the library's warm-up over 1 % of all steps out of account."""
WEB = percent({"dclm_baseline": 1.0}, 70)

PER_SOURCE = (*JELLYFISH_HIGH_QUALITY, "arxiv_markdownified", "stackexchange_custom")
"""The sources that the record compared: those that went into Jellyfish's cooldown, and two that Marin had turned into Markdown."""
CANDIDATE = "finemath_3_plus"
"""The source of the arms whose names have none."""

ROPE = unstated(
    "rope",
    "Kestrel's checkpoint was trained with the old RoPE (theta 10,000) and is loaded into a model with llama3's. Every "
    "arm has the handicap",
    source="Marin experiment code, anneal_config; issues 784 and 820",
    place="Marin experiment code, anneal_config",
)
LEARNING_RATE = unstated(
    "learning_rate",
    "a decay to 0 from a peak that is raised so that a schedule from step 0 passes through 1e-3 at the restart. The peak is computed "
    "without a warm-up, and Levanter warms up over 1 % of the steps where nothing is set: at the restart the rate is 1e-3 / 0.99",
    source="Marin experiment code, AnnealConfig and default_anneal; Levanter",
    place="experiments/defaults.py, default_anneal; Levanter src/levanter/optim/config.py, OptimizerConfig.warmup",
)
STEPS = unstated(
    "stop_step",
    "50 B tokens ÷ (1,024 × 4,096) = 11,920.9 steps, no whole number; here 11,921",
    source="Marin experiment code, AnnealConfig",
    place="Marin experiment code, AnnealConfig",
)
FLAN_LOST = unstated(
    "outcome",
    "of all mixtures with FLAN only this one, 70 / 30, was worse than the control: its share and its source are the retrospective's, "
    "the rest is as in the other arms",
    source=f"{R8}, Interlude: Micro-Annealing",
    place=f"{R8}, Interlude: Micro-Annealing; issues 784 and 820",
)


def microannealing(kestrel: Phase, *, model: ModelConfig) -> tuple[Phase, ...]:
    """The control, the candidate alone and with FLAN, all high-quality sources together, and a small source with a budget of its own.

    The default mixture, with FLAN, is there for each source that the record compared; FineMath 3+ is the candidate of the others.
    """
    candidate: Weights = {CANDIDATE: 1.0}
    flan: Weights = {"dolma_flan": 1.0}
    every = JELLYFISH_HIGH_QUALITY
    mixtures: dict[str, MixtureShares] = {
        "microannealing-control": percent(DCLM),
        "microannealing-70-30": WEB | percent(candidate, 30),
        "microannealing-flan-70-30": WEB | percent(flan, 30),
        "microannealing-flan": WEB | percent(flan, 15) | percent(candidate, 15),
        **{_name_of(source): WEB | percent(flan, 15) | percent({source: 1.0}, 15) for source in PER_SOURCE if source != CANDIDATE},
        "microannealing-all-hq": WEB | percent(flan, 15) | percent(every, 15),
        "microannealing-all-hq-flan-5": WEB | percent(flan, 5) | percent(every, 25),
    }
    arms = tuple(_arm(kestrel, model, name, mixture, batch=1024, tokens=TOKENS) for name, mixture in mixtures.items())
    budget = SMALL_EPOCHS * SMALL_TOKENS / CANDIDATE_PART
    small = WEB | percent({SMALL_COMPONENT: 1.0}, 100 * CANDIDATE_PART)
    return *arms, _arm(kestrel, model, "microannealing-small", small, batch=256, tokens=budget)


def _name_of(source: str) -> str:
    return f"microannealing-flan-{source.replace('_', '-')}"


def _arm(kestrel: Phase, model: ModelConfig, name: str, mixture: MixtureShares, *, batch: int, tokens: float) -> Phase:
    stop_step = START_STEP + round(tokens / (batch * SEQ_LEN))
    declares: list[Change] = ["rope", "learning_rate", "schedule", "order", "coverage", "slice"]
    if batch != kestrel.batch.at(START_STEP):
        declares.append("batch")
    if mixture != kestrel.mixture.at(START_STEP):
        declares.append("mixture")
    return continued(
        kestrel,
        name=name,
        stop_step=stop_step,
        declares=declares,
        branch=True,
        model=model,
        learning_rate=(linear(START_STEP, stop_step, RATE, 0.0),),
        batch=always(batch),
        mixture=always(mixture),
        order=ORDER.but(first_step=START_STEP, cut_blocks=True),
        slice=always("2x v4-128"),
        checkpoints=kestrel.checkpoints.but(every_steps=10_000),
        evaluation=evaluated(loss_every_steps=1_000, benchmarks=WITH_MMLU),
        gates=gates(max_increase_bits_per_byte=0.3, max_epochs=SMALL_EPOCHS + 0.1),
        notes=(ROPE, LEARNING_RATE, *((STEPS,) if batch == 1024 else ()), *((FLAN_LOST,) if name.endswith("flan-70-30") else ())),
    )
