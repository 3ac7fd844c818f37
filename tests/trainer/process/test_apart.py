"""Hosts with a folder each: what says so, what they cannot do, and what they tell one another."""

import threading
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from phasewise.trainer.base.errors import ConfigError, TrainingError
from phasewise.trainer.process.apart import Exchange, are_apart, check_goes_apart
from phasewise.trainer.process.distributed import is_of_the_runtime


class Keys:
    """The coordinator's store of keys."""

    def __init__(self) -> None:
        self.said: dict[str, str] = {}
        self.changed = threading.Condition()

    def key_value_set(self, key: str, value: str) -> None:
        with self.changed:
            self.said[key] = value
            self.changed.notify_all()

    def key_value_delete(self, key: str) -> None:
        del self.said[key]

    def blocking_key_value_get(self, key: str, _milliseconds: int) -> str:
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.said, timeout=5):
                raise jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED: nobody said it")
            return self.said[key]


def told(keys: Keys, words: list[list[str]], what: list[str] | None = None) -> list[Any]:
    """What each of some processes hears, each of which says its words one after the other."""
    heard: list[Any] = [None] * len(words)

    def talk(index: int) -> None:
        exchange = Exchange(keys, index, len(words))
        try:
            heard[index] = [exchange.tell((what or ["x"] * len(words))[index], word) for word in words[index]]
        except TrainingError as error:
            heard[index] = str(error)

    threads = [threading.Thread(target=talk, args=(index,)) for index in range(len(words))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return heard


def test_all_hear_all_in_order_and_little_is_kept():
    keys = Keys()
    words = [[f"{index} {number}" for number in range(5)] for index in range(3)]
    assert told(keys, words) == [[[one[number] for one in words] for number in range(5)]] * 3
    assert len(keys.said) == 3


def test_one_that_says_nothing_is_lost(monkeypatch: pytest.MonkeyPatch):
    keys = Keys()
    monkeypatch.setattr(keys.changed, "wait_for", lambda *_, **__: False)
    with pytest.raises(jax.errors.JaxRuntimeError) as gone:
        Exchange(keys, 0, 2).tell("checkpoint 5", "a")
    assert is_of_the_runtime(gone.value), "so the run is started again"


def test_processes_that_are_at_different_things_are_refused():
    assert all("found checkpoint 10 and checkpoint 5" in said for said in told(Keys(), [["a"], ["b"]], ["checkpoint 5", "checkpoint 10"]))


@pytest.mark.parametrize(("value", "found"), [("", False), ("1", True)])
def test_what_the_environment_says(value: str, found: bool):
    assert are_apart({"PHASEWISE_APART": value} if value else {}) == found


def test_another_word_is_refused():
    with pytest.raises(ConfigError, match="PHASEWISE_APART must be 1 or not be set, found 'yes'"):
        are_apart({"PHASEWISE_APART": "yes"})


def test_a_phase_that_rolls_back_is_refused():
    plain: Any = SimpleNamespace(phase="mantis", recovery=None)
    check_goes_apart(plain)
    plain.recovery = "roll back"
    with pytest.raises(ConfigError, match="mantis rolls back"):
        check_goes_apart(plain)
