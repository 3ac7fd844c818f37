"""The process that renders chat templates: one for each process that reads conversations, started again when it died.

A chat template is a program of a stranger. `sandbox.py` runs it with bounded processor time, memory and text, and can open nothing.
"""

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import IO, Any, cast

import orjson

PROGRAM = Path(__file__).with_name("sandbox.py")
SECONDS, MEMORY_MIB, CHARACTERS, CHARACTERS_A_BYTE = 0.5, 192, 2**18, 16
"""Limits of a conversation, `sandbox.Limits`. A long one has more of each."""
WALL_SECONDS = 60.0
"""A request that is not answered after this time is refused: the process was stopped, or nothing gives it a processor."""
MAX_ANSWER_BYTES = 2**28
LIMITS = {
    "memory": f"takes more than {MEMORY_MIB} MiB of memory",
    "text": f"writes more than {CHARACTERS:,} characters, and {CHARACTERS_A_BYTE} for each byte of a conversation",
    "time": f"takes more than {SECONDS:g} s of processor time",
    "clock": f"takes more than {WALL_SECONDS:g} s",
}
PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "HOME", "VIRTUAL_ENV", "LANG", "LC_ALL")
END = b"\n\n"
"""Behind the last answer to a request."""
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=str).encode


class Died(Exception):
    """The process ended within a request. `begun`: how many of the template and the conversations it had begun by then."""

    def __init__(self, begun: int, why: str):
        super().__init__(why)
        self.begun, self.why = begun, why


def as_line(messages: Sequence[Mapping[str, object]], *, is_text: bool = False) -> bytes:
    """A conversation as the process is given it. Lists, objects, texts and numbers stay what they are, all else becomes text.

    Where there is more than text, a space comes first: `orjson`, which is ten times as fast, has no NaN and no long integers.
    """
    if is_text:
        try:
            return orjson.dumps(messages)
        except orjson.JSONEncodeError:  # half of a surrogate pair
            pass
    return b" " + _encode(messages).encode(errors="surrogatepass")


class Renderer:
    """A process of `sandbox.py`, started at the first request. One request at a time."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = Lock()

    def ask(self, template: str, tokens: tuple[str, str], conversations: Sequence[bytes]) -> list[list[Any]]:
        """What is found of the template, and of each conversation, as `sandbox.py` says it: `[kind, …]`.

        Where the template cannot be compiled, or a limit ends the process, the last answer says so and the rest is missing. A process that
        somebody else ended is started again.
        """
        limits = (SECONDS, MEMORY_MIB * 2**20, CHARACTERS, CHARACTERS_A_BYTE)
        header = _encode([len(conversations), template, limits, *tokens]).encode(errors="surrogatepass")
        request = b"\n".join((header, *conversations, b""))
        with self._lock:
            try:
                said = self._exchange(request)
            except Died as died:
                missing = [["missing"]] * (died.begun - 1)
                said = [*missing, ["limit", died.why] if died.why in LIMITS else ["failed", "Died", died.why]]
                if died.why not in LIMITS:
                    with suppress(Died):
                        said = self._exchange(request)
            if said[-1][0] in ("limit", "failed") or any(one[0] == "limit" for one in said):
                self.close()  # what such a template left in memory would be counted against the next
            return said

    def _exchange(self, request: bytes) -> list[list[Any]]:
        """One request and its answers."""
        process = self._process = self._process or _start()
        stdin, stdout, stderr = cast("tuple[IO[bytes], IO[bytes], IO[bytes]]", (process.stdin, process.stdout, process.stderr))
        is_late = False
        try:
            # Write the request, and read up to the end of the answers, or of the process
            to = stdin.fileno()
            back = stdout.fileno()
            until = time.monotonic() + WALL_SECONDS
            waiting, answered = memoryview(request), bytearray()
            with suppress(BrokenPipeError):
                while waiting:
                    _await(to, select.POLLOUT, until)
                    waiting = waiting[os.write(to, waiting) :]
            while not answered.endswith(END):
                _await(back, select.POLLIN, until)
                chunk = os.read(back, 2**20)
                if not chunk:
                    break
                answered += chunk
                if len(answered) > MAX_ANSWER_BYTES:
                    raise TimeoutError
            if answered.endswith(END):
                lines = answered.splitlines()[:-1]
                stderr.read(len(lines))
                return [orjson.loads(line) for line in lines]
        except TimeoutError:
            is_late = True
            process.kill()
        except BaseException:  # what this request is answered must not be taken for the answer to the next
            self.close()
            raise
        complaint = stderr.read().decode(errors="replace")
        code = process.wait()
        self.close()
        last = complaint.strip().rpartition("\n")[2].lstrip(".")
        why = "time" if code == -signal.SIGPROF else "clock" if is_late else f"its process ended with code {code} {last}".strip()
        raise Died(len(complaint) - len(complaint.lstrip(".")), why)

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def _start() -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if name in PASSED_ON or name.startswith("PYTHON")}
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-P", str(PROGRAM)], stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, env=environment)
    os.set_blocking(cast("IO[bytes]", process.stdin).fileno(), False)
    return process


def _await(file: int, event: int, until: float) -> None:
    """Until the file can be written or read, or its other end is closed. `select` itself knows no file above 1,023."""
    poll = select.poll()
    poll.register(file, event)
    if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
        raise TimeoutError


_renderer = Renderer()


def renderer() -> Renderer:
    """The one of this process: a fork has none of its parent's."""
    global _renderer
    if _renderer.owner != os.getpid():
        _renderer = Renderer()
    return _renderer


@atexit.register
def _close() -> None:
    if _renderer.owner == os.getpid():
        _renderer.close()
