"""A process in which nothing happens is ended, with the stacks of its threads; one that works is left alone."""

import sys
import threading

import pytest

from trainer.base.exit_codes import ExitCode
from trainer.process.watchdog import Watchdog, end_stalled


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_only_silence_beyond_the_limit_is_a_stall():
    time = Time()
    watchdog = Watchdog(10.0, lambda limit: None, clock=time)
    time.now = 10.0
    assert not watchdog.is_stalled()
    time.now = 10.1
    assert watchdog.is_stalled()
    watchdog.beat()
    assert not watchdog.is_stalled()


def test_none_is_never():
    time = Time()
    shown = list[float]()
    with Watchdog(None, shown.append, clock=time) as watchdog:
        time.now = 1e9
        assert not watchdog.is_stalled()
    assert not shown


def test_the_thread_tells_once_and_ends():
    shown = list[float]()
    ended = threading.Event()

    def on_stall(limit: float) -> None:
        shown.append(limit)
        ended.set()

    with Watchdog(0.001, on_stall) as watchdog:
        assert ended.wait(30)
        watchdog.beat()
    assert shown == [0.001]


def test_leaving_ends_the_thread():
    others = set(threading.enumerate())
    with Watchdog(1000.0, lambda limit: None):
        begun = [thread for thread in threading.enumerate() if thread.name == "watchdog" and thread not in others]
        assert len(begun) == 1
    assert not begun[0].is_alive()


def test_a_stalled_process_says_where_it_is_and_ends(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    codes = list[int]()
    monkeypatch.setattr("trainer.process.watchdog.os._exit", codes.append)
    monkeypatch.setattr(sys, "stderr", sys.__stderr__)
    end_stalled("kestrel")(7.0)
    said = capfd.readouterr().err
    assert codes == [ExitCode.STALLED]
    assert "test_a_stalled_process_says_where_it_is_and_ends" in said
    assert said.splitlines()[-1].startswith("trainer: phase kestrel stalled: no update for 7 seconds")
