"""Hosts that say who they are: all must come, in time, and be alike."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from phasewise.trainer.base.errors import ConfigError, HostMissing
from phasewise.trainer.base.run_folder import ROLL_CALL_NAME
from phasewise.trainer.base.storage import write_json
from phasewise.trainer.config import RunConfig
from phasewise.trainer.process import rendezvous
from phasewise.trainer.process.rendezvous import Presence, check_alike, meet, present
from phasewise.trainer.process.signals import positive_seconds

MakeRun = Callable[..., RunConfig]
LAUNCH = {"PHASEWISE_LAUNCH": "first", "PHASEWISE_HOSTS": "alpha,beta,gamma"}


class Clock:
    """Goes on by five seconds each time it is asked."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 5.0
        return self.now


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rendezvous, "LOOK_SECONDS", 0.001)


def test_hosts_that_are_alike_go_on(make_run: MakeRun):
    run = make_run("alike")
    present(run, 3, LAUNCH)  # Python 3.11 cannot parse files in several threads at once; each host has one
    failed: list[Exception] = []

    def answer(index: int) -> None:
        try:
            meet(run, (index, 3), LAUNCH)
        except Exception as error:  # whatever it is, the test shows it
            failed.append(error)

    threads = [threading.Thread(target=answer, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_the_host_that_is_missing_is_named_within_a_minute(make_run: MakeRun, capsys: pytest.CaptureFixture[str]):
    run = make_run("missing")
    clock = Clock()
    write_json(Path(run.output) / ROLL_CALL_NAME / "first" / "0.json", present(run, 3, LAUNCH).model_dump())
    with pytest.raises(
        HostMissing, match=r"3 hosts must be there before training begins, found 2 after \d+ s: host 1 \(beta\) did not come"
    ):
        meet(run, (2, 3), LAUNCH, clock=clock)
    assert clock.now < 65.0
    assert HostMissing.exit_code == 5, "all are started again"


def host(**changes: Any) -> Presence:
    values: dict[str, Any] = {
        "host": "alpha", "pid": 1, "processes": 2, "code": "c0de", "run": "a" * 64, "execution": "b" * 64,
        "versions": {"jax": "0.10.2"}, "environment": {"XLA_FLAGS": "--one"},
    }  # fmt: skip
    return Presence.model_validate({**values, **changes})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"code": "c0ffee"}, "code c0ffee, host 0 .alpha. c0de"),
        ({"run": "c" * 64}, "run cccccccccccc, host 0 .alpha. aaaaaaaaaaaa"),
        ({"execution": "c" * 64}, "execution cccccccccccc"),
        ({"processes": 4}, "processes 4, host 0 .alpha. 2"),
        ({"versions": {"jax": "0.10.1"}}, "jax 0.10.1, host 0 .alpha. 0.10.2"),
        ({"environment": {"XLA_FLAGS": "--two"}}, "XLA_FLAGS --two, host 0 .alpha. --one"),
        ({"environment": {}}, "XLA_FLAGS not set, host 0 .alpha. --one"),
        ({"environment": {"XLA_FLAGS": "--one", "NCCL_DEBUG": "INFO"}}, "NCCL_DEBUG INFO, host 0 .alpha. not set"),
    ],
)
def test_a_host_that_differs_is_refused_with_what_differs(changes: dict[str, Any], named: str):
    check_alike([host(), host(pid=2, host="beta")], [])
    with pytest.raises(ConfigError, match=rf"host 1 \(beta\) has {named}"):
        check_alike([host(), host(host="beta", **changes)], [])


@pytest.mark.parametrize("text", ["0", "-1", "soon", "inf", "nan"])
def test_a_time_that_is_none_is_refused(text: str):
    with pytest.raises(ConfigError, match=f"PHASEWISE_JOIN_SECONDS must be a number of seconds above 0, found '{text}'"):
        positive_seconds({"PHASEWISE_JOIN_SECONDS": text}, "PHASEWISE_JOIN_SECONDS", 1.0)
