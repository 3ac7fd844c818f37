"""The picture of `experiments.incidents.sorted`."""

from collections.abc import Sequence
from typing import Protocol

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.incidents.sorted_runs import BRANCHES, Losses

TITLES = dict(zip(BRANCHES, ("linear permutation", "Feistel permutation"), strict=True))


class Told(Protocol):
    @property
    def seed(self) -> int: ...
    @property
    def change(self) -> int: ...
    @property
    def predicted(self) -> dict[str, Losses]: ...
    @property
    def seen(self) -> dict[str, Losses]: ...


def draw(told: Sequence[Told]) -> Figure:
    seeds = list(dict.fromkeys(one.seed for one in told))
    figure = Figure(figsize=(9.0, 0.6 + 2.4 * len(seeds)), layout="constrained")
    rows = figure.subplots(len(seeds), 2, sharey=True, sharex=True, squeeze=False)
    for panels, seed in zip(rows, seeds, strict=True):
        of_seed = [one for one in told if one.seed == seed]
        for axes, name in zip(panels, BRANCHES, strict=True):
            _draw_branch(axes, name, of_seed)
    for axes, name in zip(rows[0], BRANCHES, strict=True):
        axes.set_title(TITLES[name])
    for panels in rows:
        panels[0].set_ylabel("loss, nats a token")
    for axes in rows[-1]:
        axes.set_xlabel("step")
    rows[0][1].legend(fontsize=7)
    return figure


def _draw_branch(axes: Axes, name: str, told: Sequence[Told]) -> None:
    for number, one in enumerate(told):
        labels = ("mathematics, trained", "all rows, trained") if number == 0 else (None, None)
        axes.plot(*one.seen[name].by_step(mathematics=True), color="#17705f", linewidth=1.0, label=labels[0])
        axes.plot(*one.seen[name].by_step(mathematics=False), color="#888888", linewidth=0.6, label=labels[1])
    predicted = told[0].predicted[name].by_step(mathematics=True)
    axes.plot(*predicted, color="#b0531c", linewidth=1.2, linestyle="--", label="mathematics, by pairs of tokens")
    axes.axvline(told[0].change, color="#2b6a9e", linewidth=1.0, linestyle=":", label="change that the gate predicts")
