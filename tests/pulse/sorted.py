"""What Bison's order does to sorted data, predicted and then trained: `python -m tests.pulse.sorted FOLDER [--seeds N]`.

`bison-clean` is Bison without the leaked bundle, and a quarter of it is mathematics that is sorted by where it is from. First its data are
judged: nothing leaks, and the order decides. Of the seeds of the order the first is taken whose stride lets the data change late, as
Bison's did. What the gate says of it, and what counts of pairs of tokens predict, is printed before anything is trained. Then both branches
train from the same weights, by the record's linear permutation and by Feistel's. `docs/marin.md` says what came of it.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.stats import t as student

from tasks.data.plan import DataPlan
from tasks.home import Home
from tasks.validation.judge import judge_phase_data
from tests.pulse.sorted_picture import draw
from tests.pulse.sorted_prediction import predict
from tests.pulse.sorted_runs import (
    BRANCHES,
    FEISTEL,
    LINEAR,
    MATHEMATICS,
    PARENTS,
    Losses,
    branches,
    prepare,
    run_of,
    train_branch,
    train_parents,
    try_luck,
)
from trainer.data.mixture import MixtureSchedule
from validations.evidence.hand_off import hand_off_evidence
from validations.evidence.order.evidence import order_evidence
from validations.evidence.order.shift import find_shift

SEEDS, LUCK_SEEDS = 3, 1000


class Rise(NamedTuple):
    """How far the mean loss from a step on lies above that of as many steps before it, in nats a token."""

    mathematics: float
    overall: float


def rise_at(losses: Losses, step: int) -> Rise:
    """At a step that is known beforehand."""
    after = losses.steps >= step
    before = ~after & (losses.steps >= 2 * step - losses.steps.max() - 1)
    values, of_mathematics = losses.values, losses.is_mathematics
    return Rise(
        float(values[after & of_mathematics].mean() - values[before & of_mathematics].mean()),
        float(values[after].mean() - values[before].mean()),
    )


def change_of(losses: Losses) -> str:
    """Where the loss of the mathematics changes most, row by row as they are drawn, in words."""
    chosen = losses.is_mathematics
    shift = find_shift(losses.values[chosen])
    step = losses.steps[chosen][min(shift.at, chosen.sum() - 1)]
    return f"changes most at step {step}, by {shift.after - shift.before:+.2f} nats (p = {shift.p_value:.0e})"


def interval(values: Sequence[float]) -> str:
    """A mean with the 95 % interval that Student's t gives it."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return f"{mean:+.2f}"
    half = float(student.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5)
    return f"{mean:+.2f} ± {half:.2f}"


def ask_the_gate(home: Home, plan: DataPlan, order_seed: int) -> int:
    """Print what the gate of the data says of both branches; the step of the change that it predicts for the linear one."""
    recipe = branches(order_seed)
    found = 0
    for name in BRANCHES:
        run = run_of(recipe, name, home, plan, needs_parent=False)
        limits = recipe.phase(name).gates.data
        verdict = judge_phase_data(run, plan, limits, home, hand_off=hand_off_evidence(None, {}))
        print(f"\n{name}, seed {order_seed}: {'passes' if verdict.passes else 'is refused'}", flush=True)
        for check in verdict.checks:
            if check.table in ("leakage", "order", "shifts"):
                print(f"  {check.table:<8} {'passes' if check.passes else check.severity}: {check.asks}")
        for reason in verdict.reasons:
            print(f"  {reason.severity}: {reason.sentence}")
        _, shifts = order_evidence(run, limits.order)
        for row in shifts[shifts["component"] == MATHEMATICS].to_dict("records"):
            print(
                f"  {row['signal']:<16} step {row['change_at_step']}: {row['before']:.3g} → {row['after']:.3g}, "
                f"{row['shift_deviations']:.2f} deviations, p = {row['p_value']:.0e}"
            )
        if name == LINEAR:
            surest = shifts[shifts["component"] == MATHEMATICS].sort_values("p_value").iloc[0]
            found = int(surest["change_at_step"])
    return found


def tell(folder: Path, seeds: int, luck_seeds: int) -> None:
    """The whole story."""
    home = Home.open(str(folder / "home"))
    plan = prepare(home)
    run = run_of(branches(), LINEAR, home, plan, needs_parent=False)
    drawn = MixtureSchedule(batch=run.batch, mixture=run.mixture, order=run.order).realised(run.start_step, run.stop_step)[MATHEMATICS]
    luck = try_luck(Path(run.caches[MATHEMATICS]), run.model.seq_len, drawn, luck_seeds)
    print(f"{drawn} rows of {MATHEMATICS} are drawn. Of {luck.seeds:,} seeds a shift is predicted for {luck.shifting}.")
    print(f"The first with a late one is {luck.unlucky}: neighbours in time are {luck.stride} rows apart in the cache.")
    change = ask_the_gate(home, plan, luck.unlucky)
    predicted: dict[str, Losses] = {}
    for name in BRANCHES:
        recipe = branches(luck.unlucky)
        parents = [run_of(recipe, parent, home, plan, needs_parent=False) for parent in PARENTS]
        predicted[name] = predict(parents, run_of(recipe, name, home, plan, needs_parent=False))
        rise = rise_at(predicted[name], change)
        print(f"predicted {name}: {change_of(predicted[name])}; from {change} on {rise.mathematics:+.2f}, overall {rise.overall:+.2f}")
    seen = see(folder, plan, luck.unlucky, seeds)
    compare(predicted, seen, change)
    draw(predicted, seen, change).savefig(folder / "sorted.png", dpi=100)
    print(folder / "sorted.png")


def see(folder: Path, plan: DataPlan, order_seed: int, seeds: int) -> dict[str, list[Losses]]:
    """Train both branches, once a seed of the weights."""
    seen: dict[str, list[Losses]] = {name: [] for name in BRANCHES}
    for seed in range(seeds):
        recipe, home = branches(order_seed, seed), Home.open(str(folder / f"weights-{seed}"))
        train_parents(recipe, home, plan)
        for name in BRANCHES:
            seen[name].append(train_branch(run_of(recipe, name, home, plan)))
            print(f"seen {name}, weights {seed}: {change_of(seen[name][-1])}", flush=True)
    return seen


def compare(predicted: dict[str, Losses], seen: dict[str, list[Losses]], change: int) -> None:
    """Predicted and seen side by side."""
    print(f"\n| from step {change} on, nats a token | predicted | seen |\n|---|---|---|")
    for number, what in enumerate(Rise._fields):
        rises = {name: [rise_at(one, change)[number] for one in seen[name]] for name in BRANCHES}
        for name in BRANCHES:
            print(f"| {what}, {name} | {rise_at(predicted[name], change)[number]:+.2f} | {interval(rises[name])} |")
        expected = rise_at(predicted[LINEAR], change)[number] - rise_at(predicted[FEISTEL], change)[number]
        differences = [linear - feistel for linear, feistel in zip(rises[LINEAR], rises[FEISTEL], strict=True)]
        print(f"| {what}, difference of the two | {expected:+.2f} | {interval(differences)} |", flush=True)


def main() -> None:
    """Tell it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--luck-seeds", type=int, default=LUCK_SEEDS)
    asked = parser.parse_args()
    tell(asked.folder.resolve(), asked.seeds, asked.luck_seeds)


if __name__ == "__main__":
    main()
