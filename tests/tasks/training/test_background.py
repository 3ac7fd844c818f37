import logging
import threading
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from phasewise.tasks.training import task
from phasewise.tasks.training.task import Background, wait_for_server

SECONDS = 20.0  # a guard against hanging


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "RETRY_SECONDS", 0.01)


def events(count: int) -> list[threading.Event]:
    return [threading.Event() for _ in range(count)]


def test_the_work_does_not_wait_and_of_each_kind_the_latest_is_made():
    (began, answers, done), made = events(3), list[str]()

    def slow() -> None:
        began.set()
        assert answers.wait(SECONDS)
        made.append("first")

    with Background() as requests:
        requests.ask("progress", slow)
        assert began.wait(SECONDS)
        requests.ask("progress", lambda: made.append("in between"))
        requests.ask("progress", lambda: (made.append("latest"), done.set()))
        assert made == []
        answers.set()
        assert done.wait(SECONDS)
    assert made == ["first", "latest"]


def test_a_server_that_is_away_is_asked_again_and_both_are_said_once(caplog: pytest.LogCaptureFixture):
    [done], tries = events(1), list[int]()

    def request() -> None:
        tries.append(1)
        if len(tries) < 4:
            raise httpx.ConnectError("refused")
        done.set()

    with caplog.at_level(logging.INFO, "phasewise"), Background() as requests:
        requests.ask("progress", request)
        assert done.wait(SECONDS)
    assert len(tries) == 4
    away = "the Prefect server does not answer (ConnectError): the work goes on without it"
    assert caplog.messages == [away, "the Prefect server answers again"]


def test_a_newer_request_takes_the_place_of_one_that_was_not_answered():
    (tried, done), made = events(2), list[str]()

    def fails() -> None:
        tried.set()
        made.append("old")
        raise httpx.ReadTimeout("late")

    with Background() as requests:
        requests.ask("progress", fails)
        assert tried.wait(SECONDS)
        requests.ask("progress", done.set)
        assert done.wait(SECONDS)
        number = len(made)
    assert len(made) <= number + 1


def server(*answers: int) -> Any:
    left = list(answers)

    def hello() -> httpx.Response:
        if left.pop(0):
            return httpx.Response(200)
        raise httpx.ConnectError("refused")

    return SimpleNamespace(hello=hello)


def test_waiting_for_an_answer_ends_with_it_or_with_the_time(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    with caplog.at_level(logging.INFO, "phasewise"):
        assert wait_for_server(server(0, 0, 1), SECONDS)
    assert caplog.messages == ["waiting for the Prefect server to answer"]
    assert wait_for_server(server(1), 0.0)
    assert not wait_for_server(server(*[0] * 1000), 0.02)
    monkeypatch.setattr(task, "END_SECONDS", 0.05)
    began, never = events(2)
    with Background() as requests:  # nor does the end wait for a server that stays away
        requests.ask("state", lambda: (began.set(), never.wait(SECONDS)))
        assert began.wait(SECONDS)
    never.set()
