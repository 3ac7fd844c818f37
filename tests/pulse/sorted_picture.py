"""The picture of `tests.pulse.sorted`."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from tests.pulse.sorted_runs import BRANCHES, Losses

TITLES = {BRANCHES[0]: "linear permutation", BRANCHES[1]: "Feistel permutation"}


def draw(predicted: Mapping[str, Losses], seen: Mapping[str, Sequence[Losses]], change: int) -> Figure:
    """A panel a branch: the loss of the mathematics, predicted and seen, and of all rows; the change that the gate predicts."""
    figure = Figure(figsize=(9.0, 3.2), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, name in zip(panels, BRANCHES, strict=True):
        for number, losses in enumerate(seen[name]):
            steps, values = losses.by_step(mathematics=True)
            axes.plot(steps, values, color="#17705f", linewidth=1.0, label="mathematics, trained" if number == 0 else None)
            steps, values = losses.by_step(mathematics=False)
            axes.plot(steps, values, color="#888888", linewidth=0.8, label="all rows, trained" if number == 0 else None)
        steps, values = predicted[name].by_step(mathematics=True)
        axes.plot(steps, values, color="#b0531c", linewidth=1.2, linestyle="--", label="mathematics, predicted by pairs of tokens")
        axes.axvline(change, color="#2b6a9e", linewidth=1.0, linestyle=":", label="change that the gate predicts for the linear one")
        axes.set(title=TITLES[name], xlabel="step")
    panels[0].set_ylabel("loss, nats a token")
    panels[0].legend(fontsize=7)
    return figure
