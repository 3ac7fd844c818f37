import math
from typing import Any, get_args

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.trainer.metrics import ALL_GROUPS, Row
from phasewise.validations.evidence.health.evidence import MIN_UPDATES
from phasewise.validations.evidence.health.phenomena import PHENOMENA, Measure
from phasewise.validations.limits import HealthLimits
from tests.validations.evidence.health import simulated

COOLDOWN = simulated.Scenario(updates=1200)
LATE = np.arange(1200) / 1200


def row_of(table: pd.DataFrame, measure: str) -> dict[str, Any]:
    return next({str(name): value for name, value in row.items()} for row in table.to_dict("records") if row["measure"] == measure)


def changed(rows: list[Row], at: dict[int, dict[str, Any]]) -> list[Row]:
    return [{**row, **at.get(number, {})} for number, row in enumerate(rows)]


def spike(*rows: int) -> np.ndarray:
    added = np.zeros(1200)
    added[list(rows)] = 1.0
    return added


SPIKES = spike(600, 601, 602)
HEALTHY = simulated.healthy_rows(COOLDOWN)
LED = simulated.scaled(simulated.with_loss(HEALTHY, spike(600, 601)), "update_norm", 1 + spike(594, 595, 596))
PHENOMENA_MADE: dict[str, tuple[list[Row], set[str]]] = {
    "a value that is no number": (changed(HEALTHY, {700: {"grad_norm/mlp": None}}), {Measure.NON_FINITE}),
    "loss spikes": (simulated.with_loss(HEALTHY, SPIKES), {Measure.LOSS_SPIKES}),
    "gradient spikes": (simulated.scaled(HEALTHY, "grad_norm", 1 + 9 * SPIKES), {Measure.GRAD_NORM_SPIKES}),
    "gradient spikes of a group": (simulated.scaled(HEALTHY, "grad_norm/lm_head", 1 + 9 * SPIKES), {"grad_norm_spikes_percent/lm_head"}),
    "weights of a group that were replaced": (
        simulated.scaled(HEALTHY, "param_norm/norms", np.cumprod(1 + 0.3 * spike(600, 900))),
        {"param_norm_jumps_percent/norms"},
    ),
    "update norm leads loss (#1368)": (LED, {Measure.LOSS_SPIKES, Measure.LED_SPIKES}),
    "lm_head explodes (Spoonbill)": (
        simulated.scaled(HEALTHY, "param_norm/lm_head", np.exp(2 * LATE)),
        {Measure.LM_HEAD_GROWTH, "param_norm_jumps_percent/lm_head"},  # it grows on while the learning rate falls to nothing
    ),
    "loss creeps up (Raccoon)": (simulated.with_loss(HEALTHY, 0.5 * np.clip(LATE - 0.5, 0, 1)), {Measure.LOSS_RISE}),
    "loss shifts up at flat evaluation (Bison)": (
        simulated.with_loss(HEALTHY, 0.14 * (LATE >= 0.94)),
        {Measure.LOSS_SHIFT, Measure.LOSS_RISE},  # it does rise in the cooldown
    ),
    "loss shifts down at flat evaluation": (simulated.with_loss(HEALTHY, -0.14 * (LATE >= 0.5)), {Measure.LOSS_SHIFT}),
    "moving average the wrong way round (Ocelot)": (simulated.scaled(HEALTHY, "ema_distance", np.full(1200, 0.01)), {Measure.EMA_LAG}),
    "EMA gap": (changed(HEALTHY, {1199: {"eval_loss": 3.0, "ema_eval_loss": 2.7}}), {Measure.EMA_GAP}),
    "waiting for data": (simulated.scaled(HEALTHY, "data_seconds", np.full(1200, 30.0)), {Measure.DATA_SHARE}),
}


@pytest.mark.parametrize("name", PHENOMENA_MADE)
def test_each_phenomenon_is_found_by_its_own_measure_and_no_other(name: str):
    rows, expected = PHENOMENA_MADE[name]
    assert simulated.flagged(simulated.evidence(rows)) == {str(measure) for measure in expected}


def test_every_measure_fires_on_something():
    found = {str(measure).split("/")[0] for _, measures in PHENOMENA_MADE.values() for measure in measures}
    in_test_balance = {str(Measure.MAX_VIOLATION), str(Measure.EARLY_VIOLATION)}
    without_limit = {str(Measure.LOSS_STEP_SPREAD), str(Measure.BATCH_HET)}
    assert found == {str(measure).split("/")[0] for measure in PHENOMENA} - in_test_balance - without_limit


def test_a_shift_that_the_evaluation_follows_or_that_a_new_mixture_declares_is_not_the_data_s():
    rows = simulated.healthy_rows(simulated.Scenario(updates=1200, schedule="warm_up"))
    step = 0.3 * (LATE >= 0.6)
    assert Measure.LOSS_SHIFT in simulated.flagged(simulated.evidence(simulated.with_loss(rows, step)))
    assert Measure.LOSS_SHIFT not in simulated.flagged(
        simulated.evidence(simulated.with_loss(rows, step, names=("loss", "eval_loss", "ema_eval_loss")))
    )
    unseen = [*rows[:600], *without(rows[600:], "eval_loss", "ema_eval_loss")]
    assert Measure.LOSS_SHIFT not in simulated.flagged(simulated.evidence(simulated.with_loss(unseen, step))), "no evaluation follows it"
    rows = simulated.with_loss(HEALTHY, 0.5 * (LATE >= 0.5))
    declared = [*rows[:600], *({**row, "mixture_since": 100_600} for row in rows[600:])]
    assert simulated.flagged(simulated.evidence(rows)) >= {Measure.LOSS_SPIKES, Measure.LOSS_RISE, Measure.LOSS_SHIFT}
    assert simulated.flagged(simulated.evidence(declared)) == set()


@pytest.mark.parametrize("seed", range(20))
def test_a_healthy_run_is_silent(seed: int):
    assert simulated.flagged(simulated.evidence(simulated.healthy_rows(simulated.random_scenario(seed)))) == set()


def without(rows: list[Row], *names: str) -> list[Row]:
    return [{name: value for name, value in row.items() if name not in names} for row in rows]


def test_the_step_and_the_words_say_where_and_how_much():
    shift = row_of(simulated.evidence(PHENOMENA_MADE["loss shifts up at flat evaluation (Bison)"][0]), Measure.LOSS_SHIFT)
    assert shift["at_step"] == pytest.approx(100_001 + 0.94 * 1200, abs=40)
    assert "the loss shifts by +0.1" in shift["detail"]
    assert shift["described_in"] == 'Marin 32B retrospective, section "Shuffling anomaly"'
    led = row_of(simulated.evidence(LED), Measure.LED_SPIKES)
    assert led["at_step"] == 100_601
    assert "times its usual value, 6 updates earlier" in led["detail"]
    unseen = without(simulated.with_loss(HEALTHY, 0.3 * (LATE >= 0.5)), "eval_loss")
    assert "the training loss shifts by +0.3" in row_of(simulated.evidence(unseen), Measure.LOSS_SHIFT)["detail"]


@pytest.mark.parametrize(("missing", "measure", "is_required"), [
    (("loss",), Measure.LOSS_SPIKES, True), (("loss",), Measure.LOSS_RISE, True), (("update_norm",), Measure.LED_SPIKES, True),
    (("param_norm/lm_head",), Measure.LM_HEAD_GROWTH, True), (("grad_norm/mlp",), "grad_norm_spikes_percent/mlp", True),
    (("data_seconds",), Measure.DATA_SHARE, True), (("eval_loss",), Measure.LOSS_SHIFT, False),
    (("eval_loss", "ema_eval_loss"), Measure.EMA_GAP, False), (("ema_distance",), Measure.EMA_LAG, False),
])  # fmt: skip
def test_what_the_rows_lack_is_no_silent_pass(missing: tuple[str, ...], measure: str, is_required: bool):
    row = row_of(simulated.evidence(without(HEALTHY, *missing)), measure)
    assert (row["is_measured"], math.isnan(row["value"]), row["has_required_numbers"]) == (False, True, not is_required)
    assert row["is_unjudged"] == ("/" not in measure and measure != Measure.EMA_LAG)
    assert simulated.evidence(HEALTHY)["has_required_numbers"].all()


def test_what_the_recipe_does_not_limit_is_not_looked_for():
    off = {name: None for name, field in HealthLimits.model_fields.items() if type(None) in get_args(field.annotation)}
    table = simulated.evidence(HEALTHY, simulated.LIMITS.but(**off))
    for measure in (Measure.LM_HEAD_GROWTH, Measure.LOSS_RISE, Measure.LOSS_SHIFT, Measure.EMA_GAP, Measure.DATA_SHARE):
        row = row_of(table, measure)
        assert (row["is_measured"], row["is_unjudged"]) == (False, False)


NAMES = [*HEALTHY[0], "eval_loss", "ema_eval_loss", "something else"]
VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=2), st.lists(st.integers(), max_size=1))


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.lists(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=len(NAMES)), max_size=12))
def test_no_rows_break_it(rows: list[dict[str, Any]]):
    table = simulated.evidence(rows)
    assert set(table["measure"]) == (set(PHENOMENA) if rows else set())


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(st.data())
def test_damage_anywhere_in_a_long_run_does_not_break_it(data: st.DataObject):
    rows = simulated.healthy_rows(simulated.Scenario(updates=150, changes=(90,), schedule="wsd"))
    for _ in range(6):
        row, name, span = data.draw(st.tuples(st.integers(0, len(rows) - 1), st.sampled_from(NAMES), st.integers(1, 80)))
        value = data.draw(VALUES)
        rows[row : row + span] = [{**old, name: value} for old in rows[row : row + span]]
    assert len(simulated.evidence(rows)) == len(PHENOMENA)
    assert len(ALL_GROUPS) * 2 + len(Measure) == len(PHENOMENA)


def unlimited(rows: list[Row]) -> dict[str, Any]:
    table = simulated.evidence(rows, groups=()).set_index("measure", drop=False)
    return {measure: table.loc[measure] for measure in (Measure.LOSS_STEP_SPREAD, Measure.BATCH_HET)}


def rows_with(losses: np.ndarray, hets: np.ndarray | None = None) -> list[Row]:
    rows: list[Row] = [{"step": number + 1, "loss": float(loss)} for number, loss in enumerate(losses)]
    return rows if hets is None else [{**row, "batch_het": float(het)} for row, het in zip(rows, hets, strict=True)]


def test_the_spread_is_that_of_the_noise_and_not_of_the_trend_or_of_one_spike():
    rng = np.random.default_rng(0)
    losses = np.linspace(6, 3, 4000) + rng.normal(0, 0.05, 4000)
    losses[3000] += 10
    wild = losses + np.where(np.arange(4000) < 2000, rng.normal(0, 5, 4000), 0)
    for one in (losses, wild):
        assert unlimited(rows_with(one))[Measure.LOSS_STEP_SPREAD].value == pytest.approx(0.05, rel=0.05)


def test_the_parts_are_averaged_over_the_second_half_and_the_worst_is_named():
    hets = np.array([9.0] * 20 + [0.2] * 19 + [0.6])
    one = unlimited(rows_with(np.ones(40), hets))[Measure.BATCH_HET]
    assert (one.value, one.at_step) == (pytest.approx(0.22), 40)
    assert np.isnan(one.limit)


def test_what_a_run_does_not_hold_is_not_measured_and_stops_nothing():
    few = unlimited(rows_with(np.ones(2 * MIN_UPDATES)))
    assert not any(finding.is_measured for finding in few.values())
    assert all(finding.has_required_numbers and not finding.is_unjudged for finding in few.values())
