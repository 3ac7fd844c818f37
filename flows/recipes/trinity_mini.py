"""Trinity Mini: 26.1 B parameters, of which a token meets 3.47 B; three phases of 7, 1.8 and 1.2 T tokens,
and the extension of the context.

The values are those of the Trinity Large report, where it prints them. What the report leaves blank and public notes do not have is this
project's choice: `phasewise show trinity-mini --notes` lists it, and `--sources` says of each value where it comes from.
"""

from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.recipes.trinity.accepted import accepted_without_cooldown
from phasewise.flows.recipes.trinity.mixtures import LENGTH_BIAS
from phasewise.flows.recipes.trinity.notes import MINI_NOTES, MINI_PHASE_2_NOTES, MINI_PHASE_3_NOTES
from phasewise.flows.recipes.trinity.notes_long import MINI_LONG_NOTES
from phasewise.flows.recipes.trinity.settings import TOKENIZER, small
from phasewise.flows.recipes.trinity.small import extended, from_buffers, three_phases
from phasewise.trainer.config import Experts, SignBalancing

SEQ_LEN_LONG = 131_072
MODEL = small(
    num_layers=32,
    d_model=2048,
    d_ff=6144,
    num_query_heads=32,
    num_kv_heads=4,
    experts=Experts(
        num_experts=128,
        num_active=8,
        num_shared=1,
        d_expert=1024,
        route_scale=2.826,
        num_dense_layers=2,
        balancing=SignBalancing(kind="sign", rate=0.001),
        sequence_loss=0.0,
    ),
)

PHASE_1, PHASE_2, PHASE_3 = three_phases(MODEL, (MINI_NOTES, MINI_PHASE_2_NOTES, MINI_PHASE_3_NOTES))
CONTEXT_EXTENSION = extended(PHASE_3, seq_len=SEQ_LEN_LONG, notes=MINI_LONG_NOTES)

PHASES = (PHASE_1, PHASE_2, PHASE_3, CONTEXT_EXTENSION, from_buffers(PHASE_2, PHASE_3))

TRINITY_MINI = Recipe(
    name="trinity-mini",
    scale="full",
    tokenizer=TOKENIZER,
    phases=PHASES,
    accepts=(accepted_without_cooldown(PHASES),),
    length_bias=LENGTH_BIAS,
)
