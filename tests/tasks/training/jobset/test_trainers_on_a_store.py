"""Two pods with real trainers and nothing but the store in common: one is lost, one preempted, the run is cancelled, and its launcher dies.

It ends as on a common folder, bit for bit. Trainers wait where they are struck (`tests.trainer.gated`).
"""

import os
import re
import signal
import sys
from collections.abc import Iterator
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
from phasewise.tasks.training.local import LocalLauncher
from phasewise.tasks.training.protocol import log_of
from phasewise.trainer.base.code_digest import HOUSE
from phasewise.trainer.base.identity import write_sealed
from phasewise.trainer.base.storage import as_path, read_json
from phasewise.trainer.checkpoints.files import find_damage, has_its_files, saved_steps
from phasewise.trainer.config import RunConfig
from phasewise.trainer.events import read_events
from phasewise.trainer.metrics import Row
from tests.stores.emulator import BUCKET, the_emulator
from tests.tasks.training.conftest import BuildRun
from tests.tasks.training.hosts.test_hosts_on_a_store import PYTHON, wait_until_sent
from tests.tasks.training.jobset.api_server import ApiServer, api_server
from tests.tasks.training.jobset.dying import Dying, Watched
from tests.tasks.training.jobset.schema import problems_of
from tests.tasks.training.machines import environment_here
from tests.tasks.training.test_launchers import ASKED, ON_TWO, Cancelled, hosts, rows_of, short
from tests.trainer.gated import gate, open_gate

pytestmark = [
    pytest.mark.timeout(900),  # a guard against hanging
    pytest.mark.skipif(not os.environ.get(ASKED), reason=f"ten trainers two at a time take minutes of a core: set {ASKED}"),
]

RUN_NAME, PHASE = "tiny-proxy", "pods"
LOST_AT, PREEMPTED_AT, CANCELLED_AT, DIES_AT = 7, 12, 14, 18
STRIKES = (LOST_AT, PREEMPTED_AT, CANCELLED_AT, DIES_AT)


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        patch.setenv("PHASEWISE_PUBLISH_SECONDS", "0.2")
        patch.setattr("phasewise.tasks.training.restarts.BACKOFF_SECONDS", 0.01)
        patch.setattr("phasewise.tasks.training.follow.POLL_SECONDS", 0.02)
        yield


@dataclass
class Story:
    """What was seen of the run."""

    root: Path
    store: Path
    base: RunConfig
    verdict: Any
    server: ApiServer
    address: str
    said: list[Row] = field(default_factory=list)
    lives: list[list[int]] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)

    def kept(self, machine: str) -> Kept:
        return Kept(self.root / machine, self.store, RUN_NAME)

    def run(self, machine: str) -> RunConfig:
        work = self.kept(machine).work
        place = str(work / "verdicts" / RUN_NAME / PHASE / "data.json")
        return self.base.but(execution=ON_TWO, output=str(work / "runs" / RUN_NAME / PHASE), verdict=place)

    def launcher(self) -> Watched:
        python = self.root / "python"
        python.write_text(PYTHON.format(house=HOUSE.parent, python=sys.executable))
        python.chmod(0o755)
        passed_on = {**environment_here(), **the_emulator().variables, "GATES": str(self.root), "PHASEWISE_PUBLISH_SECONDS": "0.2"}
        settings = ClusterSettings(image="here", python=str(python), stop_seconds=60, passed_on=passed_on)
        return Watched(Cluster("default", host=self.address), find_slice("v5p-16"), settings)

    def train(self, machine: str) -> dict[str, Any]:
        with keeping(self.kept(machine)):
            write_sealed(self.run(machine).verdict, self.verdict)
            return launch_trainer(self.run(machine), lambda rows: self.on_rows(machine, rows), launcher=self.launcher())

    def tell(self) -> None:
        for step in STRIKES:
            gate(self.root, step).touch()
        with pytest.raises(Cancelled):
            self.train("first")
        assert not self.server.pods
        dying = Dying(self.kept("first"))
        launcher = self.launcher()

        def on_rows(rows: list[Row]) -> None:
            self.said.extend(rows)
            if rows[-1]["step"] == DIES_AT - 1:
                self.lives.append([host.pid for host in hosts(self.run("first"))])
                wait_until_sent(self.run("first"), 15)
                dying.die()

        dying.live(lambda: launch_trainer(self.run("first"), on_rows, launcher=launcher), launcher)
        gate(self.root, DIES_AT).unlink()
        self.result = self.train("second")

    def on_rows(self, machine: str, rows: list[Row]) -> None:
        self.said.extend(rows)
        number = len(self.lives)
        if number < 3 and rows[-1]["step"] == STRIKES[number] - 1:
            self.lives.append([host.pid for host in hosts(self.run(machine))])
            [self.lose, self.preempt, self.cancel][number]()

    def lose(self) -> None:
        wait_until_sent(self.run("first"), 5)
        os.kill(self.lives[-1][1], signal.SIGKILL)
        open_gate(self.root, LOST_AT, is_asked=False)

    def preempt(self) -> None:
        [pods] = self.server.pods.values()
        pods.ask(1)
        open_gate(self.root, PREEMPTED_AT, is_asked=True)

    def cancel(self) -> None:
        open_gate(self.root, CANCELLED_AT, is_asked=True)
        raise Cancelled


@pytest.fixture(scope="module")
def story(build_run: BuildRun, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    emulator = the_emulator()
    root = tmp_path_factory.mktemp("pods")
    with api_server(root / "nodes", problems_of) as (server, address):
        base = short(build_run(PHASE))
        found = Story(root, as_path(f"gs://{BUCKET}/pods"), base, read_json(base.verdict), server, address)
        found.tell()
        yield found
    emulator.forget("pods/")


@pytest.fixture(scope="module")
def shared(build_run: BuildRun) -> tuple[str, list[Row]]:
    """The weights and rows of two processes that see one folder, and that nothing disturbs."""
    run = short(build_run("shared by pods")).but(execution=ON_TWO)
    result = launch_trainer(run, lambda rows: None, launcher=LocalLauncher(2))
    return result["params_digest"], rows_of(run)


def test_the_weights_and_rows_are_those_of_hosts_with_one_folder(story: Story, shared: tuple[str, list[Row]]):
    assert (story.result["params_digest"], rows_of(story.run("second"))) == shared


def test_what_happened_is_in_the_events(story: Story):
    lost, preempted, restart, cancelled, resumed, after = read_events(story.run("second").output)
    assert (lost["kind"], lost["step"]) == ("restart", 5)
    assert re.search(r"host 1 \(phasewise-\w+-slice-0-1-x\w+\) was ended by SIGKILL", lost["text"])
    assert (preempted["kind"], restart["kind"], restart["step"]) == ("preempted", "restart", PREEMPTED_AT)
    assert (cancelled["kind"], resumed["kind"], resumed["step"]) == ("preempted", "resumed", CANCELLED_AT), "cancelled: all is saved"
    assert (after["kind"], after["step"]) == ("resumed", 15), "from what was sent and committed before its launcher died"
    assert len(set(map(tuple, story.lives))) == len(STRIKES)


def test_the_pods_of_the_launcher_that_died_are_gone_and_each_life_is_in_the_logs(story: Story):
    """Whether they see first that another launch has the work, or are deleted first, differs from time to time."""
    logs = [log_of(Path(story.run("second").output), number).read_text() for number in (0, 1)]
    for number, log in enumerate(logs):
        assert log.count(f"host {number} of 2 (") == len(STRIKES) + 1, "each life once"
    assert not story.server.jobsets
    assert not story.server.pods


def test_the_last_launcher_has_the_last_checkpoints_whole_and_no_pod_had_them(story: Story):
    folder = Path(story.run("second").output)
    steps = saved_steps(folder / "checkpoints")
    assert steps[-1] == story.base.stop_step
    assert [find_damage(folder / "checkpoints" / str(step)) for step in steps] == [None] * len(steps)
    of_pods = list((story.root / "nodes").glob(f"pods/*/scratch/phasewise/*/host/runs/*/{PHASE}/checkpoints/{steps[-1]}"))
    assert len(of_pods) == 2
    assert not any(map(has_its_files, of_pods))


def test_nothing_of_the_launches_is_left_on_the_store(story: Story):
    head, _ = story.kept("second").head.read()
    assert head.launch == ""
    assert not [name for name in the_emulator().storage.objects[BUCKET] if name.startswith("pods/runs/") and "/launches/" in name]
