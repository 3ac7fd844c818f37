"""How the trainer's process ends. The code that starts it decides by these numbers."""

from enum import IntEnum


class ExitCode(IntEnum):
    """DONE: trained to the end. REFUSED: no verdict, or a damaged cache or checkpoint. USAGE: the command or the configuration is wrong.

    DIVERGED: the loss or a norm is no number. STALLED: no update for too long. LOST: another process of the run is gone. PREEMPTED: stopped
    by SIGTERM, and saved (EX_TEMPFAIL).
    """

    DONE = 0
    REFUSED = 1
    USAGE = 2
    DIVERGED = 3
    STALLED = 4
    LOST = 5
    PREEMPTED = 75


GOES_ON = frozenset({ExitCode.STALLED, ExitCode.LOST, ExitCode.PREEMPTED})
"""After these, as after a kill, the same command goes on from the last checkpoint."""
