"""A trainer that waits where a test wants it: called as `python` is, `gated -m trainer RUN.json …`. It is the real one in all else.

While the file `gate-N` is in the run's folder, every process stays before it says whether to save after step N; the row of step N - 1 is there
then. Where `asked-N` is there, too, it goes on when jax has told all processes that one of them was asked to stop: jax looks for a signal
once a second, and thousands of updates like these might be made before.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LOOK_SECONDS = 0.01
COUNTERS = "CURRENT_CALL_COUNTER"
"""Where jax's coordination service keeps how far each process was when it heard that one is to stop."""


def gate(folder: Path, step: int) -> Path:
    """The file that keeps all processes before this step."""
    return folder / f"gate-{step}"


def open_gate(folder: Path, step: int, *, is_asked: bool) -> None:
    """Let them go on; if they are asked to stop, when they know that."""
    if is_asked:
        (folder / f"asked-{step}").touch()
    gate(folder, step).unlink()


def wait_at(folder: Path, step: int) -> None:
    """As the files say."""
    while gate(folder, step).exists():
        time.sleep(LOOK_SECONDS)
    while (folder / f"asked-{step}").exists() and not all_know():
        time.sleep(LOOK_SECONDS)


def all_know() -> bool:
    """Whether every process has said how far it is."""
    import jax
    from jax._src.distributed import global_state

    client: Any = global_state.client
    return len(client.key_value_dir_get(COUNTERS)) >= jax.process_count()


def plant(run_file: str) -> None:
    """Put the gates before the question whether to save."""
    import trainer.loop as loop

    due: Callable[..., bool] = loop.Checkpoints.due

    def due_after_gate(checkpoints: Any, step: int) -> bool:
        wait_at(Path(run_file).parent, step)
        return due(checkpoints, step)

    loop.Checkpoints.due = due_after_gate


if __name__ == "__main__":
    from trainer.run import main

    plant(sys.argv[3])
    sys.exit(main(sys.argv[3:]))
