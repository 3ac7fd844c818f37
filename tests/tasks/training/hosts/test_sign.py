"""Hosts that no connection ties to their launcher know by its sign on the store whether somebody commits what they send."""

from pathlib import Path

import pytest

from phasewise.tasks.training.hosts import program
from phasewise.tasks.training.hosts.limits import alone_seconds, send_seconds
from phasewise.tasks.training.hosts.post import Post, Posts
from phasewise.tasks.training.hosts.sign import Alone, Sign, look_seconds
from phasewise.trainer.base.errors import ConfigError, TakenOver
from tests.stores.fixtures import FaultyStore
from tests.tasks.training.hosts.worlds import RUN_NAME, Launch

LIMIT = 80.0


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_host_ends_when_the_sign_has_not_changed_for_the_limit(gcs: Path, clock: Clock):
    posts = Posts.of(gcs, RUN_NAME, "launch-1")
    sign, alone = Sign(posts, LIMIT, clock=clock), Alone(posts, LIMIT, clock=clock)
    for _ in range(10):
        sign.give()
        clock.now += look_seconds(LIMIT)
        assert not alone.look()
    clock.now += LIMIT - look_seconds(LIMIT)
    assert not alone.look(), "a launcher that is slow, or away for less than the limit, keeps its hosts"
    clock.now += LIMIT
    assert "no launcher has given a sign at gs://" in alone.look()
    assert "for 150 s (limit 80 s)" in alone.words


def test_a_launcher_that_never_gave_one_is_waited_for_as_long(gcs: Path, clock: Clock):
    alone = Alone(Posts.of(gcs, RUN_NAME, "launch-1"), LIMIT, clock=clock)
    clock.now += LIMIT
    assert not alone.look()
    clock.now += 1
    assert alone.look()


def test_a_store_that_does_not_answer_says_nothing_of_the_launcher_but_not_for_ever(faulty_store: FaultyStore, clock: Clock):
    posts = Posts.of(faulty_store.root, RUN_NAME, "launch-1")
    sign, alone = Sign(posts, LIMIT, clock=clock), Alone(posts, LIMIT, clock=clock)
    sign.give()
    assert not alone.look()
    faulty_store.faults.refuse(where="launcher", times=1000)
    clock.now += 5 * LIMIT
    assert not alone.look()
    faulty_store.faults.clear()
    clock.now += LIMIT
    assert not alone.look(), "the launcher, which the store did not answer either, has its whole time again"
    faulty_store.faults.refuse(where="launcher", times=1000)
    clock.now += 12 * LIMIT + 1
    assert "the store has not answered for 961 s" in alone.look()


def test_it_is_given_no_more_often_than_it_is_looked_for(gcs: Path, clock: Clock):
    posts = Posts.of(gcs, RUN_NAME, "launch-1")
    sign = Sign(posts, LIMIT, clock=clock)
    sign.give()
    before = posts.sign.read_bytes()
    clock.now += look_seconds(LIMIT) / 2
    sign.give()
    assert posts.sign.read_bytes() == before
    clock.now += look_seconds(LIMIT) / 2
    sign.give()
    assert posts.sign.read_bytes() != before


def test_one_whose_answer_was_lost_is_this_launchers(faulty_store: FaultyStore, clock: Clock):
    sign = Sign(Posts.of(faulty_store.root, RUN_NAME, "launch-1"), LIMIT, clock=clock)
    sign.give()
    clock.now += LIMIT
    faulty_store.faults.drop_reply(where="launcher", method="POST")
    faulty_store.faults.refuse(where="launcher", times=1000)
    with pytest.raises(Exception, match="503"):
        sign.give()
    faulty_store.faults.clear()
    sign.give()


def test_a_launcher_that_wakes_up_when_its_launch_is_over_gives_none(gcs: Path, tmp_path: Path):
    with Launch(tmp_path, gcs) as launch:
        assert launch.posts.sign.exists(), "hosts find it when they begin"
        old = launch.gathering
    old._sign._given = None  # pyright: ignore[reportPrivateUsage]  # it is time
    with pytest.raises(TakenOver, match="the launch is over"):
        old.gather()
    assert not launch.posts.sign.exists()


def test_hosts_that_wait_for_others_end_too(gcs: Path, clock: Clock):
    posts = Posts.of(gcs, RUN_NAME, "launch-1")
    posts.put(Post(launch="launch-1", host=0))
    alone = Alone(posts, LIMIT, clock=clock)
    clock.now += 2 * LIMIT
    alone.look()
    with pytest.raises(program.Stopped, match="no launcher has given a sign"):
        program._wait_for(posts, program.Place("launch-1", 0, 2, ["a", "b"]), "ready", alone, limit_seconds=None)  # pyright: ignore[reportPrivateUsage]


def test_the_limits_are_numbers_above_0():
    assert (alone_seconds({}), send_seconds({})) == (300.0, 120.0)
    assert (alone_seconds({"PHASEWISE_ALONE_SECONDS": "9"}), send_seconds({"PHASEWISE_SEND_SECONDS": "7.5"})) == (9.0, 7.5)
    for value in ("0", "-1", "nan", "inf", "long"):
        with pytest.raises(ConfigError, match=f"PHASEWISE_ALONE_SECONDS must be a number of seconds above 0, found '{value}'"):
            alone_seconds({"PHASEWISE_ALONE_SECONDS": value})
