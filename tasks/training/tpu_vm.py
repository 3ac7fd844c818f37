"""The launcher for TPU VMs: it starts the trainer over ssh on every worker of one or several slices (`pip install 'phasewise[tpu-vm]'`).

The hosts' keys must be in `known_hosts`. A trainer holds the lock of its host, because a TPU has one program at a time. A trainer ends with
its ssh connection. If the connection breaks without an end, the trainer ends after `PARENT_SECONDS` without a message.
"""

import asyncio
import os
import shlex
import signal
import threading
import time
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from phasewise.tasks.home import SCRATCH_VARIABLE
from phasewise.tasks.store.publisher import Kept, keeper_of
from phasewise.tasks.training.hosts import SEND_VARIABLE, send_seconds, start_remote
from phasewise.tasks.training.launchers import DONE_SECONDS, Attempt, Launcher, ProcessGroup, env_passthrough, size_of
from phasewise.trainer.base.errors import ConfigError, ExitCode, TrainingError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.process.child_process import ALIVE, SILENT_VARIABLE, STOP, STOP_VARIABLE, python_command, stop_seconds
from phasewise.trainer.process.environment import HOSTS_VARIABLE, LAUNCH_VARIABLE, SLICES_VARIABLE
from phasewise.trainer.process.rendezvous import forget_meetings

BUSY = 96  # the exit code of the command if another trainer holds the lock of the host
CONNECT_SECONDS = 30.0
KEEPALIVE_SECONDS, KEEPALIVES = 10.0, 3  # a connection counts as lost after this number of messages without an answer
ALIVE_SECONDS = 10.0
END_SECONDS = 10.0  # the time for seeing the end of a killed process
START_SECONDS = 60.0
PARENT_SECONDS = 60.0
BUSY_LOOK_SECONDS = 1.0
SENT_SECONDS = 600.0  # `launchers.DONE_SECONDS` of hosts without a shared file system, which upload at their end
LOCK, OWNER = '"$HOME/.phasewise-trainer.lock"', '"$HOME/.phasewise-trainer.owner"'
T = TypeVar("T")


class Host(NamedTuple):
    """A worker."""

    name: str
    user: str | None = None
    port: int = 22

    @classmethod
    def parse(cls, text: str) -> "Host":
        """Parse `[user@]name[:port]`."""
        user, _, place = text.strip().rpartition("@")
        name, _, port = place.partition(":")
        if not name or (port and not port.isdecimal()):
            raise ConfigError(f"a host must be written [user@]name[:port], found '{text}'.")
        return cls(name, user or None, int(port or 22))

    def __str__(self) -> str:
        return self.name if self.port == 22 else f"{self.name}:{self.port}"


class Workers(Frozen):
    """The hosts of a run. They have the run's folder under the same path, or access to the store of its home."""

    slices: tuple[tuple[str, ...], ...]  # the workers of each slice in order, as `[user@]name[:port]`
    python: str  # the Python that trains, on every host
    project: str  # the folder of this project on every host
    port: int = 8476  # of the coordinator, on the first host
    known_hosts: Path | None = None  # the file with the hosts' keys, by default the file of ssh
    key: Path | None = None  # the private key, by default the keys of ssh
    scratch: str | None = None  # the working folder without a shared file system, by default the user's cache folder
    environment: Mapping[str, str] = {}  # of every process

    @property
    def hosts(self) -> list[Host]:
        """All workers, in the order of the processes."""
        return [Host.parse(name) for one in self.slices for name in one]


@dataclass(eq=False)
class TpuVmLauncher(Launcher):
    """Starts trainers over ssh."""

    kind = "tpu_vm"

    workers: Workers

    def start(self, attempt: Attempt) -> ProcessGroup:
        """See `Launcher`. If the home is on a store, hosts have their own folders."""
        keeper = keeper_of(attempt.folder)
        if keeper is None:
            return self._start_hosts(attempt, None)
        return start_remote(keeper, attempt, lambda kept: self._start_hosts(attempt, kept))

    def _start_hosts(self, attempt: Attempt, kept: Kept | None) -> ProcessGroup:
        loop = Loop()
        forget_meetings(attempt.folder)

        async def start_all() -> "list[_SshProcess]":
            commands = zip(self.workers.hosts, self.commands(attempt, kept), strict=True)
            starting = (self._start(attempt, loop, number, host, command) for number, (host, command) in enumerate(commands))
            found = await asyncio.gather(*starting, return_exceptions=True)
            started = [one for one in found if isinstance(one, _SshProcess)]
            if failed := [one for one in found if isinstance(one, BaseException)]:
                for process in started:
                    await process.kill_on_host()
                    await process.disconnect()
                raise failed[0]
            return started

        try:
            seconds = DONE_SECONDS if kept is None else SENT_SECONDS
            return ProcessGroup(attempt.folder, loop.run(start_all()), done_seconds=seconds, on_close=loop.close)
        except BaseException:
            loop.close()
            raise

    async def _start(self, attempt: Attempt, loop: "Loop", number: int, host: Host, command: str) -> "_SshProcess":
        connection = await connect(host, self.workers.known_hosts, self.workers.key)
        # the last attempt of this launcher may hold the lock until it misses its parent and has saved
        patience = PARENT_SECONDS + stop_seconds() + send_seconds()
        until = time.monotonic() + patience
        try:
            async with asyncio.timeout(START_SECONDS + patience):
                while True:
                    process = await connection.create_process(command, encoding=None, stderr=asyncio.subprocess.STDOUT)
                    said = (await process.stdout.readline()).decode(errors="replace").strip()
                    if said.startswith("pid "):
                        pid = int(said.removeprefix("pid "))
                        return _SshProcess(loop, connection, process, host, RunFolder(attempt.folder).log(number), pid)
                    await process.wait_closed()
                    if process.exit_status != BUSY:
                        raise TrainingError(f"{host} did not start the trainer: it said '{said}' and ended with {process.exit_status}.")
                    other = said.removeprefix("busy ") or "another program"
                    if other != attempt.owner or time.monotonic() > until:
                        raise TrainingError(
                            f"{host} has a trainer already, of {other}: a TPU has one program at a time. Wait for it, or stop it."
                        )
                    await asyncio.sleep(BUSY_LOOK_SECONDS)
        except BaseException as error:
            connection.abort()
            if isinstance(error, TimeoutError):
                raise TrainingError(f"{host} did not start the trainer within {START_SECONDS:.0f} s: look at it by ssh.") from None
            raise

    def commands(self, attempt: Attempt, kept: Kept | None = None) -> list[str]:
        """Return the shell command of each host. The shell becomes the trainer, or `tasks.training.hosts` if the home is on a store."""
        workers = self.workers
        first, several = workers.hosts[0].name, len(workers.slices) > 1
        shared = {
            **env_passthrough(os.environ),
            **({SCRATCH_VARIABLE: workers.scratch} if workers.scratch else {}),
            **workers.environment,
            "JAX_COORDINATOR_ADDRESS": f"{first}:{workers.port}",
            "JAX_NUM_PROCESSES": str(len(workers.hosts)),
            LAUNCH_VARIABLE: attempt.name,
            SLICES_VARIABLE: str(len(workers.slices)),
            HOSTS_VARIABLE: ",".join(map(str, workers.hosts)),
            SILENT_VARIABLE: f"{PARENT_SECONDS:g}",
            STOP_VARIABLE: f"{stop_seconds():g}",
        }
        program = ["phasewise.trainer", str(attempt.run_file), "--with-parent"]
        if kept is not None:
            shared[SEND_VARIABLE] = f"{send_seconds():g}"
            folders = [str(kept.store), kept.run_name, Path(attempt.run.output).name, str(kept.work)]
            program = ["phasewise.tasks.training.hosts", *folders, "--python", workers.python, "--with-parent"]
        if several:
            shared |= {"MEGASCALE_COORDINATOR_ADDRESS": first, "MEGASCALE_NUM_SLICES": str(len(workers.slices))}
        commands: list[str] = []
        for index, slice_id in enumerate(number for number, one in enumerate(workers.slices) for _ in one):
            own = {**shared, "JAX_PROCESS_ID": str(index), **({"MEGASCALE_SLICE_ID": str(slice_id)} if several else {})}
            variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in own.items())
            commands.append(
                f'exec 9>>{LOCK} && {{ flock -n 9 || {{ echo "busy $(cat {OWNER})"; exit {BUSY}; }}; }} && '
                f"echo {shlex.quote(attempt.owner)} >{OWNER} && cd {shlex.quote(workers.project)} && export {variables} && "
                f'echo "pid $$" && exec {shlex.join(python_command(*program, python=workers.python))}'
            )
        return commands


class Loop:
    """A thread with an event loop for all ssh connections."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ssh", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
        """Return the result of a coroutine."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)

    def close(self) -> None:
        """Cancel the tasks and end the thread."""

        async def cancel_all() -> None:
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        self.run(cancel_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def connect(host: Host, known_hosts: Path | None, key: Path | None) -> Any:
    """Open a connection to a host, or raise `ConfigError` (keys, user) or `TrainingError` (no answer)."""
    try:
        import asyncssh
    except ImportError:
        raise ConfigError("the tpu_vm launcher needs asyncssh, which is not installed: pip install 'phasewise[tpu-vm]'.") from None
    options: dict[str, Any] = {} if known_hosts is None else {"known_hosts": str(known_hosts)}
    if key is not None:
        options["client_keys"] = [str(key)]
    if host.user:
        options["username"] = host.user
    try:
        return await asyncssh.connect(
            host.name, host.port, connect_timeout=CONNECT_SECONDS, login_timeout=CONNECT_SECONDS, keepalive_interval=KEEPALIVE_SECONDS,
            keepalive_count_max=KEEPALIVES, **options,
        )  # fmt: skip
    except asyncssh.HostKeyNotVerifiable as error:
        raise ConfigError(
            f"the key of {host} is unknown or has changed ({error}): connect once by ssh and compare the fingerprint, or correct "
            f"{known_hosts or '~/.ssh/known_hosts'}."
        ) from None
    except asyncssh.PermissionDenied as error:
        raise ConfigError(f"{host} does not let us in ({error}): look at the user and the key that ssh uses for it.") from None
    except (OSError, asyncssh.Error, TimeoutError) as error:
        raise TrainingError(f"{host} does not answer by ssh: {error or 'nothing came in time'}. Look whether it runs.") from None


class _SshProcess:
    """The trainer on one host, which ends with the connection because it watches its standard input. Create it in the loop's thread."""

    def __init__(self, loop: Loop, connection: Any, process: Any, host: Host, log: Path, pid: int) -> None:
        self.name, self.log_before = str(host), size_of(log)
        self._loop, self._connection, self._process, self._log, self._pid = loop, connection, process, log, pid
        self._ended = threading.Event()
        self._code: int | None = None
        self.wait = self._ended.wait
        self._tasks = [asyncio.create_task(work) for work in (self._follow(), self._stay_alive())]

    def code(self) -> int | None:
        return self._code

    def stop(self) -> None:
        """Send a stop byte, because some servers don't forward signals."""
        self._loop.run(self._write(STOP))

    def kill(self) -> None:
        """Kill the process. An unreachable host ends its process after `PARENT_SECONDS`."""
        with suppress(TimeoutError):
            self._loop.run(self.kill_on_host(), END_SECONDS)
        if not self._ended.wait(END_SECONDS):
            self._loop.run(self.disconnect(at_once=True))
            self._ended.wait(END_SECONDS)

    def close(self) -> None:
        self._loop.run(self.disconnect())

    async def kill_on_host(self) -> None:
        """Kill the process by its id, in the loop's thread."""
        import asyncssh

        with suppress(OSError, asyncssh.Error):
            await self._connection.run(f"kill -KILL {self._pid}", check=False)

    async def disconnect(self, *, at_once: bool = False) -> None:
        """Close the connection, in the loop's thread."""
        if at_once:
            self._connection.abort()
            return
        self._connection.close()
        await self._connection.wait_closed()

    async def _follow(self) -> None:
        import asyncssh

        code, process = int(ExitCode.LOST), self._process
        with open(self._log, "ab") as log:
            try:
                while said := await process.stdout.read(2**16):
                    log.write(said)
                    log.flush()
                await process.wait_closed()
                if process.exit_signal:
                    code = -int(signal.Signals[f"SIG{process.exit_signal[0]}"])
                elif process.exit_status is not None and process.exit_status >= 0:
                    code = int(process.exit_status)
                elif process.exit_status is None:
                    log.write(f"trainer: the connection to {self.name} was lost\n".encode())
            except (OSError, asyncssh.Error) as error:
                log.write(f"trainer: the connection to {self.name} broke off: {error}\n".encode())
        self._code = code
        self._ended.set()

    async def _stay_alive(self) -> None:
        while self._code is None:
            await self._write(ALIVE)
            await asyncio.sleep(ALIVE_SECONDS)

    async def _write(self, said: bytes) -> None:
        with suppress(OSError):  # the process has ended
            self._process.stdin.write(said)
