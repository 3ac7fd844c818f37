"""A trainer that waits where a test wants it: called as `python` is, `gated -P -m phasewise.trainer RUN.json …`. It is the
real one in all else.

While the file `gate-N` is in the run's folder, or in the folder that `GATES` names, every process waits after update N; the row of update
N - 1 is there then. Where `asked-N` is there, too, they go on when jax has told all of them that one was asked to stop: jax looks for a
signal once a second, and a thousand updates like these might be made before.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

LOOK_SECONDS = 0.01


def gate(folder: Path, step: int) -> Path:
    return folder / f"gate-{step}"


def open_gate(folder: Path, step: int, *, is_asked: bool) -> None:
    """Let them go on; if they are asked to stop, when they know that."""
    if is_asked:
        (folder / f"asked-{step}").touch()
    gate(folder, step).unlink()


def after_gate(folder: Path, agreed: Callable[[int], bool]) -> Callable[[int], bool]:
    """Whether to stop after a step, as `trainer.process.distributed.stop_agreed` says it."""

    def is_to_stop(step: int) -> bool:
        while gate(folder, step).exists():
            time.sleep(LOOK_SECONDS)
        waits_for_it = (folder / f"asked-{step}").exists()
        while not (stops := agreed(step)) and waits_for_it:
            time.sleep(LOOK_SECONDS)
        return stops

    return is_to_stop


if __name__ == "__main__":
    import phasewise.trainer.loop as loop
    from phasewise.trainer.run import main

    gates = Path(os.environ.get("GATES") or Path(sys.argv[4]).parent)
    loop.stop_agreed = after_gate(gates, loop.stop_agreed)
    sys.exit(main(sys.argv[4:]))
