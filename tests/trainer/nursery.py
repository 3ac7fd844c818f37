"""Starts trainers quickly: a process that has imported them, but uses no device yet, forks one for each run that it is given.

`python -m tests.trainer.nursery` reads paths of `run.json` on standard input. For each it says two lines on standard output: the trainer's
process id, and, when that has ended, its exit code, or minus the signal. A trainer is killed as any process is.
"""

import os
import sys
import warnings
from pathlib import Path

import jax

from trainer.run import main


def raise_trainer(path: Path) -> int:
    """Fork a trainer; what it says goes to `trainer.log` beside its file. Gives its process id."""
    child = os.fork()
    if child:
        return child
    log = os.open(path.with_name("trainer.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    jax.config.update("jax_disable_most_optimizations", True)
    code = 1
    try:
        code = main([str(path)])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=RuntimeWarning)  # jax warns of threads, and has none before it uses a device
    for line in sys.stdin:
        process_id = raise_trainer(Path(line.strip()))
        print(process_id, flush=True)
        _, status = os.waitpid(process_id, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
