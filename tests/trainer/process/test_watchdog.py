import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import get_args

import pytest

from phasewise.trainer.base.errors import ConfigError, ExitCode
from phasewise.trainer.config import Execution
from phasewise.trainer.process import watchdog as watchdogs


def test_every_work_has_the_limit_of_its_field_and_the_environment_replaces_what_it_names():
    execution = Execution(stall_seconds=1, step_stall_seconds=2, save_stall_seconds=3, restore_stall_seconds=None)
    found = watchdogs.stall_limits(execution, {})
    assert set(found) == set(watchdogs.FIELD_OF) == set(get_args(watchdogs.Work))
    assert found == {work: getattr(execution, field) for work, field in watchdogs.FIELD_OF.items()}
    assert (found["compile"], found["data"], found["barrier"], found["save"], found["restore"]) == (1, 2, 2, 3, None)
    found = watchdogs.stall_limits(Execution(), {"PHASEWISE_STALL_SECONDS": " step=0.5, save=off"})
    assert (found["step"], found["data"], found["save"], found["compile"]) == (0.5, 0.5, None, 1800)
    assert {watchdogs.FIELD_OF[work] for work in watchdogs.NAMED} == set(watchdogs.FIELD_OF.values())


def test_limits_that_do_not_read_are_refused():
    for text in ("60", "step=", "step=-1", "step=0", "step=inf", "steps=60", "save=never"):
        with pytest.raises(ConfigError, match=f"PHASEWISE_STALL_SECONDS must be limits such as step=60,save=900 .* found '{text}'"):
            watchdogs.stall_limits(Execution(), {"PHASEWISE_STALL_SECONDS": text})


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def watchdog_of(time: Time, **seconds: float) -> watchdogs.Watchdog:
    """With the limit of the works that are named, and no limit for all others."""
    return watchdogs.Watchdog(
        {work: seconds.get(work) for work in get_args(watchdogs.Work)}, lambda doing: pytest.fail(str(doing)), clock=time
    )


def test_only_silence_beyond_the_limit_of_the_work_is_a_stall():
    watchdog = watchdog_of(time := Time(), step=10.0, save=20.0)
    stages: list[tuple[watchdogs.Work, list[tuple[float, bool]]]] = [
        ("step", [(10.0, False), (10.1, True)]), ("save", [(10.1, False), (30.0, False), (30.2, True)]), ("compile", [(1e9, False)])
    ]  # fmt: skip
    for work, moments in stages:
        watchdog.begin(work, 7)
        for time.now, is_stalled in moments:
            assert watchdog.doing().is_stalled == is_stalled, (work, time.now)
    assert str(watchdogs.Doing("save", 20.1, 20.0)) == "save for 20 s, limit 20 s"
    assert watchdog.step == 7


def test_the_seconds_of_each_work_are_the_time_that_passed():
    watchdog = watchdog_of(time := Time())
    works: list[tuple[float, watchdogs.Work | None]] = [(2.0, "compile"), (5.0, "step"), (1.0, "save"), (4.0, "step"), (3.0, None)]
    for seconds, work in works:
        time.now += seconds
        if work:
            watchdog.begin(work)
    assert watchdog.spent() == {"start": 2.0, "compile": 5.0, "step": 1.0 + 3.0, "save": 4.0}


def test_a_process_that_was_stopped_as_a_whole_is_not_stalled():
    watchdog = watchdog_of(time := Time(), step=10.0)
    watchdog.begin("step")
    time.now = 500.0
    assert watchdog.look() is None, "after SIGSTOP and SIGCONT the look comes late, too"
    looks: list[watchdogs.Doing | None] = []
    for _ in range(20):
        time.now += 1.0
        looks.append(watchdog.look())
    assert looks[-1] is not None
    assert looks[-1].work == "step"
    assert watchdogs.STOPPED_SECONDS > 1.0


def test_the_thread_says_it_once_and_ends():
    shown, ended = list[watchdogs.Doing](), threading.Event()

    def on_stall(doing: watchdogs.Doing) -> None:
        shown.append(doing)
        ended.set()

    with watchdogs.Watchdog({work: 0.001 if work == "data" else None for work in get_args(watchdogs.Work)}, on_stall) as watchdog:
        watchdog.begin("data")
        assert ended.wait(30)
    assert [doing.work for doing in shown] == ["data"]


def test_a_stalled_process_says_where_it_is_and_ends(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    codes = list[int]()
    monkeypatch.setattr("phasewise.trainer.process.watchdog.os._exit", codes.append)
    monkeypatch.setattr(sys, "stderr", sys.__stderr__)
    watchdogs.end_stalled("kestrel", watchdogs.Doing("save", 65.0, 60.0))
    said = capfd.readouterr().err
    assert codes == [ExitCode.STALLED]
    assert "test_a_stalled_process_says_where_it_is_and_ends" in said
    assert said.splitlines()[-1].startswith("trainer: phase kestrel stalled in save for 65 s, limit 60 s (execution.save_stall_seconds).")


AT_WORK = """if True:
    import sys, time
    from pathlib import Path
    from phasewise.trainer.process import watchdog as module
    module.MAX_CHECK_SECONDS, module.SUSPENDED_SECONDS = 0.05, 0.2
    doing = module.Doing("step", 0.0, None)
    with module.Watchdog(dict.fromkeys(module.FIELD_OF), print) as watchdog, module.heartbeat(
        Path(sys.argv[1]), lambda: (doing, 1), spent=watchdog.spent
    ):
        watchdog.begin("data")
        watchdog.begin("step")
        print("steps", flush=True)
        sys.stdin.read(1)
        until = time.process_time() + 0.6
        while time.process_time() < until:  # a busy process is not suspended
            hash("a" * 1_000_000)
"""


@pytest.mark.alone  # a process that waits for a busy machine looks suspended
def test_the_time_of_a_suspended_process_is_not_the_time_of_its_work(tmp_path: Path):
    child = subprocess.Popen([sys.executable, "-c", AT_WORK, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout
    assert child.stdout.readline() == b"steps\n"
    began = time.monotonic()
    child.send_signal(signal.SIGSTOP)
    os.waitpid(child.pid, os.WUNTRACED)
    time.sleep(0.5)
    stopped = time.monotonic() - began
    child.send_signal(signal.SIGCONT)
    child.communicate(b"x")
    spent = watchdogs.read_heartbeat(tmp_path)["spent"]
    assert spent[watchdogs.SUSPENDED] > stopped - 0.1, "all but one check"
    assert spent["step"] > 0.5, "the work of a busy process"
