"""`python -m phasewise.deployments.flow_process`: Prefect's engine for one flow run, in a process that ends with its worker.

The worker holds the other end of its standard input. When standard input ends, the process gets SIGTERM, so that the run saves and reports.
After a deadline the process exits. It holds the presence file of its flow run before Prefect starts, so a killed run is always detected.
"""

import logging
import os
import runpy
import signal
import sys
import threading
import time
from contextlib import suppress

from phasewise.flows.prefect.access import hide_from_children
from phasewise.flows.prefect.stale_runs import stay_present
from phasewise.tasks.home import Home
from phasewise.tasks.locks import AlreadyHeld
from phasewise.tasks.progress import LOGGER
from phasewise.trainer.process.child_process import collect_rarely, stop_seconds

REPORT_SECONDS = 10.0  # time to report the end, after the trainer's time to save


def main() -> None:
    """Run Prefect's engine on the flow run of the environment."""
    collect_rarely()
    os.setsid()  # Ctrl-C in the terminal is for the worker, which stops its runs
    threading.Thread(target=_end_with_standard_input, daemon=True).start()
    run_id = os.environ.get("PREFECT__FLOW_RUN_ID")
    if run_id and "PHASEWISE_HOME" in os.environ:
        with suppress(AlreadyHeld, OSError):  # an earlier process of the run is ending, or the flow reports the unusable home
            stay_present(Home.at(None), run_id, run_id)
    hide_from_children()
    LOGGER.setLevel(logging.DEBUG)  # Prefect's UI shows details, and the terminal is silent
    runpy.run_module("prefect.engine", run_name="__main__", alter_sys=True)


def _end_with_standard_input() -> None:
    while os.read(sys.stdin.fileno(), 1):  # unbuffered, because a locked buffer would break the interpreter's exit
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(stop_seconds() + REPORT_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main()
