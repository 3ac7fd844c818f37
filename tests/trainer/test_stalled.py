import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from phasewise.trainer.base.errors import ExitCode
from phasewise.trainer.process.watchdog import only_one_trainer, read_heartbeat
from tests.trainer.conftest import MakeRun, StartTrainer

LIMIT_SECONDS, AFTER_SECONDS = 1.0, 15.0
pytestmark = pytest.mark.timeout(120)  # a guard against hanging
LONG = ("save", "barrier")
FIELDS = {
    "data": "step_stall_seconds", "compile": "stall_seconds", "save": "save_stall_seconds", "restore": "restore_stall_seconds",
    "barrier": "step_stall_seconds",
}  # fmt: skip


@pytest.mark.parametrize("place", ["data", "compile", "restore", *(pytest.param(one, marks=pytest.mark.long) for one in LONG)])
def test_a_hang_is_named_and_the_process_is_ended(make_run: MakeRun, start_trainer: StartTrainer, place: str):
    run = make_run(f"hangs in {place}", execution={FIELDS[place]: 8.0 if place == "compile" else LIMIT_SECONDS})
    output, seen = Path(run.output), 0.0
    if place == "restore":
        (output / "checkpoints" / "3").mkdir(parents=True)
    process = start_trainer(run, hang=place)
    while process.poll() is None:
        if read_heartbeat(output).get("work") == place and not seen:
            seen = time.monotonic()
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.02)
    ended, errors = time.monotonic(), (output / "trainer.log").read_text()
    assert process.returncode == ExitCode.STALLED, errors[-2000:]
    assert f"trainer: phase {run.phase} stalled in {place} for " in errors
    assert f"(execution.{FIELDS[place]})" in errors
    assert "hanging.py" in errors, "the stacks say which call it is"
    assert not seen or ended - seen < 8.0 + AFTER_SECONDS
    with only_one_trainer(output):
        assert not (output / "result.json").exists()
