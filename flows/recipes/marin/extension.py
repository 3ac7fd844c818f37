"""A branch that is not of the record: rows of 32,768 tokens after Deeper Starling, to show what a longer context changes in such a model.

Every layer of it has RoPE and sees the whole row. Positions beyond the 4,096 that it was trained on are angles that it never saw, so RoPE
is stretched as much more as the rows are longer. Trinity's global layers have no positions, and its hand-off changes no RoPE.
"""

from phasewise.flows.recipes.marin.notes import unstated
from phasewise.flows.recipes.marin.settings import LLAMA3_ROPE, constant, gates
from phasewise.flows.recipes.phase import Phase, continued
from phasewise.trainer.config import Rope, always

LONGER, STEPS, RATE = 8, 2_000, 1.7e-5
OURS = "this project"
NOT_OF_THE_RECORD = unstated(
    "start",
    "no such phase is in the record: how much text, which and at what rate is this project's choice, as is the stretch of RoPE by the "
    "number of times that the rows are longer",
    source=OURS,
    place=OURS,
)


def stretched() -> Rope:
    """Llama 3's RoPE with its factor so many times larger."""
    scaling = LLAMA3_ROPE.scaling
    assert scaling is not None
    return LLAMA3_ROPE.but(scaling=scaling.but(factor=LONGER * scaling.factor))


def context_extension(parent: Phase) -> Phase:
    """The same mixture and tokens a step, in rows eight times as long."""
    start = parent.stop_step
    return continued(
        parent,
        name="context-extension",
        stop_step=start + STEPS,
        declares=("seq_len", "rope", "order", "coverage"),
        branch=True,
        model=parent.model.but(seq_len=LONGER * parent.model.seq_len, rope=stretched()),
        learning_rate=(constant(start, start + STEPS, RATE),),
        batch=always(parent.batch.at(start - 1) // LONGER),
        order=parent.order.but(first_step=start),
        gates=gates(max_increase_bits_per_byte=0.3, max_epochs=5),
        notes=(NOT_OF_THE_RECORD,),
    )
