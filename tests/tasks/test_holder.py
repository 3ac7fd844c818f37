"""Who holds a file, seen from another process."""

import subprocess
import sys
from pathlib import Path

import pytest

from phasewise.tasks.locks import AlreadyHeld, Holder, holder_of, holding

HOLDING = """
import sys
from pathlib import Path
from phasewise.tasks.locks import holding
with holding(Path(sys.argv[1]), "`phasewise up`", url="http://127.0.0.1:1/api"):
    print("held", flush=True)
    sys.stdin.read()
"""


def hold_elsewhere(place: Path) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen([sys.executable, "-c", HOLDING, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout
    assert process.stdout.readline() == b"held\n"
    return process


def test_who_holds_it_is_said_until_he_is_gone_however_he_went(tmp_path: Path):
    place = tmp_path / "lock"
    assert holder_of(place) is None
    with hold_elsewhere(place) as process:
        holder = holder_of(place)
        assert holder is not None
        assert (holder.what, holder.pid, holder.url) == ("`phasewise up`", process.pid, "http://127.0.0.1:1/api")
        with (
            pytest.raises(AlreadyHeld, match=rf"^`phasewise up` \(process {process.pid}, since .*\) is at work in {tmp_path}: wait for it"),
            holding(place, "a run"),
        ):
            raise AssertionError("entered twice")
        process.kill()
    assert holder_of(place) is None
    with holding(place, "a run"):
        assert str(holder_of(place)).startswith("a run (process ")


def test_a_process_that_holds_it_may_enter_again(tmp_path: Path):
    """A flow of ours opens others in its own process; the file is free when the outermost is left."""
    place = tmp_path / "lock"
    with holding(place, "outer"):
        with holding(place, "inner"):
            pass
        assert str(holder_of(place)).startswith("outer ")
    assert holder_of(place) is None


def test_who_is_waited_for_is_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    place = tmp_path / "lock"
    named = list[Holder]()
    looks = list[float]()
    monkeypatch.setattr("phasewise.tasks.locks.PATIENCE_SECONDS", 0.0)
    with hold_elsewhere(place) as process:

        def look_again(seconds: float) -> None:
            """Instead of sleeping; the fifth look finds the holder gone."""
            looks.append(seconds)
            if len(looks) == 5:
                process.kill()
                process.wait()

        monkeypatch.setattr("phasewise.tasks.locks.time.sleep", look_again)
        with holding(place, "a run", on_wait=named.append):
            assert str(holder_of(place)).startswith("a run ")
    assert len(looks) == 5
    assert [holder.pid for holder in named] == [process.pid]
