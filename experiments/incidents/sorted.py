"""What Bison's order does to sorted data, predicted and then trained: `python -m experiments.incidents.sorted FOLDER`.

`bison-clean` is Bison without the leaked bundle, with 30 % mathematics sorted by its origin. First its data are judged: nothing leaks,
and the order decides. Of the seeds of the order the first `--seeds` are taken whose stride lets the data change late, as Bison's did.
Before a branch is trained, the command prints the gate's verdict and a prediction from counts of token pairs. Then both branches train
from the same weights, by the record's linear permutation and by Feistel's, for each of `--weights` first weights. At last `--orders`
orders that are drawn blindly, and as many that the gate refuses, are trained from the first of these weights
(`experiments.incidents.sorted_orders`). `docs/lab/sorted-data.md` has the results.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.incidents.intervals import half_width
from experiments.incidents.sorted_orders import ask_orders, table_of_orders
from experiments.incidents.sorted_picture import draw
from experiments.incidents.sorted_prediction import predict
from experiments.incidents.sorted_runs import (
    BRANCHES,
    FEISTEL,
    LINEAR,
    MATHEMATICS,
    PARENTS,
    Losses,
    branches,
    losses_of,
    prepare,
    run_of,
    train_parents,
    try_luck,
)
from phasewise.tasks.data.plan import DataPlan
from phasewise.tasks.home import Home
from phasewise.tasks.validation.judge import judge_phase_data
from phasewise.trainer.data.mixture import MixtureSchedule
from phasewise.validations.evidence.caches import hand_off_evidence
from phasewise.validations.evidence.order.evidence import order_evidence

SEEDS, WEIGHTS, ORDERS, LUCK_SEEDS = 1, 4, 6, 1000


class Told(NamedTuple):
    seed: int
    weights: int
    change: int
    predicted: dict[str, Losses]
    seen: dict[str, Losses]


class Rise(NamedTuple):
    mathematics: float
    overall: float

    def __str__(self) -> str:
        return f"mathematics {self.mathematics:+.2f}, overall {self.overall:+.2f} nats a token"


def rise_at(losses: Losses, step: int) -> Rise:
    after = losses.steps >= step
    before = ~after & (losses.steps >= 2 * step - losses.steps.max() - 1)
    values, of_mathematics = losses.values, losses.is_mathematics
    return Rise(
        float(values[after & of_mathematics].mean() - values[before & of_mathematics].mean()),
        float(values[after].mean() - values[before].mean()),
    )


def interval(values: Sequence[float]) -> str:
    mean = float(np.mean(values))
    return f"{mean:+.2f}" if len(values) < 2 else f"{mean:+.2f} ± {half_width(values):.2f}"


def ask_the_gate(home: Home, plan: DataPlan, order_seed: int) -> None:
    recipe = branches(order_seed)
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


def predicted_change(home: Home, plan: DataPlan, order_seed: int) -> int:
    """The step of the surest change that the evidence has of the linear branch."""
    recipe = branches(order_seed)
    run = run_of(recipe, LINEAR, home, plan, needs_parent=False)
    _, shifts = order_evidence(run, recipe.phase(LINEAR).gates.data.order)
    return int(shifts[shifts["component"] == MATHEMATICS].sort_values("p_value").iloc[0]["change_at_step"])


def tell_of(order_seed: int, home: Home, plan: DataPlan, weights: dict[int, Home]) -> list[Told]:
    recipe, change = branches(order_seed), predicted_change(home, plan, order_seed)
    parents = [run_of(recipe, parent, home, plan, needs_parent=False) for parent in PARENTS]
    predicted = {name: predict(parents, run_of(recipe, name, home, plan, needs_parent=False)) for name in BRANCHES}
    print(f"\nseed {order_seed}: the gate predicts a change at step {change}", flush=True)
    for name in BRANCHES:
        print(f"  predicted {name}: {rise_at(predicted[name], change)}", flush=True)
    told: list[Told] = []
    for seed, of_seed in weights.items():
        seen = {name: losses_of(run_of(branches(order_seed, seed), name, of_seed, plan)) for name in BRANCHES}
        told.append(Told(order_seed, seed, change, predicted, seen))
        for name in BRANCHES:
            print(f"  seen      {name}, weights {seed}: {rise_at(seen[name], change)}", flush=True)
    return told


def train_weights(folder: Path, plan: DataPlan, seeds: int) -> dict[int, Home]:
    """The parents of the branches, once a seed of the first weights: seed → the home that has them."""
    homes = {seed: Home.open(str(folder / f"weights-{seed}")) for seed in range(seeds)}
    for seed, home in homes.items():
        train_parents(branches(0, seed), home, plan)
        print(f"weights {seed}: trained", flush=True)
    return homes


def tell(folder: Path, *, seeds: int, weights: int, orders: int, luck_seeds: int) -> None:
    """The whole story."""
    home = Home.open(str(folder / "home"))
    plan = prepare(home)
    run = run_of(branches(), LINEAR, home, plan, needs_parent=False)
    drawn = MixtureSchedule(batch=run.batch, mixture=run.mixture, order=run.order).realised(run.start_step, run.stop_step)[MATHEMATICS]
    luck = try_luck(Path(run.caches[MATHEMATICS]), run.model.seq_len, drawn, luck_seeds, wanted=seeds, refused=orders)
    print(f"{drawn} rows of {MATHEMATICS} are drawn. Of {luck.seeds:,} seeds a shift is predicted for {luck.shifting}.")
    for seed, stride in luck.unlucky:
        print(f"Seed {seed} has a late one: neighbours in time are {stride} rows apart in the cache.")
    print(f"The first seeds with one anywhere: {luck.refused}.")
    ask_the_gate(home, plan, luck.unlucky[0][0])
    homes = train_weights(folder, plan, weights)
    told = {seed: tell_of(seed, home, plan, homes) for seed, _ in luck.unlucky}
    for seed, of_seed in told.items():
        print(f"\nseed {seed}:{table(of_seed)}", flush=True)
    draw([one for of_seed in told.values() for one in of_seed]).savefig(folder / "sorted.png", dpi=100)
    print(folder / "sorted.png")
    blindly = np.random.default_rng(0).choice(luck_seeds, orders, replace=False)
    asked = ask_orders(
        homes[0], plan, {int(seed): "drawn blindly" for seed in blindly} | dict.fromkeys(luck.refused, "refused by the gate")
    )
    print(table_of_orders(asked))


def table(told: Sequence[Told]) -> str:
    lines = ["", "| from the predicted step on, nats a token | predicted | seen |", "|---|---|---|"]
    for number, what in enumerate(Rise._fields):
        found = {
            "predicted": {name: [rise_at(told[0].predicted[name], told[0].change)[number]] for name in BRANCHES},
            "seen": {name: [rise_at(one.seen[name], one.change)[number] for one in told] for name in BRANCHES},
        }
        for name in BRANCHES:
            lines.append(f"| {what}, {name} | {interval(found['predicted'][name])} | {interval(found['seen'][name])} |")
        apart = {kind: [a - b for a, b in zip(of[LINEAR], of[FEISTEL], strict=True)] for kind, of in found.items()}
        lines.append(f"| {what}, difference | {interval(apart['predicted'])} | {interval(apart['seen'])} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--weights", type=int, default=WEIGHTS)
    parser.add_argument("--orders", type=int, default=ORDERS)
    parser.add_argument("--luck-seeds", type=int, default=LUCK_SEEDS)
    asked = parser.parse_args()
    counts = {"seeds": asked.seeds, "weights": asked.weights, "orders": asked.orders}
    tell(asked.folder.resolve(), **counts, luck_seeds=asked.luck_seeds)


if __name__ == "__main__":
    main()
