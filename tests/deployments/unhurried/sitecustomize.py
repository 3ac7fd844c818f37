"""Trainers without hurry: where this folder is in PYTHONPATH, a trainer rests after each row that it writes.

Python imports this file at every start. Tests that operate trainings wait for servers, workers and pages. A tiny model that trains all the
while would keep a processor busy.
"""

import sys

REST_SECONDS = 0.05

if sys.orig_argv[2:4] == ["-m", "phasewise.trainer"]:
    import time

    from phasewise.trainer.metrics import MetricsFile, Row

    append = MetricsFile.append

    def append_and_rest(self: MetricsFile, row: Row) -> None:
        append(self, row)
        time.sleep(REST_SECONDS)

    MetricsFile.append = append_and_rest
