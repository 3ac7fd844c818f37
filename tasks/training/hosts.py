"""Hosts without a shared file system: `python -m phasewise.tasks.training.hosts HOME RUN_NAME PHASE ROOT [--python PYTHON]`.

A host downloads the run, its rows and its newest checkpoint, trains in its own folder, and ends as its trainer ended. Trainers upload
their shards of a checkpoint themselves. The first host commits: it replaces the head of the work, which makes rows, checkpoints and the
result valid. The store rejects the head of a host that was fenced off. The launcher (`start_remote`) downloads the committed files. It
deletes `runs/RUN/launches/LAUNCH` at its end, which has the heartbeat of the first host's trainer, and the hosts in the rendezvous.
"""

import argparse
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from phasewise.tasks.home import Home
from phasewise.tasks.progress import say
from phasewise.tasks.store import content as stored
from phasewise.tasks.store.publisher import Kept, Publisher, named_digests, publish_seconds
from phasewise.tasks.training.launchers import Attempt, ProcessGroup
from phasewise.trainer.base.errors import ConfigError, ExitCode, PhasewiseError, StorageError, TakenOver, print_refusal, refusal_of
from phasewise.trainer.base.identity import read_sealed, write_sealed
from phasewise.trainer.base.run_folder import HEARTBEAT_NAME, LIFE_NAME, SPENT_NAME, RunFolder
from phasewise.trainer.base.storage import cleaning_up, file_system_of, locked, write_atomically
from phasewise.trainer.checkpoints.files import DIGESTS_NAME, committed_files, has_its_files, remove_checkpoint
from phasewise.trainer.config import RunConfig
from phasewise.trainer.process.child_process import (
    SILENT_VARIABLE,
    STOP_VARIABLE,
    end_with_parent,
    positive_seconds,
    python_command,
    stop_seconds,
)
from phasewise.trainer.process.environment import LAUNCH_VARIABLE
from phasewise.trainer.process.rendezvous import CHECKPOINT_STORE_VARIABLE, JOIN_VARIABLE, RENDEZVOUS_VARIABLE, check_without_shared_folder

SEND_VARIABLE, SEND_SECONDS = "PHASEWISE_SEND_SECONDS", 120.0  # the upload time of a stopping host, after its trainer has saved
JOIN_SECONDS = 1800  # hosts download for different times before their rendezvous
MAX_COMMIT_SECONDS = 5.0
LOOK_SECONDS, FOLLOW_SECONDS = 0.2, 2.0
TRIES = 5
KILLED_BY_SIGNAL = 128
LOCK_DESCRIPTOR = 9  # the shell that started this program holds the lock of the host in this descriptor, and the trainer inherits it
OF_LAUNCHER = (".log", SPENT_NAME, LIFE_NAME)  # suffixes of the files in a run's folder that the launcher writes while hosts train


def send_seconds(environment: Mapping[str, str] = os.environ) -> float:
    """Return the upload time of a stopping host."""
    return positive_seconds(environment, SEND_VARIABLE, SEND_SECONDS)


def launches_folder(kept: Kept) -> Path:
    """Return the folder of the objects of launches."""
    return kept.store / "runs" / kept.run_name / "launches"


class Stopped(BaseException):
    """SIGTERM arrived before the start of the trainer."""


class Stop:
    """Forward SIGTERM and Ctrl-C to the trainer, and count the remaining stop time."""

    def __init__(self) -> None:
        self.trainer: subprocess.Popen[bytes] | None = None
        self._until: float | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def seconds_left(self) -> float:
        """Return the remaining stop time, or 0 without a signal."""
        return 0.0 if self._until is None else max(0.0, self._until - time.monotonic())

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        if self._until is None:
            self._until = time.monotonic() + stop_seconds() + send_seconds()
        if self.trainer is None:
            raise Stopped
        with suppress(ProcessLookupError):
            self.trainer.terminate()


@dataclass(frozen=True)
class HostWork:
    """The work on a phase on this host. Paths in `run.json` are below `launchers_root`, the working folder of the launcher."""

    kept: Kept
    phase: str
    launchers_root: str
    launch: str
    host: int
    hosts: int

    @property
    def folder(self) -> str:
        """The run's folder, below the home."""
        return f"runs/{self.kept.run_name}/{self.phase}"

    @property
    def run(self) -> RunFolder:
        """The run's folder on this host."""
        return RunFolder(self.kept.work / self.folder)

    def download(self) -> RunConfig:
        """Download run, verdict, rows, the newest undamaged checkpoint, and the lists of older checkpoints."""
        kept = self.kept
        head, _ = kept.head.read()
        if head.launch != self.launch:
            raise TakenOver(
                f"host {self.host} of the launch {self.launch}: expected its launch in {kept.head.place}, found "
                f"'{head.launch}' (number {head.number}). It begins nothing."
            )
        folders = (self.folder, f"verdicts/{kept.run_name}/{self.phase}")
        below = tuple(f"{one}/" for one in folders)
        files = {name: pieces for name, pieces in head.files.items() if name.startswith(below) and not name.endswith(OF_LAUNCHER)}
        stored.bring_here(kept.work, folders, files, kept.objects, weights_below=None)
        said = read_sealed(self.run.run_file)
        run = RunConfig.model_validate(_moved(said, self.launchers_root, str(kept.work)))
        if run.digest != RunConfig.model_validate(said).digest:
            raise ConfigError(f"{self.run.run_file} changes its identity with its paths: name its caches by their digests.")
        read = (*run.caches.values(), *(run.evaluation.caches.values() if run.evaluation else ()))
        if unseen := [place for place in read if file_system_of(place) is None and not Path(place).exists()]:
            raise ConfigError(f"{run.phase} reads {unseen[0]}, which this host does not see: keep the caches in the home on the store.")
        is_here = False
        for name in sorted(filter(stored.is_list_of_checkpoint, files), key=lambda name: -int(name.split("/")[-2])):
            listed = kept.work / name
            if is_here:
                write_atomically(listed, kept.objects.content(files[name]))
                continue
            try:
                stored.bring_checkpoint(listed, tuple(files[name]), kept.objects)
                is_here = True
            except StorageError as damage:
                remove_checkpoint(listed.parent)
                print(f"checkpoint {listed.parent} is left out: {damage}", flush=True)
        parents = [run.start.checkpoint, *(graft.checkpoint for graft in run.start.graft)] if run.start and not is_here else []
        for parent in dict.fromkeys(parents):
            listed = Path(parent) / DIGESTS_NAME
            name = os.path.relpath(listed, kept.work)
            if name not in head.files:
                raise StorageError(f"{run.phase} starts from {name}, and the head of {kept.store} does not name it. Start it again.")
            stored.bring_checkpoint(listed, tuple(head.files[name]), kept.objects)
        return run


class Committer:
    """A thread of the first host that commits the trainer's files and uploads its heartbeat. `lost` is set if the host was fenced off."""

    def __init__(self, work: HostWork) -> None:
        self._work, self._kept = work, work.kept
        self._head, self._generation = self._kept.head.read()
        files, sources = stored.take_snapshot(self._kept.work, (work.folder,))
        self._ours, self._content = set(files), set(sources)
        others = {name: pieces for name, pieces in self._head.files.items() if name not in self._ours}
        self._of_others = named_digests(others, self._kept.objects)
        self._unneeded: set[str] = set()
        self._heartbeat = b""
        self.lost: TakenOver | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="commits", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Commit the rest, after the trainer's end."""
        self._ended.set()
        self._thread.join()
        for number in range(TRIES):
            try:
                self.commit()
                return
            except TakenOver:
                raise
            except Exception as error:  # stores have different error types
                if number == TRIES - 1:
                    raise StorageError(f"what host 0 wrote is not on {self._kept.store} yet: {error}") from error

    def commit(self) -> None:
        """Upload content, replace the head, and delete the content of deleted checkpoints."""
        if self.lost:
            raise self.lost
        with suppress(FileNotFoundError):
            if (said := self._work.run.heartbeat.read_bytes()) != self._heartbeat:
                write_atomically(launches_folder(self._kept) / self._work.launch / HEARTBEAT_NAME, said)
                self._heartbeat = said
        ours, sources = stored.take_snapshot(self._kept.work, (self._work.folder,))
        files = {name: pieces for name, pieces in self._head.files.items() if name not in self._ours} | dict(ours)
        if files != self._head.files:
            new = {digest: source for digest, source in sources.items() if digest not in self._content}
            if self._work.hosts > 1:  # the trainers have uploaded their shards
                new = {digest: source for digest, source in new.items() if isinstance(source, bytes)}
            self._kept.objects.send(new)
            head = self._head.followed(files, self._work.launch)
            self._generation = self._kept.head.replace(head, self._generation)
            self._head = head
            self._ours |= ours.keys()
            self._unneeded |= self._content - sources.keys()
            self._content = set(sources)
        self._unneeded -= self._content | self._of_others
        if self._unneeded:
            unneeded, folder = self._kept.objects.versions(self._unneeded), self._work.run.checkpoints
            here = {path.name for path in folder.glob("[!.]*")}
            if here == {name.split("/")[-2] for name in ours if stored.is_list_of_checkpoint(name)}:
                self._kept.objects.delete(unneeded)
                self._unneeded.clear()  # not during a save: a host may have just uploaded the same content again

    def _run(self) -> None:
        reported = ""
        while not self._ended.wait(min(MAX_COMMIT_SECONDS, publish_seconds())):
            try:
                self.commit()
                reported = ""
            except TakenOver as lost:
                self.lost = lost
                return
            except stored.Changing:
                pass
            except Exception as error:  # an unreachable store: the next commit tries again
                if str(error) != reported:
                    print(f"the store does not answer: {error}", flush=True)
                reported = str(error)


class RemoteFolder:
    """A thread of the launcher that downloads the committed files of remote hosts, and the heartbeat."""

    def __init__(self, keeper: Publisher, attempt: Attempt) -> None:
        self._keeper, self._run = keeper, RunFolder(attempt.folder)
        self._heartbeat = launches_folder(keeper.kept) / attempt.name / HEARTBEAT_NAME
        self.send_seconds = send_seconds()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="follows the store", daemon=True)
        self._thread.start()

    def take_back(self, *, needs_weights: bool) -> None:
        """Download the committed files after all hosts have ended."""
        self._ended.set()
        self._thread.join()
        for number in range(TRIES):
            try:
                take_back(self._keeper, self._run, needs_weights=needs_weights)
                return
            except TakenOver:
                raise
            except Exception as error:  # stores have different error types
                if number == TRIES - 1:
                    raise StorageError(
                        f"the hosts have ended, and their commits cannot be read: {error}. Check the store, and start again: "
                        "the run resumes from the last commit."
                    ) from error
                self._ended.wait(number)

    def _follow(self) -> None:
        beat, has_reported = None, False
        while not self._ended.wait(min(FOLLOW_SECONDS, publish_seconds())):
            try:
                if (files := self._keeper.committed_by_hosts()) is not None:
                    download(self._keeper.kept, self._run, files)
                if found := stored.read_version(self._heartbeat, beat):
                    content, beat = found
                    write_atomically(self._run.heartbeat, content)
                has_reported = False
            except TakenOver as lost:
                say(str(lost))
                return
            except Exception as error:  # stores have different error types
                if not has_reported:
                    say(f"what the hosts commit cannot be read at the moment: {error}")
                has_reported = True
                with suppress(OSError):  # it is unknown whether the hosts are silent
                    os.utime(self._run.heartbeat)


def start_remote(keeper: Publisher, attempt: Attempt, begin: Callable[[Kept], ProcessGroup]) -> ProcessGroup:
    """Commit the work, and start the hosts by `begin`. The first host then commits."""
    check_without_shared_folder(attempt.run)
    keeper.lend(attempt.name)
    try:
        hosts = begin(keeper.kept)
        hosts.remote = RemoteFolder(keeper, attempt)
        return hosts
    except BaseException:
        with suppress(TakenOver, StorageError):  # the error of `begin` is raised
            take_back(keeper, RunFolder(attempt.folder), needs_weights=False)
        raise


def take_back(keeper: Publisher, run: RunFolder, *, needs_weights: bool) -> None:
    """Download the committed files, commit from here again, and delete the objects of launches."""
    keeper.take_back(lambda files: download(keeper.kept, run, files, needs_weights=needs_weights))
    folder = launches_folder(keeper.kept)
    store = file_system_of(folder)
    assert store is not None
    for name in store[0].find(store[1]):
        with cleaning_up(folder):
            store[0].rm_file(name)


def download(kept: Kept, run: RunFolder, files: stored.Files, *, needs_weights: bool = False) -> None:
    """Download the committed files of a run without the files of the launcher. Of checkpoints only the lists, unless weights are needed."""
    folder = run.path.relative_to(kept.work).as_posix()
    wanted = {name: tuple(pieces) for name, pieces in files.items() if name.startswith(f"{folder}/") and not name.endswith(OF_LAUNCHER)}
    here = {
        name: stored.digest_of_pieces(path) or () for name, path in stored.kept_names(kept.work, (folder,)) if name.endswith(OF_LAUNCHER)
    }
    stored.bring_here(kept.work, (folder,), wanted | here, kept.objects, weights_below=None)
    for name in filter(stored.is_list_of_checkpoint, wanted):
        listed = kept.work / name
        if not listed.exists():
            write_atomically(listed, kept.objects.content(wanted[name]))
        listed_files = committed_files(listed.parent)
        if needs_weights and not isinstance(listed_files, str) and not has_its_files(listed.parent):
            missing = {listed.parent / one: digest for one, (_, digest) in listed_files.items() if not (listed.parent / one).exists()}
            kept.objects.bring_all(missing)


def main(arguments: Sequence[str]) -> int:
    """Train on this host, and return the exit code of `python -m phasewise.trainer`, or minus the signal that ended it."""
    stop = Stop()
    try:
        parser = argparse.ArgumentParser(prog="python -m phasewise.tasks.training.hosts")
        for name in ("home", "run_name", "phase", "root"):
            parser.add_argument(name)
        parser.add_argument("--python", default=sys.executable, help="the Python that trains; default: the Python of this program")
        parser.add_argument("--with-parent", action="store_true", help="end when the standard input does")
        said = parser.parse_args(arguments)
        if said.with_parent:
            end_with_parent(ExitCode.PREEMPTED, stop.seconds_left)
        names = (LAUNCH_VARIABLE, "JAX_PROCESS_ID", "JAX_NUM_PROCESSES")
        if missing := [name for name in names if not os.environ.get(name)]:
            raise ConfigError(f"a host is started by a launcher, which sets {', '.join(missing)}: set them, or train with phasewise run.")
        launch, host, hosts = (os.environ[name] for name in names)
        home = Home.at(said.home)
        work = HostWork(Kept(home.on_host, home.root, said.run_name), said.phase, said.root, launch, int(host), int(hosts))
        with locked(work.kept.work / "host.lock", wait=False) as is_ours:
            if not is_ours:
                raise ConfigError(f"another program trains on this host in {work.kept.work}: wait for it, or stop it.")
            return _train(work, said.python, stop)
    except Stopped:
        print("this host ends before its trainer began", flush=True)
        return ExitCode.PREEMPTED
    except PhasewiseError as error:
        print_refusal(f"trainer: {error}")
        return error.exit_code
    except Exception as error:  # stores have different error types
        refusal = refusal_of(error, *arguments[3:4]) or f"this host could not read or write what it needs: {error!r}"
        print_refusal(f"trainer: {refusal}")
        return refusal.exit_code if isinstance(refusal, PhasewiseError) else ExitCode.NO_STORAGE


def _train(work: HostWork, python: str, stop: Stop) -> int:
    run = work.download()
    run_file = work.run.path / ".run-on-host.json"  # with the paths of this host, not uploaded
    write_sealed(run_file, run.model_dump(mode="json"))
    committer = Committer(work) if work.host == 0 else None
    environment = {name: value for name, value in os.environ.items() if name != SILENT_VARIABLE}
    environment |= {
        STOP_VARIABLE: f"{stop_seconds() + send_seconds():g}",  # the trainer's saving includes the upload
        RENDEZVOUS_VARIABLE: str(launches_folder(work.kept) / work.launch),
        CHECKPOINT_STORE_VARIABLE: str(work.kept.objects.folder),
        JOIN_VARIABLE: os.environ.get(JOIN_VARIABLE) or str(JOIN_SECONDS),
    }
    print(f"host {work.host} of {work.hosts} ({socket.gethostname()}) trains {run.phase} in {work.run.path}", flush=True)
    stop.trainer = trainer = subprocess.Popen(
        python_command("phasewise.trainer", str(run_file), "--with-parent", python=python),
        stdin=subprocess.PIPE,
        env=environment,
        pass_fds=[LOCK_DESCRIPTOR] if Path(f"/dev/fd/{LOCK_DESCRIPTOR}").exists() else [],
        process_group=0,
    )
    while True:
        with suppress(subprocess.TimeoutExpired):
            code = trainer.wait(LOOK_SECONDS)
            break
        if committer and committer.lost:
            trainer.kill()
            trainer.wait()
            raise committer.lost
    if committer:
        committer.finish()
    return code


def _moved(said: Any, before: str, now: str) -> Any:
    """Return the JSON value with all paths below `before` moved to `now`."""
    if isinstance(said, Mapping):
        return {name: _moved(one, before, now) for name, one in said.items()}
    if isinstance(said, list):
        return [_moved(one, before, now) for one in said]
    if isinstance(said, str) and (said == before or said.startswith(f"{before}/")):
        return now + said.removeprefix(before)
    return said


def end_as(code: int) -> None:
    """End this process by the signal or code of its trainer. A container's first process ends with the shell's code for the signal."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError, ValueError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code if code >= 0 else KILLED_BY_SIGNAL - code)


if __name__ == "__main__":
    end_as(main(sys.argv[1:]))
