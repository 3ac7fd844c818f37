import math
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy.stats import rankdata

from phasewise.trainer.base.errors import DataError
from phasewise.validations.evidence.floor import binomial_p_values, measure_floor, place_p_value
from tests.validations.made_answers import grouped_result, guessed_result, scored_result

RATES = (0.01, 0.05, 0.2)


def shares_at_most(p_values: list[float], rate: float) -> tuple[float, float]:
    """The share of p-values of at most `rate`, and the most that a share of `rate` gives in 1 of 30,000 simulations."""
    return float(np.mean(np.array(p_values) <= rate)), rate + 4 * math.sqrt(rate * (1 - rate) / len(p_values))


def test_the_binomial_counts_every_outcome_that_is_as_far_out() -> None:
    chances = [math.comb(20, k) * 0.25**k * 0.75 ** (20 - k) for k in range(21)]
    for right in range(21):
        assert binomial_p_values(right, 20, 0.25) == pytest.approx((sum(chances[right:]), sum(chances[: right + 1])), rel=1e-9)


@pytest.mark.parametrize(("model_alone", "baseline_alone"), [(0, 0), (3, 0), (0, 8), (5, 2)])
def test_paired_items_are_tosses_of_a_coin(model_alone: int, baseline_alone: int) -> None:
    said = [(True, True)] * 4 + [(False, False)] * 9 + [(True, False)] * model_alone + [(False, True)] * baseline_alone
    tosses = [sum(toss) for toss in product((0, 1), repeat=model_alone + baseline_alone)]
    expected = [np.mean([toss >= model_alone for toss in tosses]), np.mean([toss <= model_alone for toss in tosses])]
    right, baseline_right = np.array(said)[:, :, None].transpose(1, 0, 2)
    floor = measure_floor(grouped_result(np.zeros((len(said), 1, 1)), right=right, baseline_right=baseline_right))
    assert (floor.accuracy_p_value, floor.below_p_value) == pytest.approx(expected)


def test_the_sum_of_places_has_the_chance_that_enumeration_gives() -> None:
    units = [np.array([-1.0, -1.0 + 1e-6]), np.array([-2.0, -3.0, -1.0, -2.0]), np.array([-4.0, -9.0, -8.0, -7.0, -6.0, -1e9])]
    places = [[Fraction(int(2 * place) - 1, 2 * len(unit)) for place in rankdata(np.round(unit, 3))] for unit in units]
    observed = sum(of_unit[0] for of_unit in places)
    combinations = [sum(combination) >= observed for combination in product(*places)]
    assert place_p_value(units) == pytest.approx(np.mean(combinations))


def test_no_single_item_decides() -> None:
    scores = np.random.default_rng(3).normal(size=(30, 4))
    tame, wild = ([np.array([top, *row[1:]]) if n == 0 else row for n, row in enumerate(scores)] for top in (scores[0].max() + 1, 1e6))
    assert place_p_value(tame) == place_p_value(wild) > 0.01


@pytest.mark.parametrize("noise_nats", [0.0, 1e-6])
def test_a_model_that_does_not_read_the_opening_gains_nothing(noise_nats: float) -> None:
    rng = np.random.default_rng(5)
    liking = rng.standard_cauchy((32, 1, 4)) * 10
    scores = liking + rng.normal(size=(32, 4, 1)) + noise_nats * rng.uniform(-1, 1, size=(32, 4, 4))
    best = liking.argmax(axis=-1) == np.arange(4)
    floor = measure_floor(grouped_result(scores, right=best, baseline_right=best))
    assert (floor.likelihood_p_value, floor.p_value) == (1, 1)
    assert floor.mean_margin_nats == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("tails", ["normal", "cauchy", "skewed"])
def test_models_that_know_nothing_pass_no_oftener_than_they_may(tails: str) -> None:
    """Whatever the tails; first by choices of the item's own, right where its likeliest choice is, then by groups."""
    rng = np.random.default_rng(7)
    draw = {"normal": rng.normal, "cauchy": rng.standard_cauchy, "skewed": lambda size: -rng.lognormal(sigma=2, size=size)}[tails]
    alone: list[float] = []
    grouped: list[float] = []
    shape = (6, 4)
    for _ in range(1000):
        alone.append(measure_floor(scored_result(draw(size=(24, 4)))).p_value)
        of_groups = draw(size=(*shape, 4)) + draw(size=(6, 1, 4))
        result = grouped_result(of_groups, right=rng.random(shape) < 0.3, baseline_right=rng.random(shape) < 0.3)
        grouped.append(measure_floor(result).p_value)
    for p_values in (alone, grouped):
        for rate in RATES:
            share, most = shares_at_most(p_values, rate)
            assert share <= most
        assert shares_at_most(p_values, 0.2)[0] > 0.05  # and it is not that nothing ever passes


def test_likelihood_tells_what_accuracy_can_not() -> None:
    rng = np.random.default_rng(11)
    said: list[bool] = []
    answered = np.zeros((32, 4), bool)
    answered[:8, 0] = True
    for _ in range(50):
        scores = rng.normal(size=(32, 4, 4)) + 0.5 * np.eye(4)
        floor = measure_floor(grouped_result(scores, right=answered, baseline_right=answered))
        assert (floor.accuracy_p_value, floor.decided_by) == (1, "likelihood")
        said.append(floor.p_value <= 0.01)
    assert np.mean(said) >= 0.9


def test_what_is_reported_of_a_result_also_where_its_value_is_no_number() -> None:
    floor = measure_floor(guessed_result(right=80, first=100))
    assert (floor.items, floor.right, floor.accuracy_test, floor.decided_by) == (200, 80, "exact binomial", "accuracy")
    assert floor.accuracy_p_value == binomial_p_values(80, 200, 0.25)[0]
    assert floor.below_p_value > 0.99
    assert floor.likelihood_p_value > 0.4
    assert floor.p_value == 2 * floor.accuracy_p_value
    assert floor.mean_margin_nats == pytest.approx(-1.0)  # −5 and −20, against the mean of 3 of −10 … −13, as often each
    assert measure_floor(guessed_result(right=80, first=100) | {"value": math.nan}).right == 80


@pytest.mark.parametrize("response", [math.nan, -math.inf])
def test_a_response_that_is_no_number_leaves_no_p_value(response: float) -> None:
    result = guessed_result(right=190, first=190)
    result["answers"][7]["log_likelihoods"] = [response] * 4
    floor = measure_floor(result)
    assert floor.accuracy_p_value < 1e-9
    assert all(map(math.isnan, (floor.likelihood_p_value, floor.mean_margin_nats, floor.p_value)))


GUESSED = guessed_result(right=80, first=100)


def changed(answer: int, **fields: Any) -> dict[str, Any]:
    return GUESSED | {"answers": [one | fields if at == answer else one for at, one in enumerate(GUESSED["answers"])]}


def in_groups() -> dict[str, Any]:
    answered = np.zeros((6, 4), bool)
    result = grouped_result(np.random.default_rng(0).normal(size=(6, 4, 4)), right=answered, baseline_right=answered)
    kept = [answer for answer in result["answers"] if answer["id"] != "completion-5-3"]
    return result | {"answers": kept, "items": len(kept)}


@pytest.mark.parametrize(("result", "what"), [
    ({name: value for name, value in GUESSED.items() if name != "answers"}, "an answer to each"),
    (GUESSED | {"answers": []}, "an answer to each"), (GUESSED | {"answers": [], "items": 0}, "an answer to each"),
    (GUESSED | {"items": 201}, "an answer to each"), (changed(0, id="continuation-1"), "an answer to each"),
    (GUESSED | {"value": 0.9}, "right as often as its value"), (changed(0, right=False), "right as often as its value"),
    (GUESSED | {"baseline": 1.0}, "a baseline that guesses"), (changed(0, baseline_right=True), "right on as many of its items"),
    (changed(0, gold=4), "a log-likelihood of each choice"), (changed(0, log_likelihoods=[]), "a log-likelihood of each choice"),
    (changed(0, group=3), "groups of at most 7 items"), (in_groups(), "groups of at most 7 items"),
])  # fmt: skip
def test_answers_that_do_not_fit_are_refused(result: dict[str, Any], what: str) -> None:
    with pytest.raises(DataError, match=rf"must have .*{what}.*found \d+ answers to \d+ items"):
        measure_floor(result)
