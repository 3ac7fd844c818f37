"""How the trainer's process ends. The code that starts it decides by these numbers."""

from enum import IntEnum


class ExitCode(IntEnum):
    """DONE: trained to the end. REFUSED: no verdict, or a damaged cache or checkpoint. USAGE: the command or the configuration is wrong.

    DIVERGED: the loss or a norm is no number, or the loss spiked beyond the recipe's limit. STALLED: a kind of work took longer than its
    limit. LOST: another process of the run is gone. TAKEN_OVER: a later trainer has the run's folder. NO_STORAGE: a file could not be
    read or written. ASKS: as DIVERGED, and a person is asked. MOVES: saved where the phase goes on on another slice. PREEMPTED: stopped by
    SIGTERM, and saved (EX_TEMPFAIL).
    """

    DONE = 0
    REFUSED = 1
    USAGE = 2
    DIVERGED = 3
    STALLED = 4
    LOST = 5
    TAKEN_OVER = 6
    NO_STORAGE = 7
    ASKS = 8
    MOVES = 9
    PREEMPTED = 75


GOES_ON = frozenset({ExitCode.STALLED, ExitCode.LOST, ExitCode.PREEMPTED})
"""After these, as after a kill, the same command goes on from the last checkpoint."""
