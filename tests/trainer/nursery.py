"""Starts trainers quickly: a process that has imported them, but uses no device yet, forks one for each run that it is given.

`python -m tests.trainer.nursery` reads a list in JSON for each, a line on standard input: the path of its `run.json`, or that, a step and
seconds. Then a SIGTERM reaches the trainer so long after it has written the row of that step, or after its start where the step is 0. For
each it says two lines on standard output: the trainer's process id, and, when that has ended, its exit code, or minus the signal. A trainer
is killed as any process is.
"""

import json
import os
import signal
import sys
import warnings
from pathlib import Path
from threading import Timer

import jax

from phasewise.trainer.metrics import MetricsFile, Row
from phasewise.trainer.process.child_process import end_where_asked_to_stop
from phasewise.trainer.run import main


def raise_trainer(path: str, stop_at: int | None = None, seconds: float = 0.0) -> int:
    """Fork a trainer; what it says goes to `trainer.log` beside its file. Gives its process id."""
    child = os.fork()
    if child:
        return child
    log = os.open(Path(path).with_name("trainer.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    jax.config.update("jax_disable_most_optimizations", True)
    if stop_at is not None:
        terminate_after(stop_at, seconds)
    code = 1
    try:
        code = main([path])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def terminate_after(step: int, seconds: float) -> None:
    """By a timer of this process: one of another process might come when a busy machine has trained all the rest."""
    timer = Timer(seconds, os.kill, (os.getpid(), signal.SIGTERM))
    timer.daemon = True
    if step == 0:
        timer.start()
        return
    append = MetricsFile.append

    def append_and_look(self: MetricsFile, row: Row) -> None:
        append(self, row)
        if row["step"] >= step and timer.ident is None:
            timer.start()

    MetricsFile.append = append_and_look


if __name__ == "__main__":
    end_where_asked_to_stop()  # before the first fork: a trainer may be asked to stop as soon as it is there
    warnings.filterwarnings("ignore", category=RuntimeWarning)  # jax warns of threads, and has none before it uses a device
    for line in sys.stdin:
        process_id = raise_trainer(*json.loads(line))
        print(process_id, flush=True)
        _, status = os.waitpid(process_id, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
