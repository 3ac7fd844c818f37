"""How seldom the loss on held-out text must be measured, so that it takes little of a phase's arithmetic."""

import math
from collections.abc import Callable

from phasewise.flows.recipes.phase import Phase

MAX_EVALUATION_SHARE, FORWARD_SHARE = 1 / 20, 1 / 3
"""A forward pass is a third of an update's; where there is an EMA, it takes two."""


def seldom_enough(phase: Phase, sequences: Callable[[int], int], *, loss_sequences: int) -> int:
    """Steps from one measurement to the next, at least.

    Args:
        sequences: what a batch of the phase becomes at the scale.
        loss_sequences: rows of each component that are measured on.
    """
    fewest = min(sequences(size) for _, size in phase.batch.within(phase.start_step, phase.stop_step))
    has_average = any(decay is not None for _, decay in phase.stability.ema_decay.within(phase.start_step, phase.stop_step))
    cost_sequences = FORWARD_SHARE * loss_sequences * len(phase.components) * (2 if has_average else 1)
    return math.ceil(cost_sequences / (MAX_EVALUATION_SHARE * fewest))
