"""Two hosts that share nothing but the store: a run is lost with one of them, preempted, and ends as on a common folder, bit for bit.

The hosts, their connections, trainers and folders are real; the store is the emulator. Trainers wait where they are struck
(`tests.trainer.gated`). What goes wrong between hosts and store is tried without trainers in `test_host_faults`.
"""

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from phasewise.tasks.store.keeping import keeping
from phasewise.tasks.store.publisher import Kept
from phasewise.tasks.training.launcher import launch_trainer
from phasewise.tasks.training.local import LocalLauncher
from phasewise.tasks.training.protocol import log_of
from phasewise.tasks.training.tpu_vm.launcher import TpuVmLauncher, Workers
from phasewise.trainer.base.code_digest import HOUSE
from phasewise.trainer.base.identity import write_sealed
from phasewise.trainer.base.storage import as_path, read_json
from phasewise.trainer.checkpoints.files import find_damage, has_its_files, is_committed, saved_steps
from phasewise.trainer.config import RunConfig
from phasewise.trainer.events import read_events
from phasewise.trainer.metrics import Row
from tests.ports import free_port
from tests.stores.emulator import BUCKET, the_emulator
from tests.tasks.training.conftest import BuildRun
from tests.tasks.training.machines import environment_here
from tests.tasks.training.test_launchers import ASKED, ON_TWO, SAVED_EVERY, hosts, rows_of, short
from tests.tasks.training.tpu_vm.ssh_hosts import SshHosts, ssh_hosts
from tests.trainer.gated import gate, open_gate

pytestmark = [
    pytest.mark.timeout(900),  # a guard against hanging
    pytest.mark.skipif(
        not os.environ.get(ASKED), reason=f"eight trainers one after the other take a minute and a half of a core: set {ASKED}"
    ),
]

RUN_NAME, PHASE = "tiny-proxy", "apart"
LOST_AT, PREEMPTED_AT = 7, 12
PYTHON = """#!/bin/sh
export PYTHONPATH={house}
if [ "$3" = phasewise.trainer ]; then exec {python} -m tests.trainer.gated "$@"; fi
exec {python} "$@"
"""


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

    run: RunConfig
    kept: Kept
    machines: SshHosts
    gates: Path
    verdict: Any
    said: list[Row] = field(default_factory=list)
    lives: list[list[int]] = field(default_factory=list)
    folders: list[list[str]] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)

    def launcher(self) -> TpuVmLauncher:
        python = self.gates / "python"
        python.write_text(PYTHON.format(house=HOUSE.parent, python=sys.executable))
        python.chmod(0o755)
        return TpuVmLauncher(
            Workers(
                slices=(tuple(self.machines.names),),
                python=str(python),
                project=str(HOUSE.parent),
                port=free_port(),
                known_hosts=self.machines.known_hosts,
                key=self.machines.key,
                environment={**environment_here(), **the_emulator().variables, "GATES": str(self.gates)},
            )
        )

    def tell(self) -> None:
        for step in (LOST_AT, PREEMPTED_AT):
            gate(self.gates, step).touch()
        with keeping(self.kept):
            write_sealed(self.run.verdict, self.verdict)
            self.result = launch_trainer(self.run, self.on_rows, launcher=self.launcher())

    def on_rows(self, rows: list[Row]) -> None:
        self.said.extend(rows)
        number = len(self.lives)
        if number < 2 and rows[-1]["step"] == (LOST_AT, PREEMPTED_AT)[number] - 1:
            self.lives.append([host.pid for host in hosts(self.run)])
            self.folders.append([self.checkpoints_of(host) for host in (0, 1)])
            wait_until_sent(self.run, rows[-1]["step"] // SAVED_EVERY * SAVED_EVERY)
            os.kill(self.lives[-1][1], (signal.SIGKILL, signal.SIGTERM)[number])
            open_gate(self.gates, (LOST_AT, PREEMPTED_AT)[number], is_asked=number == 1)

    def checkpoints_of(self, host: int) -> str:
        found = sorted((self.machines.folder / f"host-{host}").glob(f".cache/phasewise/*/host/runs/*/{PHASE}/checkpoints/[0-9]*"))
        return " ".join(path.name for path in found)


def wait_until_sent(run: RunConfig, step: int) -> None:
    """Until the launcher has the list of this checkpoint, which it has when all hosts have sent their shares: rows come before."""
    until = time.monotonic() + 120.0
    while not is_committed(Path(run.output) / "checkpoints" / str(step)):
        assert time.monotonic() < until, f"checkpoint {step} was not sent"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def story(build_run: BuildRun, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    emulator = the_emulator()
    root = tmp_path_factory.mktemp("launcher")
    store = f"gs://{BUCKET}/hosts"
    kept = Kept(root / "work", as_path(store), RUN_NAME)
    run = short(build_run(PHASE)).but(
        execution=ON_TWO,
        output=str(kept.work / "runs" / RUN_NAME / PHASE),
        verdict=str(kept.work / "verdicts" / RUN_NAME / PHASE / "data.json"),
    )
    with ssh_hosts(root, 2) as machines:
        (root / "gates").mkdir()
        found = Story(run, kept, machines, root / "gates", read_json(build_run(PHASE).verdict))
        found.tell()
        yield found
    emulator.forget("hosts/")


@pytest.fixture(scope="module")
def shared(build_run: BuildRun) -> tuple[str, list[Row]]:
    """The weights and rows of two processes that see one folder, and that nothing disturbs."""
    run = short(build_run("shared")).but(execution=ON_TWO)
    result = launch_trainer(run, lambda rows: None, launcher=LocalLauncher(2))
    return result["params_digest"], rows_of(run)


def test_the_weights_and_rows_are_those_of_hosts_with_one_folder(story: Story, shared: tuple[str, list[Row]]):
    assert (story.result["params_digest"], rows_of(story.run)) == shared
    assert {row["step"] for row in story.said} == {row["step"] for row in shared[1]}


def test_the_host_that_is_lost_is_named_and_the_run_goes_on_from_what_was_sent(story: Story):
    lost, preempted, restart = read_events(story.run.output)
    assert (lost["kind"], lost["step"]) == ("restart", 5)
    assert re.search(r"host 1 \(127\.0\.0\.1:\d+\) was ended by SIGKILL", lost["text"])
    assert (preempted["kind"], restart["kind"], restart["step"]) == ("preempted", "restart", PREEMPTED_AT)
    assert len(set(map(tuple, story.lives))) == 2


def test_the_launcher_has_the_last_checkpoints_whole_and_the_logs_of_all(story: Story):
    folder = Path(story.run.output)
    steps = saved_steps(folder / "checkpoints")
    assert steps[-1] == story.run.stop_step
    assert [find_damage(folder / "checkpoints" / str(step)) for step in steps] == [None] * len(steps)
    assert all(b"host" in log_of(folder, number).read_bytes() for number in (0, 1))


def test_no_host_had_the_files_of_the_other(story: Story):
    homes = [story.machines.folder / f"host-{host}" for host in (0, 1)]
    found = [next(home.glob(f".cache/phasewise/*/host/runs/*/{PHASE}/checkpoints/{story.run.stop_step}")) for home in homes]
    assert not any(map(has_its_files, found))


def test_nothing_of_the_launches_is_left_on_the_store(story: Story):
    head, _ = story.kept.head.read()
    names = [name for name in the_emulator().storage.objects[BUCKET] if name.startswith("hosts/runs/")]
    assert head.launch == ""
    assert not [name for name in names if "/launches/" in name]
    other = Kept(story.machines.folder / "other", story.kept.store, RUN_NAME)
    other.look(checkpoints=True)
    listed = {path.name for path in (other.work / "runs" / RUN_NAME / PHASE).iterdir()}
    assert {"metrics.jsonl", "events.jsonl", "result.json", "checkpoints", "trainer.log", "trainer-1.log"} <= listed
