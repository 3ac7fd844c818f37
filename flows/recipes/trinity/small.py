"""The three phases of the small models, Nano and Mini, which differ in their shapes alone."""

from flows.recipes.phase import FromScratch, Note, Phase, continued
from flows.recipes.trinity.mixtures import SMALL_MIXTURES
from flows.recipes.trinity.notes import FROM_BUFFERS_NOTES
from flows.recipes.trinity.settings import (
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
from trainer.config import CheckpointPolicy, ModelConfig, always

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
        notes=notes[2],
    )
    return phase_1, phase_2, phase_3


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
