"""The phases of the small models, Nano and Mini, which differ in their shapes and in the length of the last one's rows alone."""

from phasewise.flows.recipes.phase import FromScratch, Note, Phase, continued
from phasewise.flows.recipes.trinity.extension import context_extension, extension_steps
from phasewise.flows.recipes.trinity.mixtures import SMALL_MIXTURES
from phasewise.flows.recipes.trinity.notes import FROM_BUFFERS_NOTES
from phasewise.flows.recipes.trinity.settings import (
    BUFFER_DOCUMENTS,
    ORDER,
    SMALL_PEAK,
    SMALL_STEPS,
    STEP_UP,
    WARMUP_STEPS,
    constant,
    evaluated,
    gates,
    linear,
    muon,
    stability,
)
from phasewise.trainer.config import CheckpointPolicy, ModelConfig, always

END_1, END_2, END_3 = SMALL_STEPS


def three_phases(model: ModelConfig, notes: tuple[tuple[Note, ...], tuple[Note, ...], tuple[Note, ...]]) -> tuple[Phase, Phase, Phase]:
    """Seven tenths of the tokens at a constant rate; then twice the batch and another mixture; then the rate falls to nothing.

    Args:
        notes: of each phase.
    """
    phase_1 = Phase(
        name="phase-1",
        start=FromScratch(seed=0),
        stop_step=END_1,
        model=model,
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
        notes=notes[0],
    )
    phase_2 = continued(
        phase_1,
        name="phase-2",
        stop_step=END_2,
        declares=("batch", "mixture"),
        learning_rate=(constant(END_1, END_2, SMALL_PEAK),),
        batch=always(STEP_UP[1]),
        mixture=always(SMALL_MIXTURES[1]),
        notes=notes[1],
    )
    phase_3 = continued(
        phase_2,
        name="phase-3",
        stop_step=END_3,
        declares=("schedule", "mixture"),
        learning_rate=(linear(END_2, END_3, SMALL_PEAK, 0.0),),
        mixture=always(SMALL_MIXTURES[2]),
        evaluation=evaluated(needles=(model.seq_len,)),
        notes=notes[2],
    )
    return phase_1, phase_2, phase_3


WARM_AGAIN_SHARE, WARM_AGAIN_RATE = 0.1, 0.1
"""Of the extension's steps, and of the peak."""


def extended(parent: Phase, *, seq_len: int, notes: tuple[Note, ...]) -> Phase:
    """Rows of `seq_len` tokens: the rate rises again to a tenth of the peak, and falls to nothing.

    117 B tokens at 33,554,432 a step are 3,487 steps, to step 510,127.
    """
    start, steps = parent.stop_step, extension_steps(parent)
    top = start + round(WARM_AGAIN_SHARE * steps)
    rates = (linear(start, top, 0.0, WARM_AGAIN_RATE * SMALL_PEAK), linear(top, start + steps, WARM_AGAIN_RATE * SMALL_PEAK, 0.0))
    return context_extension(parent, seq_len=seq_len, learning_rate=rates, declares=("schedule",), notes=notes)


def from_buffers(phase_2: Phase, phase_3: Phase) -> Phase:
    """A branch: the third phase with rows from document buffers, as Large has it."""
    return continued(
        phase_2,
        name="phase-3-from-buffers",
        stop_step=phase_3.stop_step,
        declares=("schedule", "mixture", "order", "coverage"),
        branch=True,
        learning_rate=phase_3.learning_rate,
        mixture=phase_3.mixture,
        order=phase_2.order.but(buffer_documents=BUFFER_DOCUMENTS),
        notes=FROM_BUFFERS_NOTES,
    )
