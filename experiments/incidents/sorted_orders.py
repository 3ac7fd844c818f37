"""Does training confirm the gate's verdict on an order? Orders that it refuses and orders that it does not, trained from the same weights.

The test for a shift of the loss is the gate's test for a shift of the data. From the loss of each row of the mathematics the mean is
taken that such rows have at that step under Feistel's permutation, over several orders, from the same weights. The loss shifts if the
residual in training order has a change of mean with p < 0.01 and more than half a standard deviation. A first criterion with a straight
line instead of the mean, set before training, finds a shift in nine of ten Feistel orders, because the loss falls fast at first.
`docs/lab/experiments.md` has it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from experiments.incidents.sorted_runs import FEISTEL, LINEAR, MIN_DEVIATIONS, Losses, branches, losses_of, run_of
from phasewise.tasks.data.plan import DataPlan
from phasewise.tasks.home import Home
from phasewise.validations.evidence.order.evidence import order_evidence
from phasewise.validations.evidence.order.signals import Shift, find_shift

MAX_LOSS_P_VALUE = 0.01


class Curve(NamedTuple):
    steps: np.ndarray
    means: np.ndarray


class Asked(NamedTuple):
    seed: int
    drawn: str
    is_refused: bool
    change: int
    p_value: float
    seen: Shift
    seen_step: int
    null: Shift
    null_is_refused: bool


def curve_of(losses: Sequence[Losses]) -> Curve:
    """The mean loss of the mathematics at each step."""
    steps = np.concatenate([one.steps[one.is_mathematics] for one in losses])
    values = np.concatenate([one.values[one.is_mathematics] for one in losses])
    found, which = np.unique(steps, return_inverse=True)
    return Curve(found, np.bincount(which, values) / np.bincount(which))


def loss_shift(losses: Losses, curve: Curve) -> tuple[Shift, int]:
    steps = losses.steps[losses.is_mathematics]
    shift = find_shift(losses.values[losses.is_mathematics] - np.interp(steps, curve.steps, curve.means))
    return shift, int(steps[min(shift.at, len(steps) - 1)])


def is_seen(shift: Shift) -> bool:
    """Whether the loss shifts."""
    return shift.p_value < MAX_LOSS_P_VALUE and shift.deviations > MIN_DEVIATIONS


def ask_orders(home: Home, plan: DataPlan, seeds: dict[int, str]) -> list[Asked]:
    runs = {(seed, branch): run_of(branches(seed), branch, home, plan) for branch in (FEISTEL, LINEAR) for seed in seeds}
    losses = {which: losses_of(run) for which, run in runs.items()}
    asked: list[Asked] = []
    for seed, drawn in seeds.items():
        others = [losses[other, FEISTEL] for other in seeds if other != seed]
        null, _ = loss_shift(losses[seed, FEISTEL], curve_of(others))
        is_refused, change, p_value = told_by_gate(home, plan, seed, LINEAR)
        null_is_refused, *_ = told_by_gate(home, plan, seed, FEISTEL)
        seen, seen_step = loss_shift(losses[seed, LINEAR], curve_of([losses[other, FEISTEL] for other in seeds]))
        asked.append(Asked(seed, drawn, is_refused, change, p_value, seen, seen_step, null, null_is_refused))
        print(asked[-1], flush=True)
    return asked


def told_by_gate(home: Home, plan: DataPlan, order_seed: int, branch: str) -> tuple[bool, int, float]:
    recipe = branches(order_seed)
    limits = recipe.phase(branch).gates.data.order
    assert limits.max_shift_deviations is not None
    _, shifts = order_evidence(run_of(recipe, branch, home, plan, needs_parent=False), limits)
    surest = shifts.sort_values("p_value").iloc[0]
    return bool((shifts["sure_deviations"] > limits.max_shift_deviations).any()), int(surest["change_at_step"]), float(surest["p_value"])


def table_of_orders(asked: Sequence[Asked]) -> str:
    found = {f"linear, {drawn}": [(one.is_refused, one.seen) for one in asked if one.drawn == drawn] for _, drawn, *_ in asked}
    found["Feistel, all of these seeds"] = [(one.null_is_refused, one.null) for one in asked]
    lines = [
        "",
        "| orders | in all | the gate refuses | of these the loss shifts | passes | of these the loss shifts |",
        "|---|---|---|---|---|---|",
    ]
    for name, answers in found.items():
        refused, passed = ([is_seen(shift) for is_refused, shift in answers if is_refused is answer] for answer in (True, False))
        lines.append(f"| {name} | {len(answers)} | {len(refused)} | {sum(refused)} | {len(passed)} | {sum(passed)} |")
    return "\n".join(lines)
