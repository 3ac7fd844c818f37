"""A server as a process of this one's own: it ends with its parent, however that ends."""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def server_process(
    command: Sequence[str], log: Path, environment: Mapping[str, str], *, stop_seconds: float
) -> Iterator["subprocess.Popen[bytes]"]:
    """The process, for as long as the context lasts. What it reports is added to the log.

    It is in a session of its own: Ctrl-C must not end it before what it stops has been reported. Its standard input is held here: the
    command must end when that ends.

    Args:
        stop_seconds: how long it has to end by itself, after SIGTERM.
    """
    with (
        open(log, "ab") as to,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=to, stderr=to, env=environment, start_new_session=True) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(stop_seconds)
            except subprocess.TimeoutExpired:
                process.kill()
