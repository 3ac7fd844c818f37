"""Connections to hosts by ssh, and one process on each. `pip install 'phasewise[tpu-vm]'` installs asyncssh.

A host's key must be known before (`known_hosts`); one that is not is refused. All connections live in one thread with a loop of its own.
"""

import asyncio
import signal
import threading
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from phasewise.trainer.base.errors import ConfigError, TrainingError
from phasewise.trainer.base.exit_codes import ExitCode
from phasewise.trainer.process.parent import ALIVE, STOP

CONNECT_SECONDS = 30.0
KEEPALIVE_SECONDS, KEEPALIVES = 10.0, 3
"""A connection that is cut in the middle counts as lost after so many unanswered signs."""
ALIVE_SECONDS = 10.0
END_SECONDS = 10.0
"""How long a process that was killed may take to be seen as ended."""
T = TypeVar("T")


class Host(NamedTuple):
    """One worker, as ssh names it."""

    name: str
    user: str | None = None
    port: int = 22

    @classmethod
    def parse(cls, text: str) -> "Host":
        """Of `[user@]name[:port]`.

        Raises:
            ConfigError: it is not one.
        """
        user, _, place = text.strip().rpartition("@")
        name, _, port = place.partition(":")
        if not name or (port and not port.isdecimal()):
            raise ConfigError(f"a host must be written [user@]name[:port], found '{text}'.")
        return cls(name, user or None, int(port or 22))

    def __str__(self) -> str:
        return self.name if self.port == 22 else f"{self.name}:{self.port}"


class Loop:
    """A thread that talks to all hosts."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ssh", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
        """Wait for it here."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)

    def begin(self, work: Coroutine[Any, Any, Any]) -> None:
        """Without waiting."""
        asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """End the thread, with whatever still runs in it."""
        self.run(_cancel_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_all() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def connect(host: Host, known_hosts: Path | None, key: Path | None) -> Any:
    """A connection.

    Args:
        known_hosts: the file that has the host's key; None is the user's own.
        key: the private key that opens the host; None is what the user's ssh would try.

    Raises:
        ConfigError: the host's key is not known, or it does not let us in.
        TrainingError: it does not answer.
    """
    asyncssh = _asyncssh()
    options: dict[str, Any] = {} if known_hosts is None else {"known_hosts": str(known_hosts)}
    if key is not None:
        options["client_keys"] = [str(key)]
    if host.user:
        options["username"] = host.user
    try:
        return await asyncssh.connect(
            host.name,
            host.port,
            connect_timeout=CONNECT_SECONDS,
            login_timeout=CONNECT_SECONDS,
            keepalive_interval=KEEPALIVE_SECONDS,
            keepalive_count_max=KEEPALIVES,
            **options,
        )
    except asyncssh.HostKeyNotVerifiable as error:
        raise ConfigError(
            f"the key of {host} is not the one that is known ({error}): connect to it once by ssh and compare its fingerprint, or correct "
            f"{known_hosts or '~/.ssh/known_hosts'}."
        ) from None
    except asyncssh.PermissionDenied as error:
        raise ConfigError(f"{host} does not let us in ({error}): look at the user and the key that ssh uses for it.") from None
    except (OSError, asyncssh.Error, TimeoutError) as error:
        raise TrainingError(f"{host} does not answer by ssh: {error or 'nothing came in time'}. Look whether it runs.") from None


class Worker:
    """The trainer on one host: a member of a group. It ends when the connection does, for it watches its standard input."""

    def __init__(self, loop: Loop, connection: Any, process: Any, host: Host, log: Path, pid: int, *, log_before: int) -> None:
        self.name, self.log_before = str(host), log_before
        self._loop, self._connection, self._process, self._log, self._pid = loop, connection, process, log, pid
        self._ended = threading.Event()
        self._code: int | None = None
        loop.begin(self._follow())
        loop.begin(self._stay_alive())

    def code(self) -> int | None:
        """See `Member`."""
        return self._code

    def wait(self, seconds: float) -> None:
        """See `Member`."""
        self._ended.wait(seconds)

    def stop(self) -> None:
        """By a byte: not every server passes signals on."""
        self._loop.run(self._write(STOP))

    def kill(self) -> None:
        """See `Member`. A host that cannot be reached ends its process itself, when it has heard nothing for long enough."""
        with suppress(TimeoutError):
            self._loop.run(self._kill(), END_SECONDS)
        if not self._ended.wait(END_SECONDS):
            self._loop.run(self._abort())
            self._ended.wait(END_SECONDS)

    def close(self) -> None:
        """See `Member`."""
        self._loop.run(self._close())

    async def _follow(self) -> None:
        """What it says goes to its log, until it ends."""
        code = int(ExitCode.LOST)
        with open(self._log, "ab") as log:
            try:
                while said := await self._process.stdout.read(2**16):
                    log.write(said)
                    log.flush()
                await self._process.wait_closed()
                code = _code_of(self._process)
            except (OSError, _asyncssh().Error) as error:
                log.write(f"trainer: the connection to {self.name} broke off: {error}\n".encode())
            else:
                if code == ExitCode.LOST and self._process.exit_status is None:
                    log.write(f"trainer: the connection to {self.name} was lost\n".encode())
        self._code = code
        self._ended.set()

    async def _stay_alive(self) -> None:
        while self._code is None:
            await self._write(ALIVE)
            await asyncio.sleep(ALIVE_SECONDS)

    async def _write(self, said: bytes) -> None:
        with suppress(OSError):  # it has ended meanwhile
            self._process.stdin.write(said)

    async def _kill(self) -> None:
        with suppress(OSError, _asyncssh().Error):
            await self._connection.run(f"kill -KILL {self._pid}", check=False)

    async def _abort(self) -> None:
        self._connection.abort()

    async def _close(self) -> None:
        self._connection.close()
        await self._connection.wait_closed()


def _code_of(process: Any) -> int:
    """The exit code, or minus the signal; lost where the connection ended first."""
    if process.exit_signal:
        name = f"SIG{process.exit_signal[0]}"
        return -int(signal.Signals[name])
    return ExitCode.LOST if process.exit_status is None or process.exit_status < 0 else int(process.exit_status)


def _asyncssh() -> Any:
    try:
        import asyncssh
    except ImportError:
        raise ConfigError("the tpu_vm launcher needs asyncssh, which is not installed: pip install 'phasewise[tpu-vm]'.") from None
    return asyncssh
