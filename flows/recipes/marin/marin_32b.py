"""Marin 32B: phase 1 → QK-norm → Bison, and Mantis as its replacement.

Branches: the trials of phase 2, a flat end of Bison, and two branches of this project that test the order of sorted data.

Values come from the executed experiment code (exp1295, 1380, 1388, 1390, 1395, 1529). `marin_32b.yaml` lists differences from the
retrospective, notes, published results, and the source of each value. Tokens: 2.679 T + 2.684 T + 1.074 T = 6.437 T.
"""

from phasewise.flows.recipes.facts import with_facts
from phasewise.flows.recipes.marin.mixtures import (
    BISON_CLEAN_MIXTURE,
    BISON_MIXTURE,
    MANTIS_MIXTURE,
    MANTIS_MIXTURE_WITH_CODE,
    PRETRAINING_MIXTURE,
)
from phasewise.flows.recipes.marin.settings import ADAMW, ORDER, TOKENIZER, evaluated, gates, llama
from phasewise.flows.recipes.phase import FromScratch, GraftFrom, Phase, continued
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.recipes.waivers import accepted_order, accepted_without_cooldown
from phasewise.flows.recipes.words import constant, linear, stability
from phasewise.trainer.config import (
    AdamC,
    CheckpointPolicy,
    Instrumentation,
    LearningRateSegment,
    Muon,
    NAdamW,
    RollingLimit,
    Steps,
    always,
)

PEAK = 7e-4
FLOOR = 7e-5
NOMINAL_STEPS = 1_000_000  # steps of phase 1's schedule: a warm-up over 1 % of them, and a decay from step 600,000 that was never reached
LAST_GOOD_STEP = 77_096
UPDATE_NORM_LIMIT = RollingLimit(window=128, min_samples=64, sigmas=2.0)
SKIP_STEP_LIMIT = RollingLimit(window=128, min_samples=64, sigmas=6.0)
ADAMC = AdamC(kind="adamc", beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.05, peak_learning_rate=PEAK)
STEADY = stability(z_loss=1e-4, ema=0.995, max_grad_norm=always(0.2), max_update_norm=always(UPDATE_NORM_LIMIT), skip_step=SKIP_STEP_LIMIT)

PHASE_1 = Phase(
    name="phase-1",
    start=FromScratch(seed=0),
    stop_step=80_000,
    model=llama(num_layers=64, d_model=5120, d_ff=27_648, num_query_heads=40),  # OLMo 2 32B's shape: 32.52 B parameters
    optimizer=ADAMW,
    learning_rate=(linear(0, NOMINAL_STEPS // 100, 0.0, PEAK), constant(NOMINAL_STEPS // 100, 80_000, PEAK)),
    batch=Steps[int](((0, 8192), (18_500, 7680), (21_010, 8192))),
    mixture=always(PRETRAINING_MIXTURE),
    order=ORDER.but(cut_blocks=True),
    stability=stability(
        z_loss=1e-4,
        ema=0.995,
        max_grad_norm=Steps(((0, 1.0), (56_400, 0.2))),
        max_update_rms=Steps(((0, None), (67_522, 1.0), (72_233, None))),
        max_update_norm=Steps(((0, None), (72_233, UPDATE_NORM_LIMIT), (74_000, None))),
        skip_step=SKIP_STEP_LIMIT,
    ),
    slice=Steps[str](((0, "4x v5p-512"), (18_500, "3x v5p-512"), (21_010, "v4-2048"))),
    checkpoints=CheckpointPolicy(every_steps=10_000, every_minutes=10, keep_all=True, at_steps=(LAST_GOOD_STEP,)),
    evaluation=evaluated(loss_every_steps=1_000),
    gates=gates(max_increase_bits_per_byte=0.0, max_epochs=2),
    instrumentation=Instrumentation(layer_norms_every=1),
)

NECROMANCY = continued(
    PHASE_1,
    name="necromancy",
    stop_step=82_000,
    graft=(GraftFrom(part="rolling", phase="phase-1", step=LAST_GOOD_STEP),),
    declares=("optimizer_state", "max_update_norm"),
    branch=True,
    abandoned=True,
    learning_rate=(constant(80_000, 82_000, PEAK),),
    stability=STEADY,
    gates=gates(max_increase_bits_per_byte=0.05, max_epochs=2),
)

MUON = continued(
    PHASE_1,
    name="muon",
    step=LAST_GOOD_STEP,
    stop_step=86_000,
    fresh=("optimizer",),
    declares=("optimizer", "optimizer_state", "learning_rate", "max_grad_norm", "skip_step"),
    branch=True,
    abandoned=True,
    optimizer=Muon(
        kind="muon",
        momentum=0.98,
        nesterov=True,
        newton_schulz_steps=5,
        epsilon=1e-8,
        weight_decay=0.1,
        adam=ADAMW.but(weight_decay=0.1),
        adam_learning_rate_scale=0.35,
        max_adam_grad_norm=1.0,
    ),
    learning_rate=(constant(LAST_GOOD_STEP, 86_000, 2e-3),),
    stability=stability(z_loss=1e-4, ema=0.995, max_grad_norm=always(None)),
    gates=gates(max_increase_bits_per_byte=0.5, max_epochs=2),
)

NADAMW = continued(
    PHASE_1,
    name="nadamw",
    step=LAST_GOOD_STEP,
    stop_step=80_000,
    fresh=("optimizer",),
    declares=("optimizer", "optimizer_state", "learning_rate", "schedule", "max_grad_norm", "skip_step"),
    branch=True,
    abandoned=True,
    optimizer=NAdamW(kind="nadamw", beta1=0.95, beta2=0.95, epsilon=1e-8, weight_decay=0.05),
    learning_rate=(LearningRateSegment(kind="cosine", start_step=NOMINAL_STEPS // 100, end_step=NOMINAL_STEPS, start=PEAK, end=FLOOR),),
    stability=stability(z_loss=1e-4, ema=0.995),
    gates=gates(max_increase_bits_per_byte=0.5, max_epochs=2),
)

QK_NORM = continued(
    PHASE_1,
    name="qk-norm",
    stop_step=160_000,
    fresh=("qk_norm",),
    declares=("architecture", "learning_rate", "schedule", "max_update_norm"),
    model=PHASE_1.model.but(qk_norm=True),
    learning_rate=(linear(80_000, 81_000, FLOOR, PEAK), constant(81_000, 160_000, PEAK)),
    stability=STEADY,
    gates=gates(max_increase_bits_per_byte=0.0, max_epochs=2),
)

BISON = continued(
    QK_NORM,
    name="bison",
    stop_step=192_000,
    declares=("optimizer", "schedule", "mixture"),
    optimizer=ADAMC,
    learning_rate=(linear(160_000, 192_000, PEAK, FLOOR),),
    mixture=always(BISON_MIXTURE),
)

BISON_FLAT = continued(
    BISON,
    name="bison-flat",
    step=190_000,
    stop_step=192_000,
    declares=("schedule",),
    branch=True,
    learning_rate=(constant(190_000, 192_000, 1.09375e-4),),
)

BISON_CLEAN = continued(
    QK_NORM,
    name="bison-clean",
    stop_step=192_000,
    declares=("optimizer", "schedule", "mixture", "order", "coverage"),
    branch=True,
    optimizer=ADAMC,
    learning_rate=(linear(160_000, 192_000, PEAK, FLOOR),),
    mixture=always(BISON_CLEAN_MIXTURE),
    order=QK_NORM.order.but(first_step=160_000),
)

BISON_CLEAN_FEISTEL = BISON_CLEAN.but(name="bison-clean-feistel", order=BISON_CLEAN.order.but(permutation="feistel"))

MANTIS = continued(
    QK_NORM,
    name="mantis",
    stop_step=192_000,
    declares=("optimizer", "schedule", "mixture", "order", "coverage"),
    optimizer=ADAMC,
    learning_rate=(linear(160_000, 192_000, PEAK, FLOOR),),
    mixture=Steps(((160_000, MANTIS_MIXTURE), (174_000, MANTIS_MIXTURE_WITH_CODE))),
    order=QK_NORM.order.but(permutation="feistel_levanter"),
)

PHASES = with_facts("marin-32b", (PHASE_1, QK_NORM, BISON, MANTIS, NECROMANCY, MUON, NADAMW, BISON_FLAT, BISON_CLEAN, BISON_CLEAN_FEISTEL))

MARIN_32B = Recipe(
    name="marin-32b",
    scale="full",
    tokenizer=TOKENIZER,
    phases=PHASES,
    accepts=(
        accepted_order(
            "linear",
            phases=(phase.name for phase in PHASES if phase.name not in ("mantis", "bison-clean", "bison-clean-feistel")),
            reason="the record shuffled by a linear permutation up to Bison, and saw Bison's loss shift under it",
            source='Marin 32B retrospective, "Shuffling: Linear vs. Feistel"; exp1295, exp1395, exp1529',
        ),
        accepted_order(
            "feistel_levanter",
            phases=("mantis",),
            reason="the record shuffled Mantis by Levanter's Feistel permutation, five rounds of multiply and add",
            source='Marin 32B retrospective, "Shuffling: Linear vs. Feistel"; exp1529',
        ),
        accepted_without_cooldown(PHASES, source="the phase's `learning_rate`, from the experiment code"),
    ),
)
