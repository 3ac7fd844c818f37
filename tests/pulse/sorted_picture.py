"""The picture of `tests.pulse.sorted`."""

from collections.abc import Sequence
from typing import Protocol

from matplotlib.figure import Figure

from tests.pulse.sorted_runs import BRANCHES, Losses

TITLES = dict(zip(BRANCHES, ("linear permutation", "Feistel permutation"), strict=True))


class Told(Protocol):
    """What is drawn of one seed."""

    @property
    def change(self) -> int: ...
    @property
    def predicted(self) -> dict[str, Losses]: ...
    @property
    def seen(self) -> dict[str, Losses]: ...


def draw(told: Sequence[Told]) -> Figure:
    """A row a seed, a panel a branch: the loss of the mathematics, predicted and seen, and of all rows; the step that the gate predicts."""
    figure = Figure(figsize=(9.0, 0.6 + 2.4 * len(told)), layout="constrained")
    rows = figure.subplots(len(told), 2, sharey=True, sharex=True, squeeze=False)
    for panels, one in zip(rows, told, strict=True):
        for axes, name in zip(panels, BRANCHES, strict=True):
            axes.plot(*one.seen[name].by_step(mathematics=True), color="#17705f", linewidth=1.2, label="mathematics, trained")
            axes.plot(*one.seen[name].by_step(mathematics=False), color="#888888", linewidth=0.8, label="all rows, trained")
            predicted = one.predicted[name].by_step(mathematics=True)
            axes.plot(*predicted, color="#b0531c", linewidth=1.2, linestyle="--", label="mathematics, by pairs of tokens")
            axes.axvline(one.change, color="#2b6a9e", linewidth=1.0, linestyle=":", label="change that the gate predicts")
    for axes, name in zip(rows[0], BRANCHES, strict=True):
        axes.set_title(TITLES[name])
    for panels in rows:
        panels[0].set_ylabel("loss, nats a token")
    for axes in rows[-1]:
        axes.set_xlabel("step")
    rows[0][0].legend(fontsize=7)
    return figure
