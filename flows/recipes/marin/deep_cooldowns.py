"""Raccoon and Spoonbill: deeper cooldowns from Jellyfish; their training loss rose until a z-loss held `lm_head` (issues 898, 916)."""

from typing import Any

from phasewise.flows.recipes.marin.desserts import FROM_CHECKPOINT
from phasewise.flows.recipes.marin.mixtures import JELLYFISH_HIGH_QUALITY, JELLYFISH_WEB, percent
from phasewise.flows.recipes.marin.notes import GAINS_DECAYED, R8, differs, unstated
from phasewise.flows.recipes.marin.settings import ADAMW, gates, linear, stability
from phasewise.flows.recipes.phase import Change, Phase, continued
from phasewise.trainer.config import CheckpointPolicy, Instrumentation, LearningRateSegment, always

START, MIDDLE, END = 820_000, 830_000, 840_000
RESTART = 824_524
"""Where the focused runs took Spoonbill's state, as its norms began to grow."""
SPOONBILL_MIXTURE = (
    percent(JELLYFISH_WEB, 0.97 * 70)
    | percent(JELLYFISH_HIGH_QUALITY, 0.97 * 30)
    | percent({"flan": 1.0}, 2.9)
    | percent({"tulu_3_sft_mixture": 1.0}, 0.1)
)
GATES = gates(max_increase_bits_per_byte=0.02, max_epochs=2)
NO_DECAY = ADAMW.but(weight_decay=0.0)
SPOONBILL_RATE = linear(START, MIDDLE, 1.7e-4, 2.75e-5)


def deep_cooldowns(jellyfish: Phase) -> tuple[Phase, ...]:
    """Soft and softer Raccoon, Spoonbill with its controls, and the deeper one."""
    soft = _from_jellyfish(
        jellyfish,
        "soft-raccoon",
        declares=(),
        learning_rate=(linear(START, MIDDLE, 1.7e-4, 1.7e-5),),
        discrepancies=(FROM_CHECKPOINT, RACCOON_TOKENS),
    )
    spoonbill = _from_jellyfish(
        jellyfish,
        "hypnotic-spoonbill",
        declares=("mixture",),
        learning_rate=(SPOONBILL_RATE,),
        mixture=always(SPOONBILL_MIXTURE),
        discrepancies=(FROM_CHECKPOINT, *SPOONBILL_DIFFERENCES),
        notes=(GAINS_DECAYED,),
    )
    norms = _from_jellyfish(
        jellyfish,
        "spoonbill-norms",
        declares=("mixture",),
        learning_rate=(SPOONBILL_RATE,),
        mixture=always(SPOONBILL_MIXTURE),
        checkpoints=_keeping(jellyfish.checkpoints, RESTART),
        instrumentation=Instrumentation(layer_norms_every=10),
        discrepancies=(FROM_CHECKPOINT, HISTOGRAMS),
    )
    return soft, *_softer(soft), spoonbill, norms, *_focused(norms)


def _softer(soft: Phase) -> tuple[Phase, ...]:
    """Cooled to 1e-6; without weight decay; with the optimizer's moments deleted from the checkpoint."""
    rate = (linear(MIDDLE, END, 1.7e-5, 1e-6),)
    start = unstated(
        "start",
        "the checkpoint after step 829,992, cooled to 1e-6: no report names a run to 1e-6",
        source="Marin experiment code, issue 898",
        place="issue 898",
    )
    fresh = differs(
        "optimizer_state",
        "medium",
        code="mu and nu of AdamW deleted from the checkpoint by hand, which is then loaded in part",
        retrospective="resetting the optimizer state",
        source="Marin experiment code, issue 898; Marin 8B retrospective, Raccoon",
        place=f"issue 898; {R8}, Raccoon",
    )
    return (
        _further(soft, "softer-raccoon", learning_rate=rate, notes=(start,)),
        _further(soft, "softer-raccoon-no-decay", ("optimizer",), learning_rate=rate, optimizer=NO_DECAY, notes=(start,)),
        _further(
            soft,
            "softer-raccoon-fresh-moments",
            ("optimizer_state",),
            learning_rate=rate,
            fresh=("optimizer",),
            discrepancies=(fresh,),
            notes=(start,),
        ),
    )


def _focused(norms: Phase) -> tuple[Phase, ...]:
    """From the middle of Spoonbill with attention in float32, with and without the z-loss; and on from the latter."""
    model = norms.model.but(float32_attention=True)
    z_loss = stability(z_loss=1e-4, ema=0.995)
    two_changes = differs(
        "z_loss",
        "high",
        code="the z-loss of 1e-4 came with attention in float32 and a restart at step 824,524; a control without the z-loss exists",
        retrospective="fixed by adding a z-loss penalty of 1e-4",
        source="Marin experiment code, issue 916; Marin 8B retrospective, Spoonbill",
        place=f"issue 916; {R8}, Spoonbill",
    )
    control = continued(
        norms, name="spoonbill-float32", step=RESTART, stop_step=MIDDLE, declares=("architecture",), model=model, gates=GATES
    )
    focused = continued(
        norms,
        name="spoonbill-z-loss",
        step=RESTART,
        stop_step=MIDDLE,
        declares=("architecture", "z_loss"),
        model=model,
        stability=z_loss,
        checkpoints=CheckpointPolicy(every_steps=5_000, every_minutes=10, keep_all=True),
        gates=GATES,
        discrepancies=(two_changes,),
    )
    start = unstated("start", "the checkpoint after step 829,947", source="Marin experiment code, issue 916", place="issue 916")
    deeper = _further(focused, "deeper-spoonbill", learning_rate=(linear(MIDDLE, END, 2.75e-5, 2.75e-6),), notes=(start,))
    return control, focused, deeper


def _from_jellyfish(
    jellyfish: Phase, name: str, *, declares: tuple[Change, ...], learning_rate: tuple[LearningRateSegment, ...], **settings: Any
) -> Phase:
    slices = always("4x v4-128")
    return continued(
        jellyfish,
        name=name,
        stop_step=MIDDLE,
        declares=(*declares, "slice"),
        branch=True,
        learning_rate=learning_rate,
        slice=slices,
        gates=GATES,
        **settings,
    )


def _further(parent: Phase, name: str, declares: tuple[Change, ...] = (), **settings: Any) -> Phase:
    return continued(parent, name=name, stop_step=END, declares=declares, **settings)


def _keeping(policy: CheckpointPolicy, step: int) -> CheckpointPolicy:
    return policy.but(at_steps=(step,))


TOKENS = "125.8 B tokens (10,000 steps of 12 Mi)"
RACCOON_TOKENS = differs(
    "tokens",
    "low",
    code=TOKENS,
    retrospective="about 100 B tokens",
    source="Marin experiment code; Marin 8B retrospective, Raccoon",
    place=f"issue 898; {R8}, Raccoon",
)
HISTOGRAMS = differs(
    "instrumentation",
    "low",
    code="norms of gradients, weights, optimizer state and updates every 10 steps, with histograms; here norms only",
    retrospective="extensive norm tracking",
    source="Marin experiment code, norms-2; Marin 8B retrospective, Spoonbill",
    place=f"issue 916; {R8}, Spoonbill",
)
SPOONBILL_DIFFERENCES = (
    differs(
        "learning_rate",
        "high",
        code="1.7e-4 → 2.75e-5",
        retrospective="3e-5, OLMo 2's final rate",
        source="Marin experiment code; Marin 8B retrospective, Spoonbill; issue 916",
        place=f"issue 916; {R8}, Spoonbill",
    ),
    differs(
        "mixture",
        "high",
        code="FLAN 2.9 %, Tulu 3 0.1 %",
        retrospective="FLAN 1 %, Tulu 3 0.3 %",
        source="Marin experiment code; Marin 8B retrospective, Spoonbill; issue 916",
        place=f"issue 916; {R8}, Spoonbill",
    ),
    differs(
        "tokens",
        "high",
        code=TOKENS,
        retrospective="200 B tokens, says issue 916; the retrospective has no number",
        source="Marin experiment code; issue 916",
        place="issue 916",
    ),
)
