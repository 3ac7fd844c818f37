"""A trainer that hangs at a place: `python -m tests.trainer.hanging PLACE RUN.json`. It is the real one in all else."""

import signal
import sys
import threading
from collections.abc import Callable
from typing import Any


def hang(*_: Any, **__: Any) -> Any:
    threading.Event().wait()


def stop_all(*_: object, **__: object) -> bool:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGSTOP)
    return False


def hang_after(step: int, due: Callable[..., bool]) -> Callable[..., bool]:
    """It answers for steps up to this one."""
    return lambda checkpoints, now: due(checkpoints, now) if now <= step else hang()


def plant(place: str) -> None:
    import phasewise.trainer.checkpoints.checkpointer as checkpointer
    import phasewise.trainer.loop as loop
    from phasewise.trainer.data.loader import Loader

    if place == "data":
        Loader.batch = hang
    elif place == "compile":
        loop.build_train_step = lambda *_: hang
    elif place == "save":
        checkpointer.write_digests = hang
    elif place == "restore":
        checkpointer.find_damage = hang
    elif place == "barrier":
        loop.Checkpoints.due = hang
    elif place.isdigit():  # after the row of this step, and whatever was to be saved before it
        loop.Checkpoints.due = hang_after(int(place), loop.Checkpoints.due)
    elif place == "everything":  # a call that holds the interpreter's lock, as far as others can see
        loop.Checkpoints.due = stop_all
    else:
        raise SystemExit(f"no such place: {place}")


if __name__ == "__main__":
    from phasewise.trainer.run import main

    plant(sys.argv[1])
    sys.exit(main(sys.argv[2:]))
