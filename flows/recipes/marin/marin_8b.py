"""Marin 8B, "Tootsie": Kestrel → Ocelot → Jellyfish → Phoenix → Starling → Deeper Starling, and the branches.

Values come from the executed experiment code (exp600 and the experiments that it names). `marin_8b.yaml` lists differences from the
retrospective, notes, published results, and the source of each value.
"""

from phasewise.flows.recipes.benchmarks import WITH_MMLU
from phasewise.flows.recipes.facts import with_facts
from phasewise.flows.recipes.marin.branches_8b import context_extension, deep_cooldowns, desserts, instruction, microannealing
from phasewise.flows.recipes.marin.mixtures import JELLYFISH_MIXTURE, KESTREL_MIXTURE, PHOENIX_BRIDGE, PHOENIX_MIXTURE, STARLING_MIXTURE
from phasewise.flows.recipes.marin.settings import ADAMW, LLAMA3_ROPE, OLD_ROPE, ORDER, TOKENIZER, evaluated, gates, llama
from phasewise.flows.recipes.phase import FromScratch, Phase, continued
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.recipes.waivers import accepted_order, accepted_without_cooldown
from phasewise.flows.recipes.words import constant, linear, stability, wsd_s
from phasewise.trainer.config import CheckpointPolicy, Steps, always
from phasewise.validations.limits import AcceptedWarning

KESTREL = Phase(
    name="kestrel",
    start=FromScratch(seed=0),
    stop_step=660_000,
    model=llama(num_layers=32, d_model=4096, d_ff=14_336, num_query_heads=32, rope=OLD_ROPE),  # Llama 3.1 8B's shape: 8.030 B parameters
    optimizer=ADAMW,
    learning_rate=wsd_s(stop_step=660_000, cycle=10_000, decay=1_000, warmup=1_000, peak=1e-3, floor=1e-4),
    batch=Steps[int](((0, 1024), (660_001, 3072), (1_320_001, 4096))),
    mixture=always(KESTREL_MIXTURE),
    order=ORDER,
    stability=stability(z_loss=None, ema=None),
    slice=always("2x v5e-256"),
    checkpoints=CheckpointPolicy(every_steps=20_000, every_minutes=10, keep_all=True),
    evaluation=evaluated(loss_every_steps=10_000),
    gates=gates(max_increase_bits_per_byte=0.0, max_epochs=2),
)

CHANGED_CYCLES = wsd_s(stop_step=660_000, cycle=20_000, decay=2_000, warmup=1_000, peak=1e-3, floor=1e-4)
KESTREL_AS_REPORTED = KESTREL.but(
    name="kestrel-as-reported",
    branch=True,
    learning_rate=(
        *wsd_s(stop_step=200_000, cycle=10_000, decay=1_000, warmup=1_000, peak=1e-3, floor=1e-4),
        *(segment for segment in CHANGED_CYCLES if segment.start_step >= 200_000),
    ),
)
"""Kestrel with the cycles of the retrospective, its section "WSD Cycle Change": of 20,000 steps from step 200,000 on."""

OCELOT = continued(
    KESTREL,
    name="ocelot",
    stop_step=740_500,
    fresh=("ema",),
    declares=("rope", "batch", "learning_rate", "schedule", "optimizer", "ema", "slice"),
    model=KESTREL.model.but(rope=LLAMA3_ROPE),
    optimizer=ADAMW.but(weight_decay=0.1),
    learning_rate=(constant(660_000, 740_500, 1.7e-3),),
    stability=stability(z_loss=None, ema=0.995),
    slice=always("v4-2048"),
    evaluation=evaluated(loss_every_steps=1_000),
    gates=gates(max_increase_bits_per_byte=0.3, max_epochs=2),
)

JELLYFISH = continued(
    OCELOT,
    name="jellyfish",
    stop_step=820_000,
    declares=("schedule", "mixture"),
    learning_rate=(linear(740_500, 820_000, 1.7e-3, 1.7e-4),),
    mixture=always(JELLYFISH_MIXTURE),
    gates=gates(max_increase_bits_per_byte=0.0, max_epochs=2),
)

PHOENIX = continued(
    JELLYFISH,
    name="phoenix",
    stop_step=1_320_000,
    declares=("schedule", "mixture"),
    learning_rate=(linear(820_000, 822_000, 1.7e-4, 1.7e-3), constant(822_000, 1_320_000, 1.7e-3)),
    mixture=Steps(((820_000, PHOENIX_BRIDGE), (822_000, PHOENIX_MIXTURE))),
    evaluation=evaluated(loss_every_steps=1_000, benchmarks=WITH_MMLU),
    gates=gates(max_increase_bits_per_byte=0.3, max_epochs=2),
)

STARLING = continued(
    PHOENIX,
    name="starling",
    stop_step=1_400_000,
    declares=("batch", "schedule", "mixture", "z_loss"),
    learning_rate=(linear(1_320_000, 1_400_000, 1.7e-3, 1.7e-5),),
    mixture=always(STARLING_MIXTURE),
    stability=stability(z_loss=1e-4, ema=0.995),
    gates=gates(max_increase_bits_per_byte=0.0, max_epochs=5),
)

DEEPER_STARLING = continued(
    STARLING,
    name="deeper-starling",
    stop_step=1_420_000,
    declares=("schedule",),
    learning_rate=(constant(1_400_000, 1_420_000, 1.7e-5),),
    gates=gates(max_increase_bits_per_byte=0.02, max_epochs=5),
)

DEEP_COOLDOWNS = deep_cooldowns(JELLYFISH)

PHASES = with_facts(
    "marin-8b",
    (
        *(KESTREL, OCELOT, JELLYFISH, PHOENIX, STARLING, DEEPER_STARLING, KESTREL_AS_REPORTED),
        *microannealing(KESTREL, model=OCELOT.model),
        *desserts(OCELOT, JELLYFISH),
        *DEEP_COOLDOWNS,
        *instruction(DEEPER_STARLING, DEEP_COOLDOWNS[-1]),
        context_extension(DEEPER_STARLING),
    ),
)

MARIN_8B = Recipe(
    name="marin-8b",
    scale="full",
    tokenizer=TOKENIZER,
    phases=PHASES,
    accepts=(
        accepted_order(
            "linear",
            phases=None,
            reason="the record shuffled every component of 8B by one linear permutation",
            source='exp600; Marin 32B retrospective, "Shuffling: Linear vs. Feistel"',
        ),
        accepted_without_cooldown(PHASES, source="the phase's `learning_rate`, from the experiment code"),
        AcceptedWarning(
            table="health",
            check="expect_column_values_to_be_in_set",
            where={"measure": "ema_gap"},
            phases=tuple(
                phase.name
                for phase in PHASES
                if all(decay is None for _, decay in phase.stability.ema_decay.within(phase.start_step, phase.stop_step))
            ),
            reason="the recipe keeps no moving average in this phase",
            source="the phase's `stability`, from the experiment code",
        ),
    ),
)
