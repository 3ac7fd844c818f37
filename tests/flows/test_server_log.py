"""Which of a server's records are shown to people."""

from pathlib import Path
from typing import Any

from flows.server import OwnServer

BUSY = (
    "12:00:01.000 | ERROR   | prefect.server - Heartbeat failed\nTraceback (most recent call last):\nOperationalError: database is locked\n"
)
BROKEN = "12:00:02.000 | ERROR   | prefect.server - Scheduler died\nTraceback (most recent call last):\nTypeError: no\n"
WARNING = "12:00:03.000 | WARNING | prefect.server - Slow\n"
SAID = ["12:00:02.000 | ERROR   | prefect.server - Scheduler died"]


def server(log: Path) -> OwnServer:
    process: Any = None
    log.touch()
    return OwnServer("http://127.0.0.1:1/api", log, process, 0, lambda: process)


def test_an_error_is_said_once_and_a_busy_file_is_none(tmp_path: Path) -> None:
    own = server(tmp_path / "log")
    own.log.write_text(BUSY + BROKEN + WARNING)
    assert own.new_errors() == SAID
    assert own.new_errors() == []
    with open(own.log, "a") as log:
        log.write(BROKEN)
    assert own.new_errors() == []  # it may still grow
    assert own.new_errors() == SAID
    assert own.new_errors() == []


def test_a_record_is_judged_by_its_end(tmp_path: Path) -> None:
    own = server(tmp_path / "log")
    for place in range(0, len(BUSY), 20):
        own.log.write_text(BUSY[: place + 20])
        assert own.new_errors() == []
    assert [own.new_errors(), own.new_errors()] == [[], []]


def test_at_the_end_nothing_is_held_back(tmp_path: Path) -> None:
    own = server(tmp_path / "log")
    own.log.write_text(WARNING + BROKEN)
    assert own.new_errors(ended=True) == SAID
