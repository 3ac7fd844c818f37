"""Microannealing: short cooldowns from Kestrel's end, each with another mixture, to compare sources (issues 784, 820, 845 to 847)."""

from flows.recipes.benchmarks import WITH_MMLU
from flows.recipes.marin.mixtures import DCLM, JELLYFISH_HIGH_QUALITY, percent
from flows.recipes.marin.settings import ORDER, evaluated, gates, linear
from flows.recipes.phase import Change, Discrepancy, Phase, continued
from trainer.config import DataOrder, MixtureShares, ModelConfig, always

START_STEP = 660_000
SEQ_LEN = 4096
TOKENS = 50e9
SMALL_COMPONENT, SMALL_TOKENS = "dolma_wiki", 3.65e9
SMALL_EPOCHS, CANDIDATE_PART = 4, 0.30
WEB = percent({"dclm_baseline": 1.0}, 70)

ROPE = Discrepancy(
    field="rope",
    code="Kestrel's checkpoint was trained with the old RoPE (theta 10,000) and is loaded into a model with llama3's",
    retrospective="not stated",
    source="Marin experiment code, anneal_config; issues 784 and 820",
)
LEARNING_RATE = Discrepancy(
    field="learning_rate",
    code="1e-3 → 0, by a peak that is raised so that a schedule from step 0 passes through 1e-3 at the restart",
    retrospective="a short cooldown; the rate is not stated",
    source="Marin experiment code, AnnealConfig",
)
STEPS = Discrepancy(
    field="stop_step",
    code="50 B tokens ÷ (1,024 × 4,096) = 11,920.9 steps, no whole number; here 11,921",
    retrospective="not stated",
    source="Marin experiment code, AnnealConfig",
)


def microannealing(kestrel: Phase, *, model: ModelConfig) -> tuple[Phase, ...]:
    """The control, the candidate alone and with FLAN, all high-quality sources together, and a small source with a budget of its own.

    The record ran the candidate's mixtures for each of its sources; here FineMath 3+ stands in their place.
    """
    candidate, flan, every = ({"finemath_3_plus": 1.0}, {"dolma_flan": 1.0}, JELLYFISH_HIGH_QUALITY)
    mixtures: dict[str, MixtureShares] = {
        "microannealing-control": percent(DCLM),
        "microannealing-70-30": WEB | percent(candidate, 30),
        "microannealing-flan": WEB | percent(flan, 15) | percent(candidate, 15),
        "microannealing-all-hq": WEB | percent(flan, 15) | percent(every, 15),
        "microannealing-all-hq-flan-5": WEB | percent(flan, 5) | percent(every, 25),
    }
    arms = tuple(_arm(kestrel, model, name, mixture, batch=1024, tokens=TOKENS) for name, mixture in mixtures.items())
    budget = SMALL_EPOCHS * SMALL_TOKENS / CANDIDATE_PART
    small = WEB | percent({SMALL_COMPONENT: 1.0}, 100 * CANDIDATE_PART)
    return *arms, _arm(kestrel, model, "microannealing-small", small, batch=256, tokens=budget)


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
        learning_rate=(linear(START_STEP, stop_step, 1e-3, 0.0),),
        batch=always(batch),
        mixture=always(mixture),
        order=DataOrder.model_validate(ORDER.model_dump() | {"first_step": START_STEP, "cut_blocks": True}),
        slice=always("2x v4-128"),
        evaluation=evaluated(loss_every_steps=1_000, benchmarks=WITH_MMLU),
        gates=gates(max_increase_bits_per_byte=0.3, max_epochs=SMALL_EPOCHS + 0.1),
        discrepancies=(ROPE, LEARNING_RATE, *(() if batch != 1024 else (STEPS,))),
    )
