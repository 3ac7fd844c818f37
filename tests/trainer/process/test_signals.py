"""Being asked to stop, by signals to this very process."""

import os
import signal

import pytest

from phasewise.trainer.process.signals import STOP_VARIABLE, seconds_left_to_save, stop_requests


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_request_is_noted_and_the_handlers_of_before_come_back(number: signal.Signals, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(STOP_VARIABLE, "7")
    before = [signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)]
    with stop_requests() as is_requested:
        assert (is_requested(), seconds_left_to_save()) == (False, 0)
        os.kill(os.getpid(), number)
        assert is_requested()
        assert 0 < seconds_left_to_save() <= 7
    assert [signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)] == before
    assert seconds_left_to_save() == 0


def test_the_time_to_save_counts_from_the_first_request(monkeypatch: pytest.MonkeyPatch):
    """Else a process that is asked again and again would never end."""
    now = 100.0
    monkeypatch.setattr("phasewise.trainer.process.signals.time.monotonic", lambda: now)
    with stop_requests():
        os.kill(os.getpid(), signal.SIGTERM)
        now = 120.0
        os.kill(os.getpid(), signal.SIGTERM)
        assert seconds_left_to_save() == 10
        now = 140.0
        assert seconds_left_to_save() == 0


def test_ctrl_c_and_the_parents_sigterm_are_one_wish_and_a_second_ctrl_c_is_another():
    with stop_requests() as is_requested:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert is_requested()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
