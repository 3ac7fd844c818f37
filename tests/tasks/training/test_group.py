"""Several processes as one program: which ending counts, and who is ended when."""

import signal
from pathlib import Path

import pytest

from phasewise.tasks.training.group import DONE_SECONDS, GRACE_SECONDS, Group, grace_seconds
from phasewise.tasks.training.protocol import decisive, ending, log_of


class Member:
    """A process that ends when a test says so."""

    def __init__(self, number: int, *, dies: bool = True) -> None:
        self.name, self.log_before, self.ended, self.dies = f"host{number}", 0, None, dies
        self.asked = 0

    ended: int | None

    def code(self) -> int | None:
        return self.ended

    def wait(self, seconds: float) -> None:
        pass

    def stop(self) -> None:
        self.asked += 1

    def kill(self) -> None:
        if self.ended is None:
            self.ended = -signal.SIGKILL

    def close(self) -> None:
        pass


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def members() -> list[Member]:
    return [Member(number) for number in range(3)]


@pytest.fixture
def group(tmp_path: Path, members: list[Member], clock: Clock) -> Group:
    found = Group(tmp_path, clock=clock)
    for member in members:
        found.add(member)
    return found


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([0, 0], 0),
        ([5, -signal.SIGKILL], -signal.SIGKILL),
        ([-signal.SIGABRT, 5], 5),
        ([75, 75], 75),
        ([75, -signal.SIGKILL], -signal.SIGKILL),
        ([4, -signal.SIGKILL, -signal.SIGABRT], 4),
        ([5, 3, 4], 3),
        ([0, 7, 75], 7),
        ([0, 5], 5),
        ([0, 120], 120),
        ([75, -signal.SIGTERM], 75),
        ([9, 5], 9),
        ([9, 7], 7),
    ],
)
def test_the_reason_counts_and_not_what_followed(codes: list[int], expected: int):
    assert decisive(codes) == expected
    assert decisive(reversed(codes)) == expected


def test_where_one_is_lost_the_others_are_ended_and_it_is_named(group: Group, members: list[Member], clock: Clock, tmp_path: Path):
    log_of(tmp_path, 1).write_text("noise\ntrainer: out of memory\n")
    assert group.look() is None
    members[1].ended = -signal.SIGKILL
    assert group.look() is None
    clock.now += GRACE_SECONDS + 1
    assert group.look() is None
    assert group.look() == -signal.SIGKILL
    assert [member.ended for member in members] == [-signal.SIGKILL] * 3
    assert log_of(tmp_path, 0).read_text() == "trainer: host 1 (host1) was ended by SIGKILL: out of memory\n"


def test_who_was_cut_off_is_not_the_reason(group: Group, members: list[Member], clock: Clock):
    """The others of a process that was preempted and could not be heard."""
    members[2].ended = 5
    group.look()
    clock.now += GRACE_SECONDS + 1
    group.look()
    assert group.look() == 5


def test_those_that_save_have_their_time(group: Group, members: list[Member], clock: Clock, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PHASEWISE_STOP_SECONDS", "100")
    members[0].ended = 75
    group.look()
    clock.now += 99
    assert group.look() is None
    assert members[1].ended is None
    members[1].ended = members[2].ended = 75
    assert group.look() == 75


def test_one_that_does_not_end_with_those_that_are_done_is_lost(group: Group, members: list[Member], clock: Clock, tmp_path: Path):
    members[0].ended = members[1].ended = 0
    group.look()
    clock.now += DONE_SECONDS + 1
    group.look()
    assert group.look() == 5
    assert "host 2 (host2) did not end with the others" in log_of(tmp_path, 0).read_text()


def test_how_long_the_others_may_go_on():
    assert grace_seconds([0, 0]) == DONE_SECONDS
    assert grace_seconds([0, 5]) == GRACE_SECONDS
    assert grace_seconds([75, 3]) == GRACE_SECONDS


@pytest.mark.parametrize(("code", "words"), [(-9, "was ended by SIGKILL"), (7, "ended no storage"), (120, "ended with code 120")])
def test_an_ending_in_words(code: int, words: str):
    assert ending(code) == words
