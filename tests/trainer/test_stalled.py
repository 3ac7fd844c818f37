import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from phasewise.trainer.base.errors import ExitCode
from phasewise.trainer.base.storage import write_json
from phasewise.trainer.process.lease import only_one_trainer
from phasewise.trainer.process.watchdog import read_heartbeat
from tests.trainer.conftest import MakeRun

LIMIT_SECONDS, AFTER_SECONDS = 1.0, 15.0
pytestmark = pytest.mark.timeout(120)  # a guard against hanging
FIELDS = {
    "data": "step_stall_seconds",
    "compile": "stall_seconds",
    "save": "save_stall_seconds",
    "restore": "restore_stall_seconds",
    "barrier": "step_stall_seconds",
}


@pytest.mark.parametrize(
    "place", ["data", "compile", "restore", *(pytest.param(place, marks=pytest.mark.long) for place in ("save", "barrier"))]
)
def test_a_hang_is_named_and_the_process_is_ended(make_run: MakeRun, place: str):
    run = make_run(f"hangs in {place}", execution={FIELDS[place]: LIMIT_SECONDS} if place != "compile" else {"stall_seconds": 8.0})
    output = Path(run.output)
    write_json(output / "run.json", run.model_dump(mode="json"))
    if place == "restore":
        (output / "checkpoints" / "3").mkdir(parents=True)
    command = [sys.executable, "-m", "tests.trainer.hanging", place, f"{run.output}/run.json"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        seen = 0.0
        while process.poll() is None:
            said = read_heartbeat(output)
            if said.get("work") == place and not seen:
                seen = time.monotonic()
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.02)
        ended = time.monotonic()
        assert process.stderr is not None
        errors = process.stderr.read()
    assert process.returncode == ExitCode.STALLED, errors[-2000:]
    assert f"trainer: phase {run.phase} stalled in {place} for " in errors
    assert f"(execution.{FIELDS[place]})" in errors
    assert "hanging.py" in errors, "the stacks say which call it is"
    assert not seen or ended - seen < 8.0 + AFTER_SECONDS
    with only_one_trainer(output):
        assert not (output / "result.json").exists()
