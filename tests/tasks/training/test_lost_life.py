"""A launcher and its trainer are lost with their machine, and another one goes on with what was kept: the account has all the time."""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from phasewise.tasks.training.launcher import launch_trainer
from phasewise.tasks.training.spent import read_lives, read_spent
from phasewise.trainer.base.code_digest import HOUSE
from phasewise.trainer.base.run_folder import RunFolder, is_kept
from phasewise.trainer.base.storage import write_json
from phasewise.trainer.config import RunConfig
from tests.tasks.training.conftest import BuildRun

pytestmark = pytest.mark.timeout(600)  # a guard against hanging

STEPS, SAVED_EVERY, HANGS_AFTER = 16, 5, 8
MACHINE = """
import os, signal, sys, time
from pathlib import Path
from phasewise.tasks.training import clock
from phasewise.tasks.training.launcher import launch_trainer
from phasewise.tasks.training.local import LocalLauncher
from phasewise.trainer.process.heartbeat import read_heartbeat
from phasewise.trainer.run import read_run

run = read_run(Path(sys.argv[1]))
clock.NOTE_SECONDS = 0.1

def lose() -> None:
    "When what it is at was noted."
    life = clock.read_open_life(Path(run.output))
    if life and life.life.to_step >= int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

print(time.time(), flush=True)
launch_trainer(run, lambda rows: None, lose, LocalLauncher(python=sys.argv[2]))
"""


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        yield


def lose_a_machine(run: RunConfig, folder: Path) -> float:
    """When its work began. Its trainer hangs after some updates, so that it is lost before it is done."""
    file, python = folder / "wanted.json", folder / "python"
    write_json(file, run.model_dump(mode="json"))
    python.write_text(f'#!/bin/sh\nPYTHONPATH={HOUSE.parent} exec {sys.executable} -m tests.trainer.hanging {HANGS_AFTER} "$4" "$5"\n')
    python.chmod(0o755)
    words = [sys.executable, "-c", MACHINE, str(file), str(python), str(HANGS_AFTER)]
    ended = subprocess.run(words, capture_output=True, text=True, cwd=HOUSE.parent, check=False)
    assert ended.returncode == -9, ended.stderr[-2000:]
    return float(ended.stdout.split()[0])


def test_the_account_is_the_time_on_the_clock(build_run: BuildRun, tmp_path: Path):
    checkpoints = {"every_steps": SAVED_EVERY, "every_minutes": None, "keep_all": False}
    rate = build_run("lost").learning_rate[0].but(end_step=STEPS)
    run = build_run("lost").but(stop_step=STEPS, checkpoints=checkpoints, learning_rate=[rate])
    began = lose_a_machine(run, tmp_path)
    elsewhere = run.but(output=str(Path(run.output).with_name("elsewhere")))
    shutil.copytree(run.output, elsewhere.output, ignore=lambda _, names: [name for name in names if not is_kept(name)])
    assert not RunFolder.at(elsewhere.output).heartbeat.exists()
    launch_trainer(elsewhere, lambda rows: None)
    on_the_clock = time.time() - began
    lost, last = read_lives(Path(elsewhere.output))
    assert (lost.is_whole, lost.to_step, last.is_whole, last.from_step, last.to_step) == (False, HANGS_AFTER, True, SAVED_EVERY, STEPS)
    spent = read_spent(Path(elsewhere.output))
    assert spent is not None
    assert sum(spent.seconds.values()) == pytest.approx(spent.wall_seconds)
    print(f"the account has {spent.wall_seconds / on_the_clock:.2%} of {on_the_clock:.1f} s: {spent.seconds}")
    assert 0.9 < spent.wall_seconds / on_the_clock <= 1.0, "what comes before the first life and after the last is left out"
    assert spent.seconds["away"] > 0
    assert spent.seconds["replay"] > 0
