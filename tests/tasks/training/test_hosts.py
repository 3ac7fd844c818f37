"""Hosts without a shared folder: two real trainers on the emulator, and what goes wrong between hosts, their launcher and the store.

In the fault tests no trainer works: a test writes what trainers would.
"""

import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from phasewise.tasks.store.content import Objects
from phasewise.tasks.store.publisher import Kept, Publisher, keeping, named_digests
from phasewise.tasks.training import hosts as program
from phasewise.tasks.training.attempts import SliceSegment, launch_trainer
from phasewise.tasks.training.hosts import Committer, HostWork, RemoteFolder, start_remote, take_back
from phasewise.tasks.training.jobset import exit_code
from phasewise.tasks.training.launchers import LocalLauncher
from phasewise.trainer.base.errors import ConfigError, TakenOver
from phasewise.trainer.base.identity import HOUSE, write_sealed
from phasewise.trainer.base.run_folder import RunFolder, read_events
from phasewise.trainer.base.storage import as_path, put_file, read_json, write_atomically, write_json
from phasewise.trainer.checkpoints.files import digests_here, find_damage, remove_checkpoint, saved_steps, write_digests
from phasewise.trainer.checkpoints.shards import united
from phasewise.trainer.metrics import Row
from tests.stores.emulator import BUCKET, the_emulator
from tests.tasks.training.conftest import BuildRun, rows_of, short, until
from tests.tasks.training.machines import machines_of
from tests.trainer.gated import gate, open_gate

RUN_NAME, PHASE = "tiny-proxy", "apart"
HOUR = 3600.0
LOST_AT = 7
ON_TWO = {"mesh": {"fsdp": 2}}
PYTHON = f"""#!/bin/sh
export PYTHONPATH={HOUSE.parent}
if [ "$3" = phasewise.trainer ]; then exec {sys.executable} -m tests.trainer.gated "$@"; fi
exec {sys.executable} "$@"
"""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    monkeypatch.setenv("PHASEWISE_PUBLISH_SECONDS", "0.2")
    monkeypatch.setattr("phasewise.tasks.training.attempts.BACKOFF_SECONDS", 0.01)
    monkeypatch.setattr("phasewise.tasks.training.attempts.POLL_SECONDS", 0.02)


@pytest.mark.long
@pytest.mark.timeout(600)  # a guard against hanging
@pytest.mark.parametrize("kind", ["tpu_vm", "jobset"])
def test_two_hosts_on_a_store_of_which_one_is_lost_train_bit_for_bit(build_run: BuildRun, tmp_path: Path, quick: None, kind: str):
    kept = Kept(tmp_path / "work", as_path(f"gs://{BUCKET}/{kind}"), RUN_NAME)
    verdict = str(kept.work / "verdicts" / RUN_NAME / PHASE / "data.json")
    run = short(build_run(PHASE), 12).but(execution=ON_TWO, output=str(kept.work / "runs" / RUN_NAME / PHASE), verdict=verdict)
    folder, gates, lost = RunFolder(run.output), tmp_path / "gates", list[int]()
    gates.mkdir()
    gate(gates, LOST_AT).touch()

    def lose(rows: list[Row]) -> None:
        if not lost and rows[-1]["step"] == LOST_AT - 1:
            meeting = max((kept.store / "runs" / RUN_NAME / "launches").glob("*"), key=str)
            lost.append(read_json(meeting / "1.json")["pid"])
            until(lambda: folder.checkpoint(5).exists())
            os.kill(lost[0], signal.SIGKILL)
            open_gate(gates, LOST_AT, is_asked=False)

    python = gates / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    variables = {**the_emulator().variables, "GATES": str(gates), "PHASEWISE_PUBLISH_SECONDS": "0.2"}
    with machines_of(kind, tmp_path, python, **variables) as machines, keeping(kept):
        write_sealed(run.verdict, read_json(build_run(PHASE).verdict))
        result = launch_trainer(run, lose, segments=[SliceSegment(run, machines.launcher())])
    shared = short(build_run("shared"), 12).but(execution=ON_TWO)
    undisturbed = launch_trainer(shared, lambda rows: None, segments=[SliceSegment(shared, LocalLauncher(2))])
    assert result["params_digest"] == undisturbed["params_digest"]
    assert rows_of(run) == rows_of(shared)
    [event] = read_events(run.output)
    assert (event["kind"], event["step"]) == ("restart", 5)
    assert "host 1 (" in event["text"]
    assert "was ended by SIGKILL" in event["text"]
    assert "host 1 of 2 (" in folder.log(1).read_text()
    steps = saved_steps(folder.checkpoints)
    assert steps[-1] == run.stop_step
    assert [find_damage(folder.checkpoint(step)) for step in steps] == [None] * len(steps)
    head, _ = kept.head.read()
    assert head.launch == ""
    assert {path.name for path in kept.objects.folder.iterdir()} == named_digests(head.files, kept.objects)
    assert not list((kept.store / "runs" / RUN_NAME / "launches").glob("*"))
    the_emulator().forget(f"{kind}/")


@dataclass
class Launch:
    root: Path
    store: Path
    name: str = "launch-1"
    hosts: int = 2
    committer: Any = None

    @property
    def kept(self) -> Kept:
        return Kept(self.root / "launcher", self.store, RUN_NAME)

    @property
    def run(self) -> RunFolder:
        return RunFolder(self.kept.work / "runs" / RUN_NAME / PHASE)

    def work(self, host: int) -> HostWork:
        kept = Kept(self.root / f"host-{host}", self.store, RUN_NAME)
        return HostWork(kept, PHASE, str(self.kept.work), self.name, host, self.hosts)

    def __enter__(self) -> "Launch":
        self.publisher = Publisher(self.kept, every_seconds=HOUR).__enter__()
        self.publisher.lend(self.name)
        for host in range(self.hosts):
            self.work(host).run.path.mkdir(parents=True, exist_ok=True)
        self.committer = Committer(self.work(0))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.committer.finish()
            take_back(self.publisher, self.run, needs_weights=True)
        self.publisher.__exit__(kind)

    def train_to(self, step: int, *, same: str = "", uploads: bool = True) -> None:
        """What the trainers write and upload; `same` is content of the first host's shard that other checkpoints have, too."""
        folders = [self.work(host).run for host in range(self.hosts)]
        rows = b"".join(json.dumps({"step": number, "loss": 1 / number}).encode() + b"\n" for number in range(1, step + 1))
        write_atomically(folders[0].metrics, rows)
        for host, folder in enumerate(folders):
            text = same if host == 0 and same else f"weights {step} of host {host}"
            write_atomically(folder.checkpoint(step) / "state" / "weights" / str(host), text.encode() * 1000)
        shares = [digests_here(folder.checkpoint(step)) for folder in folders]
        for folder, share in zip(folders, shares, strict=True):
            for name, (_, digest) in share.items() if uploads else ():
                put_file(folder.checkpoint(step) / name, self.kept.objects.folder / digest)
        for folder in folders:
            write_digests(folder.checkpoint(step), united(folder.checkpoint(step), shares))
        write_json(folders[0].heartbeat, {"step": step})

    def committed(self) -> list[int]:
        head, _ = self.kept.head.read()
        return sorted(int(name.split("/")[-2]) for name in head.files if "/checkpoints/" in name)

    def is_whole_elsewhere(self, step: int) -> bool:
        other = Kept(self.root / f"other-{step}", self.store, RUN_NAME)
        other.look(weights_below="")
        return find_damage(other.work / "runs" / RUN_NAME / PHASE / "checkpoints" / str(step)) is None


@pytest.fixture(autouse=True)
def rarely(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "quick" not in request.fixturenames:
        monkeypatch.setattr(program, "MAX_COMMIT_SECONDS", HOUR)
        monkeypatch.setenv("PHASEWISE_PUBLISH_SECONDS", str(HOUR))


@pytest.mark.parametrize("hosts", [1, 2])
def test_the_swap_of_the_head_commits_a_checkpoint_which_comes_to_the_launcher_whole(gcs: Path, tmp_path: Path, hosts: int):
    with Launch(tmp_path, gcs, hosts=hosts) as launch:
        launch.train_to(5, uploads=hosts > 1)
        assert launch.committed() == []
        launch.committer.commit()
        assert launch.committed() == [5]
        assert launch.is_whole_elsewhere(5)
        write_json(launch.run.life, {"of": "the launcher"})
        write_sealed(launch.work(0).run.result, {"step": 5})
    assert find_damage(launch.run.checkpoint(5)) is None
    assert len(launch.run.metrics.read_text().splitlines()) == 5
    assert launch.run.life.exists(), "files that the launcher writes meanwhile stay"
    head, _ = launch.kept.head.read()
    assert {path.name for path in launch.kept.objects.folder.iterdir()} == named_digests(head.files, launch.kept.objects)


def test_a_launcher_follows_commits_and_heartbeat_and_reports_a_silent_store_once(
    gcs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    with Launch(tmp_path, gcs) as launch:
        attempt: Any = SimpleNamespace(name=launch.name, folder=launch.run.path)
        monkeypatch.setenv("PHASEWISE_PUBLISH_SECONDS", "0.01")
        launcher = RemoteFolder(launch.publisher, attempt)
        for step in (5, 10):
            launch.train_to(step)
            launch.committer.commit()
            until(launch.run.checkpoint(step).exists)
            until(lambda step=step: launch.run.heartbeat.exists() and read_json(launch.run.heartbeat) == {"step": step})
            os.utime(launch.run.heartbeat, (0, 0))
            the_emulator().faults.refuse(method="GET", status=403, times=10)
            until(lambda: not the_emulator().faults.waiting)
            until(lambda: launch.run.heartbeat.stat().st_mtime > 0)
        launcher.take_back(needs_weights=True)
    assert caplog.text.count("cannot be read at the moment") == 2


def test_a_launcher_that_is_killed_loses_nothing_that_the_hosts_committed(gcs: Path, tmp_path: Path):
    launch = Launch(tmp_path, gcs).__enter__()
    launch.train_to(5)
    launch.committer.commit()
    launch.train_to(10)
    write_sealed(launch.work(0).run.result, {"step": 10})
    launch.committer.finish()  # the hosts outlive their launcher, which does nothing any more
    for root in (tmp_path / "another machine", tmp_path):
        with Launch(root, gcs, name="launch-2") as second:
            assert second.committed() == [5, 10]
            assert find_damage(second.run.checkpoint(10)) is None
            assert second.run.result.exists()


def test_hosts_that_were_shut_out_commit_nothing(gcs: Path, tmp_path: Path):
    old = Launch(tmp_path, gcs).__enter__()
    old.train_to(5)
    old.committer.commit()
    with Launch(tmp_path / "new", gcs, name="launch-2") as new:
        head = new.kept.head.read()
        old.train_to(7)
        with pytest.raises(TakenOver, match="is another's"):
            old.committer.commit()
        with pytest.raises(TakenOver, match="is another's"):
            take_back(old.publisher, old.run, needs_weights=True)
        assert new.kept.head.read() == head
        with pytest.raises(TakenOver, match=r"host 1 of the launch launch-1: expected its launch in .* found 'launch-2'"):
            old.work(1).download()
        new.train_to(10)
        new.committer.commit()
        assert new.committed() == [5, 10]


@pytest.mark.parametrize("sent", ["before the look", "after the look"])
def test_content_uploaded_again_outlives_its_old_checkpoint(gcs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: str):
    with Launch(tmp_path, gcs) as launch:
        launch.train_to(5, same="as in all")
        launch.committer.commit()
        for host in (0, 1):
            remove_checkpoint(launch.work(host).run.checkpoint(5))
        versions = Objects.versions

        def seen_and_sent(objects: Objects, digests: set[str]) -> dict[str, str]:
            monkeypatch.setattr(Objects, "versions", versions)
            if sent == "before the look":
                launch.train_to(10, same="as in all")
            found = versions(objects, digests)
            if sent == "after the look":
                launch.train_to(10, same="as in all")
            return found

        monkeypatch.setattr(Objects, "versions", seen_and_sent)
        launch.committer.commit()
        launch.committer.commit()
        assert launch.committed() == [10]
        assert launch.is_whole_elsewhere(10)


def test_a_late_host_and_a_phase_that_rolls_back_begin_nothing(
    gcs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    launch = Launch(tmp_path, gcs)
    attempt: Any = SimpleNamespace(run=SimpleNamespace(phase=PHASE, recovery="roll back"))
    with Publisher(launch.kept, every_seconds=HOUR) as publisher:
        before = launch.kept.head.read()
        with pytest.raises(ConfigError, match="rolls back where its loss jumps"):
            start_remote(publisher, attempt, lambda kept: pytest.fail("started"))
        assert launch.kept.head.read() == before
    given = {"PHASEWISE_LAUNCH": "launch-1", "JAX_PROCESS_ID": "0", "JAX_NUM_PROCESSES": "2", "PHASEWISE_SCRATCH": str(tmp_path)}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(program, "Stop", lambda: SimpleNamespace())
    with Publisher(Kept(tmp_path / "launcher", gcs, RUN_NAME), every_seconds=HOUR):
        assert program.main([str(gcs), RUN_NAME, PHASE, "/launcher"]) == TakenOver.exit_code
    assert "It begins nothing" in capsys.readouterr().err


@pytest.mark.parametrize(("code", "shown"), [(-9, 137), (-6, 134), (75, 75), (0, 0)])
def test_a_host_ends_by_the_code_of_the_signal_that_ended_its_trainer(monkeypatch: pytest.MonkeyPatch, code: int, shown: int):
    monkeypatch.setattr(program.os, "kill", lambda *_: None)  # the first process of a container is not ended by its own signal
    monkeypatch.setattr(program.signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        program.end_as(code)
    assert ended.value.code == shown
    assert exit_code({"status": {"containerStatuses": [{"state": {"terminated": {"exitCode": shown}}}]}}) == code
