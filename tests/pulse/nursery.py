"""Starts commands quickly: a process that has imported what they import, but neither Prefect nor a device, forks one for each.

`python -m tests.pulse.nursery` reads a list in JSON for each, a line on standard input: the words behind `phasewise`, where standard output
and standard error go, and settings for its environment. For each it says two lines on standard output: the process id, and, when that
process has ended, its exit code, or minus the signal. Prefect is imported after the fork: it reads its settings then, as it does in a
process of its own.
"""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.pulse.in_turn import call


class Command:
    """A forked `phasewise`; it is asked as a process is. One is at work at a time."""

    def __init__(self, nursery: "subprocess.Popen[bytes]", folder: Path, pid: int) -> None:
        self._nursery, self._folder = nursery, folder
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, or None while it is at work."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """Until it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not after so many seconds.
        """
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("phasewise", timeout or 0)
        return code

    def communicate(self) -> tuple[str, str]:
        """Until it has ended; what it wrote on standard output and standard error."""
        self.wait()
        return (self._folder / "output").read_text(), (self._folder / "errors").read_text()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """As by the kernel where memory runs out."""
        self.send_signal(signal.SIGKILL)

    def _look(self, timeout: float | None) -> int | None:
        assert self._nursery.stdout
        if self.returncode is None and select.select([self._nursery.stdout], [], [], timeout)[0]:
            self.returncode = int(self._nursery.stdout.readline())
        return self.returncode


class Nursery:
    """The other side of the process."""

    def __init__(self, process: "subprocess.Popen[bytes]", folder: Path) -> None:
        self._process, self._folder = process, folder
        self._last: Command | None = None

    def __call__(self, *words: object, settings: Mapping[str, str] | None = None) -> Command:
        """Start `phasewise WORDS`."""
        assert self._last is None or self._last.poll() is not None, "the command before is still at work"
        assert self._process.stdin
        assert self._process.stdout
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        request = json.dumps([list(map(str, words)), str(folder), dict(settings or {})])
        self._process.stdin.write(f"{request}\n".encode())
        self._process.stdin.flush()
        self._last = Command(self._process, folder, int(self._process.stdout.readline()))
        return self._last

    def kill_last(self) -> None:
        """End the command that is still at work, if there is one."""
        if self._last:
            self._last.kill()


@contextmanager
def nursery_process(environment: Mapping[str, str], folder: Path) -> Iterator[Nursery]:
    """The process, for as long as the context lasts; a command that is at work then is killed."""
    command = [sys.executable, "-m", "tests.pulse.nursery"]
    # Unbuffered: what select() says of the pipe must be all there is.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=dict(environment)) as process:
        nursery = Nursery(process, folder)
        yield nursery
        nursery.kill_last()


def load() -> None:
    """Import what takes seconds, and see that Prefect and JAX's devices are left to the commands."""
    import distributed  # noqa: F401  # pyright: ignore[reportUnusedImport]
    import matplotlib.pyplot  # noqa: F401  # pyright: ignore[reportUnusedImport]

    from flows.commands import evaluating, run  # noqa: F401  # pyright: ignore[reportUnusedImport]
    from tasks.validation import judge  # noqa: F401  # pyright: ignore[reportUnusedImport]
    from validations.expectations.judging import load_library

    load_library()
    assert "prefect" not in sys.modules, "Prefect reads its settings where it is imported: that must be in the command's process"


def fork(words: list[str], folder: str, settings: dict[str, str]) -> int:
    """The process id of the command. The command's own process ends as any does, with what is to be done at its exit."""
    child = os.fork()
    if child:
        return child
    for number, path in enumerate((os.devnull, f"{folder}/output", f"{folder}/errors")):
        opened = os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.update(settings)
    tempfile.tempdir = None
    sys.exit(call(words))


def main() -> None:
    warnings.filterwarnings("ignore", category=RuntimeWarning)  # jax warns of threads, and has none before it uses a device
    load()
    for line in sys.stdin:
        child = fork(*json.loads(line))
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
