"""Every state of a phase, with real locks in real processes that are killed; and the home in which these states lie."""

import asyncio
import fcntl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from phasewise.tasks import phase_state
from phasewise.tasks import phase_state as module
from phasewise.tasks.home import DEFAULT_HOME, Home
from phasewise.tasks.locks import LEASE_VARIABLE
from phasewise.trainer.base.errors import ConfigError, TrainingError, VerdictError
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.storage import is_locked, write_atomically
from tests.stores.emulator import the_emulator
from tests.stores.fixtures import FaultyStore

RUN, PHASE = "tiny-proxy", "kestrel"
SUBMITTED = datetime(2020, 1, 1, tzinfo=UTC)
WORKER = """if True:
    import sys
    from phasewise.tasks.home import Home
    from phasewise.tasks.phase_state import State, enter_stage, working
    home, held = Home.at(sys.argv[1]), sys.argv[2]
    with home.held("a run", queues=tuple(sys.argv[3:])) if held == "home" else working(home, "tiny-proxy", "kestrel", "a flow"):
        print("held", flush=True)
        for word in map(str.strip, sys.stdin):
            enter_stage(home, "tiny-proxy", "kestrel", State(word))
            print(word, flush=True)
"""
TRAINER = """if True:
    import sys
    from pathlib import Path
    from phasewise.trainer.process.watchdog import only_one_trainer
    with only_one_trainer(Path(sys.argv[1])):
        print("held", flush=True)
        sys.stdin.read()
"""


class Worker:
    def __init__(self, *command: object) -> None:
        words = [sys.executable, "-c", *map(str, command)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.reads() == "held"

    def reads(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def enters(self, state: phase_state.State) -> None:
        assert self.process.stdin
        print(state, file=self.process.stdin, flush=True)
        assert self.reads() == state

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def worker(*command: object) -> Iterator[Worker]:
    found = Worker(*command)
    try:
        yield found
    finally:
        found.kill()


def now(
    home: Home, settled: phase_state.State = phase_state.State.NOT_STARTED, **options: tuple[str, phase_state.State]
) -> phase_state.PhaseState:
    return phase_state.state_now(
        home, RUN, PHASE, phase_state.PhaseState(state=settled, stop_step=40), work=phase_state.read_work(home, RUN, PHASE), **options
    )


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """With a run that trained 12 of 40 steps and saved 10."""
    folder = RunFolder(Home(tmp_path).run(RUN, PHASE))
    folder.checkpoint(10).mkdir(parents=True)
    (folder.checkpoint(10) / "digests.json").write_text("{}")
    folder.metrics.write_text("".join(f'{{"step": {step}, "loss": NaN, "step_seconds": 0.5}}\n' for step in range(1, 13)) + '{"step": 13')
    return Home(tmp_path)


def test_a_live_process_decides_the_state_until_it_is_killed(home: Home) -> None:
    assert now(home).state == phase_state.State.NOT_STARTED
    with worker(WORKER, home.root, "phase") as flow:
        assert now(home).state == phase_state.State.PREPARING, "it has not said its first stage yet"
        for settled in (
            phase_state.State.NOT_STARTED,
            phase_state.State.INTERRUPTED,
            phase_state.State.OUTDATED,
            phase_state.State.REFUSED,
        ):
            for state in phase_state.AT_WORK[1:]:
                flow.enters(state)
                assert now(home, settled).state == state
        flow.enters(phase_state.State.PREPARING)
        assert [now(home, settled).state for settled in phase_state.JUDGED] == list(phase_state.JUDGED), (
            "a finished phase stays finished until it is done again"
        )
        flow.enters(phase_state.State.TRAINING)
        assert now(home).words == "training: step 12 of 40, about 14 s left"
        flow.kill()
        assert now(home).words == "interrupted: while training; it resumes from step 10"
        assert now(home, phase_state.State.DONE).state == phase_state.State.DONE
    with worker(WORKER, home.root, "phase") as flow:
        assert now(home).state == phase_state.State.PREPARING, "the stage of a killed process is not the next one's"
        flow.enters(phase_state.State.CHECKING_DATA)
        flow.kill()
    assert now(home).why == "while checking data; it resumes from step 10"
    phase_state.enter_stage(home, RUN, PHASE, phase_state.State.PREPARING, submitted=SUBMITTED)
    stages = phase_state.read_stages(home.stage_log(RUN, PHASE))
    assert [one.state for one in stages[-5:]] == [
        phase_state.State.TRAINING,
        None,
        phase_state.State.CHECKING_DATA,
        None,
        phase_state.State.PREPARING,
    ]
    assert [one.why for one in stages if one.state is None] == [phase_state.CUT_SHORT] * 2, (
        "the next process ends the stages of a killed one"
    )


def test_a_run_queues_its_phases_with_the_lock_of_the_home(home: Home) -> None:
    trial, *others = (f"stages/{RUN}/{name}.json" for name in ("kestrel-trial", "another", PHASE))
    with worker(WORKER, home.root, "phase") as flow:
        flow.enters(phase_state.State.TRAINING)
    with worker(WORKER, home.root, "home", trial):
        assert now(home).state == phase_state.State.INTERRUPTED
        assert now(replace(home, trials=((PHASE, "kestrel-trial"),))).state == phase_state.State.QUEUED
    with worker(WORKER, home.root, "home", *others) as run:
        assert now(home).state == phase_state.State.QUEUED, "the run did not write a stage yet"
        assert now(home, phase_state.State.DONE).state == phase_state.State.DONE
        run.enters(phase_state.State.TRAINING)
        assert now(home).state == phase_state.State.TRAINING
    assert now(home).state == phase_state.State.INTERRUPTED


def test_the_log_has_each_stage_from_the_submission_to_the_end_of_the_work(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    phase_state.enter_stage(home, RUN, PHASE, phase_state.State.QUEUED)
    phase_state.enter_stage(home, RUN, PHASE, phase_state.State.PREPARING, submitted=SUBMITTED)
    with suppress(TrainingError), phase_state.working(home, RUN, PHASE, "a flow"):
        phase_state.enter_stage(home, RUN, PHASE, phase_state.State.TRAINING, submitted=SUBMITTED)
        raise TrainingError("the disk is full")
    with phase_state.working(home, RUN, PHASE, "a flow"):
        phase_state.enter_stage(home, RUN, PHASE, phase_state.State.GATING)
    found = [(one.state, one.why) for one in phase_state.read_stages(home.stage_log(RUN, PHASE))]
    failed = [(phase_state.State.TRAINING, ""), (phase_state.State.TRAINING, "the disk is full"), (None, phase_state.CUT_SHORT)]
    assert found == [(phase_state.State.QUEUED, ""), (phase_state.State.PREPARING, ""), *failed, (phase_state.State.GATING, ""), (None, "")]
    assert phase_state.read_stages(home.stage_log(RUN, PHASE))[0].since == SUBMITTED.isoformat(timespec="milliseconds")
    monkeypatch.setattr(module, "SIGN_SECONDS", 0.01)
    phase_state.enter_stage(home, RUN, PHASE, phase_state.State.TRAINING)
    stage = phase_state.read_stages(home.stage_log(RUN, PHASE))[-1]
    tries = (time.sleep(0.01) for _ in range(500))
    assert any(phase_state.last_sign(home, RUN, PHASE, stage) > stage.since for _ in tries), "a process at work touches its stage"
    phase_state.enter_stage(home, RUN, PHASE, None)


def test_readers_take_no_lock_away_and_do_not_see_each_other(home: Home) -> None:
    place, stops = home.stage(RUN, PHASE).with_suffix(".lock"), threading.Event()
    with phase_state.working(home, RUN, PHASE, "a flow"):
        pass
    with open(place) as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        assert not is_locked(place), "a reader is no holder"

    def read() -> None:
        while not stops.is_set():
            is_locked(place)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for one in readers:
        one.start()
    for _ in range(50):
        with phase_state.working(home, RUN, PHASE, "a flow"):  # refuses a held lock
            assert is_locked(place)
    stops.set()
    for one in readers:
        one.join()


def test_a_trainer_that_outlives_its_flow_still_trains(home: Home) -> None:
    with worker(WORKER, home.root, "phase") as flow, worker(TRAINER, home.run(RUN, PHASE)) as trainer:
        flow.enters(phase_state.State.TRAINING)
        flow.kill()
        assert now(home).why.endswith("its flow ended, and the trainer stops")
        trainer.kill()
        assert now(home).state == phase_state.State.INTERRUPTED


def test_a_phase_waits_in_the_queue_of_a_living_command_and_for_a_parent_at_work(home: Home) -> None:
    with worker(WORKER, home.root, "home") as command:
        command.enters(phase_state.State.QUEUED)
        assert now(home, phase_state.State.OUTDATED).state == phase_state.State.QUEUED
        assert now(home, phase_state.State.DONE, parent=("bison", phase_state.State.TRAINING)).state == phase_state.State.DONE
        waits = now(home, phase_state.State.OUTDATED, parent=("bison", phase_state.State.TRAINING))
        assert waits.words == "waiting for a parent: bison is training"
        command.kill()
    assert now(home, phase_state.State.OUTDATED).state == phase_state.State.OUTDATED
    with home.held("another run"):
        assert now(home).state == phase_state.State.NOT_STARTED, "another process holds the home"
    phase_state.enter_stage(home, RUN, PHASE, phase_state.State.WAITS_FOR_PARENT, why="bison is refused")
    assert now(home, parent=("bison", phase_state.State.REFUSED)).state == phase_state.State.WAITS_FOR_PARENT
    assert now(home, parent=("bison", phase_state.State.DONE)).state == phase_state.State.NOT_STARTED


def test_an_error_interrupts_and_a_refusal_ends(home: Home) -> None:
    def works(error: Exception) -> None:
        with suppress(type(error)), phase_state.working(home, RUN, PHASE, "a flow"):
            phase_state.enter_stage(home, RUN, PHASE, phase_state.State.TRAINING)
            with phase_state.working(home, RUN, PHASE, "a flow within it"):
                pass
            assert now(home).state == phase_state.State.TRAINING
            raise error

    works(TrainingError("the disk is full\nmore"))
    assert now(home).why == "while training; the disk is full; it resumes from step 10"
    works(VerdictError("the loss is NaN"))
    assert now(home, phase_state.State.REFUSED).state == phase_state.State.REFUSED
    home.stage(RUN, PHASE).write_text("{")
    assert now(home).state == phase_state.State.NOT_STARTED


def test_results_without_a_process() -> None:
    assert phase_state.settle(None, is_complete=True, is_outdated=False, is_begun=True) == phase_state.State.DONE
    for stopped in (phase_state.State.REFUSED, phase_state.State.WAITS_FOR_PERSON):
        assert phase_state.settle(stopped, is_complete=False, is_outdated=True, is_begun=True) == stopped
    assert phase_state.settle(None, is_complete=False, is_outdated=True, is_begun=True) == phase_state.State.OUTDATED
    assert phase_state.settle(None, is_complete=False, is_outdated=False, is_begun=True) == phase_state.State.INTERRUPTED
    assert phase_state.settle(None, is_complete=False, is_outdated=False, is_begun=False) == phase_state.State.NOT_STARTED


def test_on_a_store_the_heartbeat_of_the_lease_decides(gcs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LEASE_VARIABLE, "60")
    home = Home.at(str(gcs))
    with home.held("a run"), phase_state.working(home, RUN, PHASE, "a flow"):
        phase_state.enter_stage(home, RUN, PHASE, phase_state.State.EVALUATING)
        assert now(home).state == phase_state.State.EVALUATING
        the_emulator().describe(home.run_lock)["updated"] = "2020-01-01T00:00:00+00:00"
        assert now(home).why == "while evaluating; it starts again"
    assert now(home).state == phase_state.State.NOT_STARTED


def test_the_home_is_made_and_option_comes_before_environment_and_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for text in (str(tmp_path / "a" / "b"), (tmp_path / "c").as_uri()):
        home = Home.open(text)
        assert home.root.is_dir()
        assert list(home.root.iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"a", "c"}
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PHASEWISE_HOME", raising=False)
    assert Home.open(None).root == tmp_path / DEFAULT_HOME
    monkeypatch.setenv("PHASEWISE_HOME", "from-environment")
    assert (Home.open(None).root, Home.open("from-option").root) == (tmp_path / "from-environment", tmp_path / "from-option")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Home.open("~/mine").root == tmp_path / "mine"


def test_a_place_under_a_file_is_refused_and_a_home_that_is_only_looked_at_is_not_made(tmp_path: Path, gcs: Path):
    (tmp_path / "file").write_text("in the way")
    for below in ("", "deep/er"):
        with pytest.raises(ConfigError, match=r"/file.* cannot be written: .*Choose another with --home or PHASEWISE_HOME") as refusal:
            Home.open(str(tmp_path / "file" / below))
        assert (str(tmp_path / "file") in str(refusal.value), refusal.value.exit_code) == (True, 2)
        with pytest.raises(ConfigError, match=r"cannot be read: .*Choose another with --home or PHASEWISE_HOME"):
            Home.at(str(tmp_path / "file" / below), reads_only=True)
    for place in (tmp_path / "a" / "b", gcs):
        home = Home.at(str(place), reads_only=True)
        assert (home.root, home.reads_only, home) == (place, True, Home.open(str(place)))
    for place in (tmp_path / "c", gcs / "c"):
        Home.at(str(place), reads_only=True)
        assert not place.exists()


def test_a_home_on_a_store_has_the_same_layout_there(gcs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    home = Home.open(f"{gcs}/")
    key = "0123456789abcdef"
    assert not home.root.exists()  # the question whether it can be written leaves nothing behind
    assert str(home.tokens("web", "train", key)) == f"{gcs}/tokens/web/train-{key}"
    write_atomically(home.tokens("web", "train", key) / "manifest.json", b"{}")
    assert [path.name for path in Home.open(str(home.root)).root.iterdir()] == ["tokens"]
    assert home.prefect.is_relative_to(tmp_path)
    assert home.prefect != Home.open(f"{gcs}/other").prefect
    monkeypatch.setenv("PHASEWISE_SCRATCH", str(tmp_path / "scratch"))
    far, here = Home.open(str(gcs)), Home.open(str(tmp_path / "home"))
    assert far.exporting.is_relative_to(tmp_path / "scratch")
    assert here.exporting.is_relative_to(here.root)


def test_a_store_that_is_missing_or_forbids_or_has_no_locks_is_refused(faulty_store: FaultyStore):
    for url in ("s3://bucket", "memory://home", "https://host/home"):
        with pytest.raises(ConfigError, match=rf"must be a local folder or a gs:// URL, found {url}"):
            Home.open(url)
    with pytest.raises(ConfigError, match="the home gs://no-such-bucket/home cannot be written: there is no such bucket"):
        Home.open("gs://no-such-bucket/home")
    faulty_store.faults.refuse(method="POST", status=403)
    with pytest.raises(ConfigError, match=rf"the home {faulty_store.root} cannot be written: Forbidden"):
        Home.open(str(faulty_store.root))
    faulty_store.faults.refuse(method="GET", times=100, status=403)
    with pytest.raises(ConfigError, match=rf"the home {faulty_store.root} cannot be read: Forbidden"):
        Home.at(str(faulty_store.root), reads_only=True)


@pytest.mark.parametrize("looks", [Home.open, partial(Home.at, reads_only=True)])
def test_a_store_that_never_answers_is_refused_in_a_bounded_time(faulty_store: FaultyStore, monkeypatch: pytest.MonkeyPatch, looks: Any):
    monkeypatch.setattr("phasewise.tasks.home.PROBE_SECONDS", 0.5)
    faulty_store.faults.refuse(times=1_000_000)
    monkeypatch.setattr("gcsfs.retry.asyncio", asyncio)  # its sleeps are real
    with pytest.raises(ConfigError, match=r"did not answer within 0\.5 seconds"):
        looks(str(faulty_store.root))


def test_one_run_at_a_time_holds_the_home(store: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(LEASE_VARIABLE, "2")
    program = "import sys; from phasewise.tasks.home import Home\n"
    program += "with Home.open(sys.argv[1]).held('x'): print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program, str(store)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(ConfigError, match=r"(another run|x \(process .*\)) is at work in"), Home.open(str(store)).held("this"):
            pass
        other.kill()
    with Home.open(str(store)).held("this"):
        pass


def test_every_thing_has_a_place_of_its_own(tmp_path: Path):
    home, key, run = Home(tmp_path), "0123456789abcdef0123", "marin-8b-proxy"
    keyed = (("documents", "web"), ("tokenizers",), ("benchmarks",), ("evidence", "leakage"), ("evidence", "items"))
    places = [home.sources, home.prefect, home.lock("lock"), *(home.keyed(kind, key, *parts) for kind, *parts in keyed)]
    places += [home.tokens("web", "train", key), home.tokens("web", "held_out", key), home.report(run), home.run(run, "kestrel")]
    places += [*(home.verdict(run, "kestrel", gate) for gate in ("data", "model")), home.tokens("web", "train", f"1{key}")]
    assert len(set(places)) == len(places)
    assert all(tmp_path in place.parents for place in places)
