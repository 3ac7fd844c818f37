"""Trinity Nano: 6.12 B parameters, of which a token meets 1.02 B; three phases of 7, 1.8 and 1.2 T tokens,
and the extension of the context.

The values are those of the Trinity Large report, where it prints them. What the report leaves blank and public notes do not have is this
project's choice: `phasewise show trinity-nano --notes` lists it, and `--sources` says of each value where it comes from.
"""

from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.recipes.trinity.accepted import accepted_without_cooldown
from phasewise.flows.recipes.trinity.instruction import instruction
from phasewise.flows.recipes.trinity.mixtures import LENGTH_BIAS
from phasewise.flows.recipes.trinity.notes import NANO_NOTES, NANO_PHASE_2_NOTES, NANO_PHASE_3_NOTES
from phasewise.flows.recipes.trinity.notes_long import NANO_LONG_NOTES
from phasewise.flows.recipes.trinity.settings import SMALL_PEAK, TOKENIZER, small
from phasewise.flows.recipes.trinity.small import extended, from_buffers, three_phases
from phasewise.trainer.config import Experts, SignBalancing

SEQ_LEN_LONG = 262_144
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

PHASE_1, PHASE_2, PHASE_3 = three_phases(MODEL, (NANO_NOTES, NANO_PHASE_2_NOTES, NANO_PHASE_3_NOTES))
CONTEXT_EXTENSION = extended(PHASE_3, seq_len=SEQ_LEN_LONG, notes=NANO_LONG_NOTES)
SFT = instruction(CONTEXT_EXTENSION, peak=SMALL_PEAK)

PHASES = (PHASE_1, PHASE_2, PHASE_3, CONTEXT_EXTENSION, SFT, from_buffers(PHASE_2, PHASE_3))

TRINITY_NANO = Recipe(
    name="trinity-nano",
    scale="full",
    tokenizer=TOKENIZER,
    phases=PHASES,
    accepts=(accepted_without_cooldown(PHASES),),
    length_bias=LENGTH_BIAS,
)
