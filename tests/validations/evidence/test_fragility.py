import numpy as np
import pytest

from phasewise.trainer.base.errors import DataError
from phasewise.validations.evidence.exposure import Readings, exchange_p_value, exposure_evidence

ITEMS = 40


def readings(seed: int, *, first: float = 0.0, second: float = 0.0, items: int = ITEMS) -> Readings:
    """Hard and easy items: what they have in common is far larger than what a leak brings, and heavy-tailed."""
    rng = np.random.default_rng(seed)
    hard = -30 - 5 * np.abs(rng.standard_t(3, items))
    return Readings(hard + rng.normal(first, 1, items), hard - 10 + rng.normal(second, 1, items))


def p_values(*args: Readings, **parents: Readings) -> list[float]:
    return exposure_evidence(*args, **parents)["adjusted_p_value"].tolist()


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        (0.0, 0.0, [False, False, False]),
        (4.0, 0.0, [True, True, False]),  # one rendering was seen: it is likelier, and the gap moved
        (0.0, 4.0, [True, False, True]),  # the other was
        (4.0, 4.0, [False, True, True]),  # both were: the likelihoods alone say so
        (-4.0, 0.0, [True, False, False]),  # one became a surprise, as Bison's calculator tags did
    ],
)
def test_against_the_parent_a_leak_moves_what_it_must(first: float, second: float, found: list[bool]):
    items, reference = readings(1), readings(2)
    now_items = Readings(items.first + first, items.second + second)
    rng = np.random.default_rng(3)
    noise = Readings(rng.normal(1, 0.5, ITEMS), rng.normal(1, 0.5, ITEMS))
    now_reference = Readings(reference.first + noise.first, reference.second + noise.second)
    now_items = Readings(now_items.first + noise.second, now_items.second + noise.first)
    found_now = p_values(now_items, now_reference, parent_items=items, parent_reference=reference)
    assert [p <= 0.01 for p in found_now] == found


def test_without_a_parent_the_items_are_compared_as_they_are():
    assert min(p_values(readings(1), readings(2))) > 0.05
    assert p_values(readings(1, first=8.0), readings(2))[0] <= 0.001


def test_unseen_items_alarm_no_oftener_than_the_level():
    alarms = sum(min(p_values(readings(2 * seed), readings(2 * seed + 1))) <= 0.1 for seed in range(100, 160))
    assert alarms <= 0.1 * 60 + 2 * (60 * 0.09) ** 0.5


def test_the_same_groups_give_the_same_p_value_and_it_is_never_zero():
    seen, unseen = np.arange(20.0) + 100, np.arange(20.0)
    assert exchange_p_value(seen, unseen, "greater") == exchange_p_value(seen, unseen, "greater") == 1e-4
    assert exchange_p_value(unseen, seen, "greater") > 0.99


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(DataError, match="of the same items"):
        Readings(np.zeros(10), np.zeros(11))
    with pytest.raises(DataError, match="at least 8 of them"):
        Readings(np.zeros(5), np.zeros(5))
    with pytest.raises(DataError, match="must be a finite number"):
        Readings(np.full(10, np.nan), np.zeros(10))
    with pytest.raises(DataError, match="must read the same items, found 40 and 41"):
        readings(1).less(readings(1, items=41))
    with pytest.raises(DataError, match="both the items and the reference"):
        exposure_evidence(readings(1), readings(2), parent_items=readings(1))
