"""Branches of Marin 8B: microannealing, desserts, Raccoon and Spoonbill, fine-tuning, and a context extension of this project.

`marin_8b.yaml` has the notes, published results and sources of each branch.
"""

from typing import Any

from phasewise.flows.recipes.benchmarks import WITH_MMLU
from phasewise.flows.recipes.marin.mixtures import (
    ALL_MATH,
    DCLM,
    DOLMINO_MATH,
    FLAN,
    JELLYFISH_HIGH_QUALITY,
    JELLYFISH_WEB,
    Weights,
    percent,
)
from phasewise.flows.recipes.marin.settings import ADAMW, LLAMA3_ROPE, ORDER, evaluated, gates
from phasewise.flows.recipes.phase import Change, Phase, continued
from phasewise.flows.recipes.words import constant, linear, stability
from phasewise.trainer.config import CheckpointPolicy, Instrumentation, MixtureShares, ModelConfig, always
from phasewise.validations.limits import PackingLimits

NO_DECAY = ADAMW.but(weight_decay=0.0)

# Microannealing (issues 784, 820, 845 to 847). The helper raises the peak without its warm-up over 1 % of the steps.
ANNEALING_START, ANNEALING_TOKENS, ANNEALING_RATE = 660_000, 50e9, 1e-3 / 0.99
SMALL_COMPONENT, SMALL_TOKENS, SMALL_EPOCHS, SMALL_PART = "dolma_wiki", 3.65e9, 4, 0.30
CANDIDATE = "finemath_3_plus"
PER_SOURCE = (*JELLYFISH_HIGH_QUALITY, "arxiv_markdownified", "stackexchange_custom")
"""Sources that Marin compared: the sources of Jellyfish's cooldown, and two that Marin converted to Markdown."""

# Desserts, Raccoon and Spoonbill start at Jellyfish's end.
START, MIDDLE, END = 820_000, 830_000, 840_000
RESTART = 824_524  # the focused runs start from Spoonbill at this step, where its norms began to grow
WEB = percent(JELLYFISH_WEB, 70)
TAKE_2_MIXTURE = WEB | percent(JELLYFISH_HIGH_QUALITY | ALL_MATH, 25) | percent(FLAN, 5)
DESSERT_V1_MIXTURE = WEB | percent(JELLYFISH_HIGH_QUALITY, 10) | percent(FLAN | DOLMINO_MATH, 20)
DESSERT_V3_MIXTURE = WEB | percent(JELLYFISH_HIGH_QUALITY, 20) | percent(FLAN | ALL_MATH, 10)
SPOONBILL_MIXTURE = (
    percent(JELLYFISH_WEB, 0.97 * 70)
    | percent(JELLYFISH_HIGH_QUALITY, 0.97 * 30)
    | percent({"flan": 1.0}, 2.9)
    | percent({"tulu_3_sft_mixture": 1.0}, 0.1)
)
COOLDOWN_GATES = gates(max_increase_bits_per_byte=0.02, max_epochs=2)

# Percent, by the number of documents (exp1237).
RELEASE_WEIGHTS = {
    "natural_reasoning": 23.4,
    "smoltalk": 21.3,
    "tulu_3_sft_mixture": 19.2,
    "verifiable_math_problems": 15.9,
    "dolphin_r1_reasoning": 11.9,
    "dolphin_r1_nonreasoning": 4.4,
    "openthoughts_114k_math": 1.8,
    "acecode_89k": 1.8,
    "bespoke_stratos_17k": 0.34,
}


def microannealing(kestrel: Phase, *, model: ModelConfig) -> tuple[Phase, ...]:
    """Short cooldowns from Kestrel's end with different mixtures: control, candidate, FLAN, all high-quality sources, and a small source.

    The arms without a source in their names use FineMath 3+. The default mixture with FLAN has an arm for each compared source.
    """
    web = percent({"dclm_baseline": 1.0}, 70)
    candidate: Weights = {CANDIDATE: 1.0}
    flan: Weights = {"dolma_flan": 1.0}
    mixtures: dict[str, MixtureShares] = {
        "microannealing-control": percent(DCLM),
        "microannealing-70-30": web | percent(candidate, 30),
        "microannealing-flan-70-30": web | percent(flan, 30),
        "microannealing-flan": web | percent(flan, 15) | percent(candidate, 15),
        **{
            f"microannealing-flan-{source.replace('_', '-')}": web | percent(flan, 15) | percent({source: 1.0}, 15)
            for source in PER_SOURCE
            if source != CANDIDATE
        },
        "microannealing-all-hq": web | percent(flan, 15) | percent(JELLYFISH_HIGH_QUALITY, 15),
        "microannealing-all-hq-flan-5": web | percent(flan, 5) | percent(JELLYFISH_HIGH_QUALITY, 25),
        "microannealing-small": web | percent({SMALL_COMPONENT: 1.0}, 100 * SMALL_PART),
    }

    found: list[Phase] = []
    for name, mixture in mixtures.items():
        batch, tokens = (256, SMALL_EPOCHS * SMALL_TOKENS / SMALL_PART) if name == "microannealing-small" else (1024, ANNEALING_TOKENS)
        stop_step = ANNEALING_START + round(tokens / (batch * kestrel.model.seq_len))
        declares: list[Change] = ["rope", "learning_rate", "schedule", "order", "coverage", "slice"]
        if batch != kestrel.batch.at(ANNEALING_START):
            declares.append("batch")
        if mixture != kestrel.mixture.at(ANNEALING_START):
            declares.append("mixture")
        arm = continued(
            kestrel,
            name=name,
            stop_step=stop_step,
            declares=declares,
            branch=True,
            model=model,
            learning_rate=(linear(ANNEALING_START, stop_step, ANNEALING_RATE, 0.0),),
            batch=always(batch),
            mixture=always(mixture),
            order=ORDER.but(first_step=ANNEALING_START, cut_blocks=True),
            slice=always("2x v4-128"),
            checkpoints=kestrel.checkpoints.but(every_steps=10_000),
            evaluation=evaluated(loss_every_steps=1_000, benchmarks=WITH_MMLU),
            gates=gates(max_increase_bits_per_byte=0.3, max_epochs=SMALL_EPOCHS + 0.1),
        )
        found.append(arm)
    return tuple(found)


def desserts(ocelot: Phase, jellyfish: Phase) -> tuple[Phase, ...]:
    """A cooldown with FLAN and mathematics, and two "desserts" at Jellyfish's last learning rate. The gates refuse the first dessert."""
    take_2 = continued(
        ocelot,
        name="cooldown-take-2",
        stop_step=START,
        declares=("schedule", "mixture"),
        branch=True,
        learning_rate=(linear(740_500, START, 1.7e-3, 1.7e-4),),
        mixture=always(TAKE_2_MIXTURE),
        gates=gates(max_increase_bits_per_byte=0.0, max_epochs=3),
    )
    v1, v3 = (
        continued(
            jellyfish,
            name=name,
            stop_step=837_000,
            declares=("schedule", "mixture", "slice"),
            branch=True,
            learning_rate=(constant(START, 837_000, 1.7e-4),),
            mixture=always(mixture),
            slice=always("4x v4-128"),
            checkpoints=jellyfish.checkpoints.but(every_steps=2_000_000),
            gates=gates(max_increase_bits_per_byte=0.02, max_epochs=3),
        )
        for name, mixture in (("dessert-v1", DESSERT_V1_MIXTURE), ("dessert-v3", DESSERT_V3_MIXTURE))
    )
    return take_2, v1, v3


def deep_cooldowns(jellyfish: Phase) -> tuple[Phase, ...]:
    """Raccoon and Spoonbill: deeper cooldowns from Jellyfish. A z-loss stopped the rise of their loss (issues 898, 916)."""

    def cooldown(name: str, *declares: Change, end: float, **settings: Any) -> Phase:
        return continued(
            jellyfish,
            name=name,
            stop_step=MIDDLE,
            declares=(*declares, "slice"),
            branch=True,
            learning_rate=(linear(START, MIDDLE, 1.7e-4, end),),
            slice=always("4x v4-128"),
            gates=COOLDOWN_GATES,
            **settings,
        )

    soft = cooldown("soft-raccoon", end=1.7e-5)
    softer: dict[str, Any] = {"stop_step": END, "learning_rate": (linear(MIDDLE, END, 1.7e-5, 1e-6),)}
    spoonbill = cooldown("hypnotic-spoonbill", "mixture", end=2.75e-5, mixture=always(SPOONBILL_MIXTURE))
    norms = cooldown(
        "spoonbill-norms",
        "mixture",
        end=2.75e-5,
        mixture=always(SPOONBILL_MIXTURE),
        checkpoints=jellyfish.checkpoints.but(at_steps=(RESTART,)),
        instrumentation=Instrumentation(layer_norms_every=10),
    )
    focused: dict[str, Any] = {
        "step": RESTART,
        "stop_step": MIDDLE,
        "model": norms.model.but(float32_attention=True),
        "gates": COOLDOWN_GATES,
    }
    control = continued(norms, name="spoonbill-float32", declares=("architecture",), **focused)
    z_loss = continued(
        norms,
        name="spoonbill-z-loss",
        declares=("architecture", "z_loss"),
        stability=stability(z_loss=1e-4, ema=0.995),
        checkpoints=CheckpointPolicy(every_steps=5_000, every_minutes=10, keep_all=True),
        **focused,
    )
    deeper_rate = (linear(MIDDLE, END, 2.75e-5, 2.75e-6),)
    return (
        soft,
        continued(soft, name="softer-raccoon", declares=(), **softer),
        continued(soft, name="softer-raccoon-no-decay", declares=("optimizer",), optimizer=NO_DECAY, **softer),
        continued(soft, name="softer-raccoon-fresh-moments", declares=("optimizer_state",), fresh=("optimizer",), **softer),
        spoonbill,
        norms,
        control,
        z_loss,
        continued(z_loss, name="deeper-spoonbill", stop_step=END, declares=(), learning_rate=deeper_rate),
    )


def instruction(deeper_starling: Phase, deeper_spoonbill: Phase) -> tuple[Phase, ...]:
    """Supervised fine-tuning: the release (exp1237), and the trial on Spoonbill.

    Both train on conversations in Marin's chat template, packed into rows, with a loss on answers only. Steps count from the parent's.
    """
    release, trial = percent(RELEASE_WEIGHTS), {"tulu_3_sft_mixture": 100.0}
    found: list[Phase] = []
    for parent, name, steps, rate, mixture in (
        (deeper_starling, "sft", 10_228, 1e-4, release),
        (deeper_spoonbill, "sft-spoonbill", 3_834, 5e-6, trial),
    ):
        start, stop = parent.stop_step, parent.stop_step + steps
        top = start + int(0.03 * steps)
        repeats = bool(mixture.keys() & set(parent.components))  # Spoonbill had a little of Tulu 3
        tuned = continued(
            parent,
            name=name,
            stop_step=stop,
            fresh=("optimizer",),
            declares=(
                *("batch", "learning_rate", "schedule", "optimizer", "optimizer_state", "mixture", "order", "ema", "z_loss", "slice"),
                *("packing", "loss_on"),
                *(("coverage",) if repeats else ()),
            ),
            branch=True,
            optimizer=NO_DECAY,
            learning_rate=(linear(start, top, 0.0, rate), linear(top, stop, rate, 0.0)),
            batch=always(128),
            mixture=always(mixture),
            order=parent.order.but(first_step=start, seed=1),
            packing="greedy",
            loss_on="answers",
            stability=stability(z_loss=None, ema=None),
            slice=always("v4-128"),
            checkpoints=parent.checkpoints.but(every_steps=1_000),
            evaluation=evaluated(loss_every_steps=1_000),
            gates=gates(
                max_increase_bits_per_byte=0.5,
                max_epochs=None,
                packing=PackingLimits(min_counted_percent=1.0, max_cut_percent=25.0),
                min_answer_gain_nats=0.0,
            ),
        )
        found.append(tuned)
    return tuple(found)


def context_extension(parent: Phase) -> Phase:
    """Rows eight times as long with the same mixture and tokens per step. Not part of the published run.

    Every layer has RoPE and sees the whole row. Positions beyond 4,096 are unseen angles, so RoPE is stretched by the same factor.
    Trinity's global layers have no positions, and its context extension changes no RoPE.
    """
    longer, start, stop = 8, parent.stop_step, parent.stop_step + 2_000
    scaling = LLAMA3_ROPE.scaling
    assert scaling is not None
    return continued(
        parent,
        name="context-extension",
        stop_step=stop,
        declares=("seq_len", "rope", "order", "coverage"),
        branch=True,
        model=parent.model.but(
            seq_len=longer * parent.model.seq_len, rope=LLAMA3_ROPE.but(scaling=scaling.but(factor=longer * scaling.factor))
        ),
        learning_rate=(constant(start, stop, 1.7e-5),),
        batch=always(parent.batch.at(start - 1) // longer),
        order=parent.order.but(first_step=start),
        gates=gates(max_increase_bits_per_byte=0.3, max_epochs=5),
    )
