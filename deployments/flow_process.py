"""`python -m phasewise.deployments.flow_process`: Prefect's engine for one flow run, in a process that never outlives its worker.

The worker holds the other end of its standard input. When that ends, however the worker did, the run is stopped as by SIGTERM and reports
it; a run that doesn't end in time is cut off. The file by which others know that the run's process lives is held before Prefect begins:
a run that dies at any moment is known to be dead.
"""

import os
import runpy
import signal
import threading
import time
from contextlib import suppress

from phasewise.flows.prefect.access import hide_from_children
from phasewise.flows.prefect.stale_runs import stay_present
from phasewise.tasks.holder import AlreadyHeld
from phasewise.tasks.home import Home
from phasewise.trainer.process.child_process import collect_rarely, wait_for_end_of_input
from phasewise.trainer.process.signals import stop_seconds

REPORT_SECONDS = 10.0
"""Beyond the time that a trainer has to save."""


def main() -> None:
    """Run the engine on the flow run that the environment names."""
    collect_rarely()
    os.setsid()  # Ctrl-C on the terminal is for the worker, which stops its runs itself
    threading.Thread(target=_end_with_standard_input, daemon=True).start()
    run_id = os.environ.get("PREFECT__FLOW_RUN_ID")
    if run_id and "PHASEWISE_HOME" in os.environ:
        with suppress(AlreadyHeld, OSError):  # an earlier process of the run is about to end, or the home takes nothing: the flow says so
            stay_present(Home.at(None), run_id, run_id)
    hide_from_children()
    runpy.run_module("prefect.engine", run_name="__main__", alter_sys=True)


def _end_with_standard_input() -> None:
    wait_for_end_of_input()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(stop_seconds() + REPORT_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main()
