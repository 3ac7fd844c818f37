"""Trinity Nano: 6.12 B parameters, of which a token meets 1.02 B; three phases of 7, 1.8 and 1.2 T tokens.

The values are those of the Trinity Large report, where it prints them. What the report leaves blank and public notes do not have is this
project's choice: `phasewise show trinity-nano --notes` lists it, and `--sources` says of each value where it comes from.
"""

from flows.recipes.phase import FromScratch, Phase, continued
from flows.recipes.recipe import Recipe
from flows.recipes.trinity.accepted import accepted_without_cooldown
from flows.recipes.trinity.mixtures import SMALL_MIXTURES
from flows.recipes.trinity.notes import NANO_NOTES, NANO_PHASE_2_NOTES, NANO_PHASE_3_NOTES
from flows.recipes.trinity.settings import (
    ORDER,
    SMALL_PEAK,
    SMALL_STEPS,
    STEP_UP,
    TOKENIZER,
    WARMUP_STEPS,
    constant,
    evaluated,
    gates,
    linear,
    muon,
    small,
    stability,
)
from trainer.config import CheckpointPolicy, Experts, SignBalancing, always

END_1, END_2, END_3 = SMALL_STEPS
MODEL = small(
    num_layers=56,
    d_model=1024,
    d_ff=3072,
    num_query_heads=8,
    num_kv_heads=2,
    experts=Experts(
        num_experts=128,
        num_active=8,
        num_shared=1,
        d_expert=256,
        route_scale=2.826,
        num_dense_layers=2,
        balancing=SignBalancing(kind="sign", rate=0.001),
        sequence_loss=0.0,
    ),
)

PHASE_1 = Phase(
    name="phase-1",
    start=FromScratch(seed=0),
    stop_step=END_1,
    model=MODEL,
    optimizer=muon(adam_learning_rate_scale=0.2),
    learning_rate=(linear(0, WARMUP_STEPS, 0.0, SMALL_PEAK), constant(WARMUP_STEPS, END_1, SMALL_PEAK)),
    batch=always(STEP_UP[0]),
    mixture=always(SMALL_MIXTURES[0]),
    order=ORDER,
    stability=stability(z_loss=1e-4),
    slice=always("v5p-1024"),
    checkpoints=CheckpointPolicy(every_steps=20_000, every_minutes=10, keep_all=True),
    evaluation=evaluated(),
    gates=gates(),
    notes=NANO_NOTES,
)

PHASE_2 = continued(
    PHASE_1,
    name="phase-2",
    stop_step=END_2,
    declares=("batch", "mixture"),
    learning_rate=(constant(END_1, END_2, SMALL_PEAK),),
    batch=always(STEP_UP[1]),
    mixture=always(SMALL_MIXTURES[1]),
    notes=NANO_PHASE_2_NOTES,
)

PHASE_3 = continued(
    PHASE_2,
    name="phase-3",
    stop_step=END_3,
    declares=("schedule", "mixture"),
    learning_rate=(linear(END_2, END_3, SMALL_PEAK, 0.0),),
    mixture=always(SMALL_MIXTURES[2]),
    notes=NANO_PHASE_3_NOTES,
)

PHASES = (PHASE_1, PHASE_2, PHASE_3)

TRINITY_NANO = Recipe(name="trinity-nano", scale="full", tokenizer=TOKENIZER, phases=PHASES, accepts=(accepted_without_cooldown(PHASES),))
