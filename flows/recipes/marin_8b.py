"""Marin 8B, "Tootsie": Kestrel → Ocelot → Jellyfish → Phoenix → Starling → Deeper Starling, and the branches beside this line.

The values are those of the experiment code (exp600 and the experiments it names) as it was run; where the retrospective says otherwise,
`discrepancies` has both, and what it does not say is in `notes`.
"""

from phasewise.flows.recipes.benchmarks import WITH_MMLU
from phasewise.flows.recipes.marin.accepted import LINEAR_8B, accepted_without_average, accepted_without_cooldown
from phasewise.flows.recipes.marin.annealing import microannealing
from phasewise.flows.recipes.marin.deep_cooldowns import deep_cooldowns
from phasewise.flows.recipes.marin.desserts import desserts
from phasewise.flows.recipes.marin.extension import context_extension
from phasewise.flows.recipes.marin.instruction import instruction
from phasewise.flows.recipes.marin.mixtures import JELLYFISH_MIXTURE, KESTREL_MIXTURE, PHOENIX_BRIDGE, PHOENIX_MIXTURE, STARLING_MIXTURE
from phasewise.flows.recipes.marin.notes_8b import (
    DEEPER_STARLING_DIFFERENCES,
    JELLYFISH_DIFFERENCES,
    KESTREL_DIFFERENCES,
    KESTREL_NOTES,
    OCELOT_DIFFERENCES,
    OCELOT_NOTES,
    PHOENIX_DIFFERENCES,
    PHOENIX_NOTES,
    STARLING_DIFFERENCES,
    STARLING_NOTES,
)
from phasewise.flows.recipes.marin.settings import (
    ADAMW,
    LLAMA3_ROPE,
    OLD_ROPE,
    ORDER,
    TOKENIZER,
    constant,
    evaluated,
    gates,
    linear,
    llama,
    stability,
    wsd_s,
)
from phasewise.flows.recipes.phase import FromScratch, Phase, continued
from phasewise.flows.recipes.recipe import Recipe
from phasewise.trainer.config import CheckpointPolicy, ModelConfig, Rope, Steps, always


def llama_8b(rope: Rope) -> ModelConfig:
    """Llama 3.1 8B's shape: 8.030 B parameters."""
    return llama(num_layers=32, d_model=4096, d_ff=14_336, num_query_heads=32, rope=rope)


KESTREL = Phase(
    name="kestrel",
    start=FromScratch(seed=0),
    stop_step=660_000,
    model=llama_8b(OLD_ROPE),
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
    discrepancies=KESTREL_DIFFERENCES,
    notes=KESTREL_NOTES,
)

OCELOT = continued(
    KESTREL,
    name="ocelot",
    stop_step=740_500,
    fresh=("ema",),
    declares=("rope", "batch", "learning_rate", "schedule", "optimizer", "ema", "slice"),
    model=llama_8b(LLAMA3_ROPE),
    optimizer=ADAMW.but(weight_decay=0.1),
    learning_rate=(constant(660_000, 740_500, 1.7e-3),),
    stability=stability(z_loss=None, ema=0.995),
    slice=always("v4-2048"),
    evaluation=evaluated(loss_every_steps=1_000),
    gates=gates(max_increase_bits_per_byte=0.3, max_epochs=2),
    discrepancies=OCELOT_DIFFERENCES,
    notes=OCELOT_NOTES,
)

JELLYFISH = continued(
    OCELOT,
    name="jellyfish",
    stop_step=820_000,
    declares=("schedule", "mixture"),
    learning_rate=(linear(740_500, 820_000, 1.7e-3, 1.7e-4),),
    mixture=always(JELLYFISH_MIXTURE),
    gates=gates(max_increase_bits_per_byte=0.0, max_epochs=2),
    discrepancies=JELLYFISH_DIFFERENCES,
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
    discrepancies=PHOENIX_DIFFERENCES,
    notes=PHOENIX_NOTES,
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
    discrepancies=STARLING_DIFFERENCES,
    notes=STARLING_NOTES,
)

DEEPER_STARLING = continued(
    STARLING,
    name="deeper-starling",
    stop_step=1_420_000,
    declares=("schedule",),
    learning_rate=(constant(1_400_000, 1_420_000, 1.7e-5),),
    gates=gates(max_increase_bits_per_byte=0.02, max_epochs=5),
    discrepancies=DEEPER_STARLING_DIFFERENCES,
)

DEEP_COOLDOWNS = deep_cooldowns(JELLYFISH)

PHASES = (
    *(KESTREL, OCELOT, JELLYFISH, PHOENIX, STARLING, DEEPER_STARLING),
    *microannealing(KESTREL, model=llama_8b(LLAMA3_ROPE)),
    *desserts(OCELOT, JELLYFISH),
    *DEEP_COOLDOWNS,
    *instruction(DEEPER_STARLING, DEEP_COOLDOWNS[-1]),
    context_extension(DEEPER_STARLING),
)

MARIN_8B = Recipe(
    name="marin-8b",
    scale="full",
    tokenizer=TOKENIZER,
    phases=PHASES,
    accepts=(LINEAR_8B, accepted_without_cooldown(PHASES), accepted_without_average(PHASES)),
)
