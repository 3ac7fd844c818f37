"""Pods that share nothing but the store with their launcher, which is preempted, dies, and is followed by another: nothing saved is lost.

The hosts' program, the store and the logs are real; the trainer is a stand-in that saves (`tests.tasks.training.hosts.saving`). The same
with real trainers is in `tests/tasks/training/hosts/test_hosts_on_a_store.py`.
"""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from phasewise.tasks.preflight.slices import find_slice
from phasewise.tasks.store.keeping import keeping
from phasewise.tasks.store.publisher import Kept
from phasewise.tasks.training.jobset.cluster import Cluster
from phasewise.tasks.training.jobset.manifest import ClusterSettings
from phasewise.tasks.training.launcher import launch_trainer
from phasewise.tasks.training.protocol import log_of
from phasewise.trainer.base.code_digest import HOUSE
from phasewise.trainer.base.storage import read_json
from phasewise.trainer.checkpoints.files import find_damage
from phasewise.trainer.config import Execution, RunConfig
from phasewise.trainer.events import read_events
from phasewise.trainer.metrics import Row, read_metrics
from phasewise.trainer.preflight.spec import NO_DATA, run_of
from tests.stores.emulator import the_emulator
from tests.tasks.training.jobset.api_server import ApiServer, api_server
from tests.tasks.training.jobset.dying import Dying, Watched
from tests.tasks.training.jobset.schema import problems_of
from tests.trainer.preflight.models import LLAMA_8B, step_of

RUN_NAME, PHASE, STEPS = "tiny-proxy", "pods", 24
PYTHON = """#!/bin/sh
export PYTHONPATH={house}
if [ "$3" = phasewise.trainer ]; then exec {python} -m tests.tasks.training.hosts.saving "$@"; fi
exec {python} "$@"
"""
PATIENCE_SECONDS = 120.0
ALONE_SECONDS = 6.0
"""A launcher on a machine that is busy with other tests is not taken for a dead one."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHASEWISE_PUBLISH_SECONDS", "0.1")
    monkeypatch.setenv("PHASEWISE_ALONE_SECONDS", f"{ALONE_SECONDS:g}")
    for name in ("jobset.cluster.RETRY_SECONDS", "jobset.logs.RETRY_SECONDS", "restarts.BACKOFF_SECONDS", "follow.POLL_SECONDS"):
        monkeypatch.setattr(f"phasewise.tasks.training.{name}", 0.02)


@dataclass
class World:
    """A cluster of one host, a store, and launchers on machines of their own."""

    root: Path
    store: Path
    server: ApiServer
    address: str
    said: list[Row] = field(default_factory=list)

    def kept(self, machine: str) -> Kept:
        return Kept(self.root / machine, self.store, RUN_NAME)

    def run(self, machine: str) -> RunConfig:
        work = self.kept(machine).work
        (self.root / "cache").mkdir(exist_ok=True)
        base = run_of(step_of(LLAMA_8B, 8), Execution())
        return base.but(
            recipe="tiny",
            scale="proxy",
            phase=PHASE,
            stop_step=STEPS,
            learning_rate=[base.learning_rate[0].but(end_step=STEPS)],
            caches={NO_DATA: str(self.root / "cache")},
            verdict=str(work / "verdicts" / RUN_NAME / PHASE / "data.json"),
            output=str(work / "runs" / RUN_NAME / PHASE),
        )

    def launcher(self) -> Watched:
        python = self.root / "python"
        python.write_text(PYTHON.format(house=HOUSE.parent, python=sys.executable))
        python.chmod(0o755)
        passed_on = {
            **the_emulator().variables,
            "UNTIL": str(self.root / "until"),
            "RUN_DIGEST": self.run("any").digest,
            "PHASEWISE_PUBLISH_SECONDS": "0.1",
        }
        settings = ClusterSettings(
            image="here", python=str(python), stop_seconds=20, send_seconds=20, alone_seconds=ALONE_SECONDS, passed_on=passed_on
        )
        return Watched(Cluster("default", host=self.address), find_slice("v6e-4"), settings)

    def until(self, step: int) -> None:
        """How far trainers may go from now on."""
        (self.root / "until.new").write_text(str(step))
        (self.root / "until.new").rename(self.root / "until")

    def train(self, machine: str, on_rows: Callable[[list[Row]], None]) -> dict[str, Any]:
        with keeping(self.kept(machine)):
            return launch_trainer(self.run(machine), on_rows, launcher=self.launcher())

    def train_and_die(self, machine: str, strikes: dict[int, Callable[[], None]], last: int) -> None:
        """A launcher that is at work until the row of the last update, and from then on does nothing any more."""
        launcher, dying = self.launcher(), Dying(self.kept(machine))

        def on_rows(rows: list[Row]) -> None:
            step = rows[-1]["step"]
            strikes.pop(step, lambda: None)()
            if step == last:
                dying.die()

        dying.live(lambda: launch_trainer(self.run(machine), on_rows, launcher=launcher), launcher)

    @property
    def pods(self) -> Any:
        [found] = self.server.pods.values()
        return found

    def rows(self, machine: str) -> list[int]:
        return [row["step"] for row in read_metrics(Path(self.run(machine).output) / "metrics.jsonl")]

    def log(self, machine: str) -> str:
        return log_of(Path(self.run(machine).output), 0).read_text()


@pytest.fixture
def world(gcs: Path, tmp_path: Path) -> Iterator[World]:
    with api_server(tmp_path / "nodes", problems_of) as (server, address):
        yield World(tmp_path, gcs, server, address)


def test_preempted_then_without_a_launcher_and_another_one_ends_it(world: World):
    def preempt() -> None:
        world.until(12)
        world.pods.ask()

    world.until(7)
    world.train_and_die("first", {7: preempt}, last=12)
    assert wait_for(lambda: world.pods.codes) == [75], "nobody commits any more: it saves, and ends"
    world.until(STEPS)
    result = world.train("second", world.said.extend)
    assert not world.server.jobsets
    assert result["params_digest"] == str(STEPS * (STEPS + 1) // 2)
    assert world.rows("second") == list(range(1, STEPS + 1))
    assert [row["step"] for row in world.said] == list(range(13, STEPS + 1)), "nothing is trained twice"
    events = read_events(world.run("second").output)
    assert [(event["kind"], event["step"]) for event in events] == [("preempted", 7), ("restart", 7), ("resumed", 12)]
    log = world.log("second")
    for words in ("begins after step 0", "trainer: saved step 7", "begins after step 7", "trainer: saved step 12", "begins after step 12"):
        assert log.splitlines().count(words) == 1, words
    assert "no launcher has given a sign at gs://" in log
    assert log.count("what phasewise-") == 3, "each pod's log once"
    assert_is_whole(world, "second")


def test_a_launcher_that_comes_at_once_shuts_out_the_pods_of_the_one_before(world: World):
    world.until(7)
    world.train_and_die("first", {}, last=7)
    assert world.pods.codes == [None]
    world.until(STEPS)
    world.train("second", world.said.extend)
    log = world.log("second")
    assert "may not go on with runs/tiny-proxy/pods" in log
    assert log.count("begins after step 5\n") == 1, "from the last checkpoint that was committed"
    assert world.rows("second") == list(range(1, STEPS + 1))
    assert not world.server.jobsets
    assert_is_whole(world, "second")


def test_a_run_that_ended_while_nobody_was_there_is_done(world: World):
    world.until(7)
    world.train_and_die("first", {}, last=7)
    world.until(STEPS)
    assert wait_for(lambda: world.pods.codes) == [0]
    result = world.train("second", world.said.extend)
    assert result["params_digest"] == str(STEPS * (STEPS + 1) // 2)
    assert world.said == [], "nothing is trained"
    assert not world.server.jobsets
    assert world.log("second").count("begins after step") == 1
    assert_is_whole(world, "second")


def assert_is_whole(world: World, machine: str) -> None:
    """What is on the store is what is here, and nothing of a launch is left there."""
    head, _ = world.kept(machine).head.read()
    assert head.launch == ""
    assert not list((world.store / "runs" / RUN_NAME / "launches").glob("*"))
    other = world.kept("looks")
    other.look(checkpoints=True)
    folder = other.work / "runs" / RUN_NAME / PHASE
    assert find_damage(folder / "checkpoints" / str(STEPS)) is None
    assert read_json(folder / "checkpoints" / str(STEPS) / "weights") == {"step": STEPS, "sum": STEPS * (STEPS + 1) // 2}
    assert (folder / "trainer.log").read_text() == world.log(machine)


def wait_for(codes: Callable[[], list[int | None]]) -> list[int | None]:
    end = time.monotonic() + PATIENCE_SECONDS
    while None in codes():
        assert time.monotonic() < end, "the pods did not end"
        time.sleep(0.05)
    return codes()
