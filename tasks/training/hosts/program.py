"""The program of a host without the launcher's folder: `python -m phasewise.tasks.training.hosts HOME RUN_NAME PHASE ROOT
[--python PYTHON]`.

It says that it is there, waits for the other hosts, brings what the phase needs, and starts the trainer in a folder of this host, as a
process of its own. While that works, what it writes is sent. It ends as the trainer ended, when all is sent.

The environment says which host of which launch this is, as it does to a trainer (`trainer.process.distributed`). Where it has
`PHASEWISE_ALONE_SECONDS` the program has no connection to its launcher that could end: it goes by the launcher's sign on the store.
"""

import argparse
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import NamedTuple

from phasewise.tasks.store.head import Head
from phasewise.tasks.store.interval import publish_seconds
from phasewise.tasks.training.hosts.limits import ALONE_VARIABLE, alone_seconds, save_and_send_seconds
from phasewise.tasks.training.hosts.needs import Work
from phasewise.tasks.training.hosts.post import Post, Posts, Stage
from phasewise.tasks.training.hosts.sender import Sender
from phasewise.tasks.training.hosts.sign import Alone
from phasewise.trainer.base.errors import ConfigError, HostMissing, PhasewiseError, StorageError, TakenOver
from phasewise.trainer.base.exit_codes import ExitCode
from phasewise.trainer.base.file_lock import locked
from phasewise.trainer.base.system_errors import print_refusal, refusal_of
from phasewise.trainer.config import RunConfig
from phasewise.trainer.process.apart import APART_VARIABLE
from phasewise.trainer.process.child_process import python_command
from phasewise.trainer.process.parent import SILENT_VARIABLE, end_with_parent
from phasewise.trainer.process.roll_call import JOIN_VARIABLE, join_seconds, named_host
from phasewise.trainer.process.surroundings import HOSTS_VARIABLE, LAUNCH_VARIABLE

POST_SECONDS = 5.0
LOOK_SECONDS = 0.2
KILLED_BY_SIGNAL = 128
LOCK_DESCRIPTOR = 9
"""What the shell that started this holds the host's lock by; the trainer holds it, too."""


class Place(NamedTuple):
    """Which host of which launch this is."""

    launch: str
    host: int
    hosts: int
    names: Sequence[str]

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Place":
        """What a launcher said.

        Raises:
            ConfigError: it did not say it.
        """
        names = (LAUNCH_VARIABLE, "JAX_PROCESS_ID", "JAX_NUM_PROCESSES")
        if missing := [name for name in names if not environment.get(name)]:
            raise ConfigError(f"a host is started by a launcher, which sets {', '.join(missing)}: set them, or train with phasewise run.")
        launch, host, hosts = (environment[name] for name in names)
        return cls(launch, int(host), int(hosts), environment.get(HOSTS_VARIABLE, "").split(","))


class Stopped(BaseException):  # not an error, and nobody's to catch on the way: nothing is lost
    """A SIGTERM came before the trainer was at work, or the launcher is gone."""


class Stop:
    """SIGTERM and Ctrl-C: what there is to do about them, and how long that may take."""

    def __init__(self) -> None:
        self.trainer: subprocess.Popen[bytes] | None = None
        self._until: float | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    @property
    def seconds_left(self) -> float:
        """0 where nobody asked, and where the time is over."""
        return 0.0 if self._until is None else max(0.0, self._until - time.monotonic())

    def ask(self) -> None:
        """Ask the trainer to save and to end. From then on there is so much time for that and for sending."""
        if self._until is None:
            self._until = time.monotonic() + save_and_send_seconds()
        if self.trainer is None:
            raise Stopped
        with suppress(ProcessLookupError):
            self.trainer.terminate()

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.ask()


def main(arguments: Sequence[str]) -> int:
    """The exit code, as of `python -m phasewise.trainer`."""
    stop = Stop()
    try:
        parser = argparse.ArgumentParser(prog="python -m phasewise.tasks.training.hosts")
        for name in ("home", "run_name", "phase", "root"):
            parser.add_argument(name)
        parser.add_argument("--python", default=sys.executable, help="what trains; the Python of this program if it is not given")
        said = parser.parse_args(arguments)
        if not os.environ.get(ALONE_VARIABLE):
            end_with_parent(ExitCode.PREEMPTED, lambda: stop.seconds_left)
        work = Work.of(said.home, said.run_name, said.phase, said.root)
        with locked(work.kept.work / "host.lock", wait=False) as is_ours:
            if not is_ours:
                raise ConfigError(f"another program trains on this host in {work.kept.work}: wait for it, or stop it.")
            return _train(work, Place.of(os.environ), said.python, stop)
    except Stopped as stopped:
        print(f"this host ends before its trainer began{f': {stopped}' if stopped.args else ''}", flush=True)
        return ExitCode.PREEMPTED
    except PhasewiseError as error:
        print_refusal(f"trainer: {error}")
        return error.exit_code
    except Exception as error:  # stores have error types of their own
        refusal = refusal_of(error, *arguments[3:4]) or f"this host could not read or write what it needs: {error!r}"
        print_refusal(f"trainer: {refusal}")
        return refusal.exit_code if isinstance(refusal, PhasewiseError) else ExitCode.NO_STORAGE


def _train(work: Work, place: Place, python: str, stop: Stop) -> int:
    """From the first post to the last."""
    posts = Posts.of(work.kept.store, work.kept.run_name, place.launch)
    _head_of(work, place)
    alone = _alone(posts)
    post = Post(launch=place.launch, host=place.host)
    generation = posts.put(post)
    _wait_for(posts, place, "here", alone, limit_seconds=join_seconds(os.environ))
    shutil.rmtree(work.run.roll_calls, ignore_errors=True)
    run = _brought(work, place)
    ready = post.but(number=1, stage="ready")
    generation = posts.put(ready, generation)
    _wait_for(posts, place, "ready", alone, limit_seconds=None)
    sender = Sender(work, posts, ready, generation, every_seconds=min(POST_SECONDS, publish_seconds()), hosts=place.hosts)
    stop.trainer = _started(work, run, place, python)
    sender.start()
    code = _ended(stop.trainer, lambda: sender.lost is not None, alone, stop)
    sender.finish()
    return code


def _head_of(work: Work, place: Place) -> tuple[Head, str]:
    """The head as it is now, and its generation.

    Raises:
        TakenOver: it does not name this launch.
    """
    head, generation = work.kept.head.read()
    if head.launch != place.launch:
        raise TakenOver(
            f"host {place.host} of the launch {place.launch} came, and {work.kept.head.place} names "
            f"{f'the launch {head.launch}' if head.launch else 'no launch'} (number {head.number}): it begins nothing."
        )
    return head, generation


def _brought(work: Work, place: Place) -> RunConfig:
    """The run, as the head says it is now. The launcher commits meanwhile: where that took away what was to be brought, it begins again."""
    while True:
        head, generation = _head_of(work, place)
        try:
            return work.bring(head)
        except StorageError:
            if _head_of(work, place)[1] == generation:
                raise


def _alone(posts: Posts) -> Alone | None:
    """What knows whether there is a launcher; None where a connection to it does."""
    if not os.environ.get(ALONE_VARIABLE):
        return None
    found = Alone(posts, alone_seconds())
    found.start()
    return found


def _wait_for(posts: Posts, place: Place, stage: Stage, alone: Alone | None, *, limit_seconds: float | None) -> None:
    """Until all hosts are at a stage.

    Raises:
        HostMissing: one does not come in time; it is named.
        Stopped: there is no launcher any more.
    """
    since, there = time.monotonic(), set[int]()
    while True:
        if alone and alone.words:
            raise Stopped(alone.words)
        for host in set(range(place.hosts)) - there:
            if (found := posts.read(host)) and found[0].has_reached(stage):
                there.add(host)
        if len(there) == place.hosts:
            return
        waited = time.monotonic() - since
        if limit_seconds is not None and waited > limit_seconds:
            missing = ", ".join(named_host(host, list(place.names)) for host in range(place.hosts) if host not in there)
            raise HostMissing(
                f"{place.hosts} hosts must be there before training begins, found {len(there)} after {waited:.0f} s: {missing} did not "
                f"come to {posts.folder}. Look whether it runs and reaches the store; {JOIN_VARIABLE} is how long it is waited for."
            )
        time.sleep(LOOK_SECONDS)


def _started(work: Work, run: RunConfig, place: Place, python: str) -> subprocess.Popen[bytes]:
    """The trainer of this host, which ends when this program does."""
    environment = {name: value for name, value in os.environ.items() if name != SILENT_VARIABLE}
    if place.hosts > 1:
        environment[APART_VARIABLE] = "1"
    print(f"host {place.host} of {place.hosts} ({socket.gethostname()}) trains {run.phase} in {work.run.path}", flush=True)
    return subprocess.Popen(
        python_command("phasewise.trainer", str(work.run.run_file), "--with-parent", python=python),
        stdin=subprocess.PIPE,
        env=environment,
        pass_fds=[LOCK_DESCRIPTOR] if _is_open(LOCK_DESCRIPTOR) else [],
        process_group=0,
    )


def _ended(trainer: subprocess.Popen[bytes], is_lost: Callable[[], bool], alone: Alone | None, stop: Stop) -> int:
    """How it ended: its code, or minus its signal. Where there is no launcher any more it is asked to save, and ended if it does not."""
    is_said = False
    while True:
        with suppress(subprocess.TimeoutExpired):
            return trainer.wait(LOOK_SECONDS)
        if is_lost():
            trainer.kill()
            trainer.wait()
            return ExitCode.TAKEN_OVER
        if alone and alone.words and not is_said:
            is_said = True
            print(f"{alone.words}; its trainer saves, and it ends", flush=True)
            stop.ask()
        if is_said and not stop.seconds_left:
            trainer.kill()


def _is_open(descriptor: int) -> bool:
    with suppress(OSError):
        os.fstat(descriptor)
        return True
    return False


def end_as(code: int) -> None:
    """End this process as its trainer ended: by the same signal, or with the same code.

    The first process of a container is not ended by a signal of its own: it then ends with the code by which a shell says that signal.
    """
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError, ValueError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code if code >= 0 else KILLED_BY_SIGNAL - code)
