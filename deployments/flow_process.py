"""`python -m deployments.flow_process`: Prefect's engine for one flow run, in a process that never outlives its worker.

The worker holds the other end of its standard input. When that ends, however the worker did, the run is stopped as by SIGTERM and reports
it; a run that doesn't end in time is cut off.
"""

import os
import runpy
import signal
import threading
import time

from trainer.process.collecting import collect_rarely
from trainer.process.parent import wait_for_end_of_input
from trainer.process.stopping import stop_seconds

REPORT_SECONDS = 10.0
"""Beyond the time that a trainer has to save."""


def main() -> None:
    """Run the engine on the flow run that the environment names."""
    collect_rarely()
    os.setsid()  # Ctrl-C on the terminal is for the worker, which stops its runs itself
    threading.Thread(target=_end_with_standard_input, daemon=True).start()
    runpy.run_module("prefect.engine", run_name="__main__", alter_sys=True)


def _end_with_standard_input() -> None:
    wait_for_end_of_input()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(stop_seconds() + REPORT_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main()
