"""Several processes stop after the same update, whatever the numbers of a run's updates are."""

import itertools

import pytest

from phasewise.trainer.process import distributed


class Jax:
    """jax's rule: all stop at the number after the largest that any has asked with; before the first that is 0.

    Tried with jax 0.10.2: a SIGTERM before the first question, then questions from 41 on, is never answered.
    """

    def __init__(self) -> None:
        self.last, self.point = 0, -1

    def notice(self) -> None:
        self.point = self.last + 1

    def reached(self, number: int) -> bool:
        self.last = number
        return number == self.point


@pytest.mark.parametrize("heard_before", range(5))
@pytest.mark.parametrize(
    "steps",
    [[1, 2, 3, 4, 5], [41, 42, 43, 44, 45], [41, 42, 47, 48, 53], [41, 42, 31, 32, 37]],
    ids=["from the start", "goes on", "passes over", "rolls back"],
)
def test_a_stop_is_agreed_on_at_the_next_update(monkeypatch: pytest.MonkeyPatch, steps: list[int], heard_before: int):
    jax = Jax()
    monkeypatch.setattr(distributed, "_asked", itertools.count(1))
    monkeypatch.setattr(distributed.multihost_utils, "reached_preemption_sync_point", jax.reached)
    for number, step in enumerate(steps):
        if number == heard_before:
            jax.notice()
        assert distributed.stop_agreed(step) == (number == heard_before)
