"""Who trained on the test items is found by two renderings of them: `python -m experiments.incidents.fragility FOLDER [--seeds N]`.

Models of 0.3 million parameters learn word problems in the manner of GSM8K, half of them with calculator tags such as `<<16-7=9>>`. In
a second phase three quarters of the data are a planted `test.json`, with tags or without, or nothing is planted. The evidence of
`validations.evidence.fragility` compares 64 test items with 64 unseen items of the same kind, and the phase with its parent. The
command prints a row per run and draws a figure. `docs/reference/gates.md` has the results.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from experiments.incidents.fragility_runs import PLANTED, Exposed, expose

SEEDS = 3
TITLES = {"clean": "nothing planted", "tagged": "planted with tags", "plain": "planted without tags"}
COLOURS = {"test items": "#b0531c", "unseen items": "#2b6a9e"}
INCHES, PIXELS_AN_INCH, BINS = (9.0, 2.7), 100, 24


def in_words(one: Exposed) -> str:
    """A row of the table."""
    cells = [f"{row['difference_nats']:>+8.2f} (p {row['adjusted_p_value']:.4f})" for _, row in one.evidence.iterrows()]
    return f"{one.kind:<7} {one.seed:>4}  {'  '.join(cells)}  {'alarm' if one.is_alarmed else 'no alarm'}"


def draw(exposed: Sequence[Exposed]) -> Figure:
    """How far the gap between the renderings moved, item by item, all seeds together: an axes a kind."""
    figure = Figure(figsize=INCHES, layout="constrained")
    for axes, kind in zip(figure.subplots(1, len(PLANTED), sharex=True), PLANTED, strict=True):
        for place, (name, colour) in enumerate(COLOURS.items()):
            gaps = [gap for one in exposed if one.kind == kind for gap in one.gaps[place]]
            axes.hist(gaps, bins=BINS, color=colour, alpha=0.6, label=name)
        axes.set(title=TITLES[kind], xlabel="nats towards the tags, since the parent", yticks=[])
    figure.axes[0].legend(frameon=False)
    return figure


def main(folder: Path, seeds: int) -> None:
    print(
        "planted seed  gap, nats             likelihood with tags  likelihood without    (items less reference, since the parent)",
        flush=True,
    )
    exposed: list[Exposed] = []
    for kind in PLANTED:
        for seed in range(seeds):
            exposed.append(expose(folder, kind, seed))
            print(in_words(exposed[-1]), flush=True)
    draw(exposed).savefig(folder / "fragility.png", dpi=PIXELS_AN_INCH)
    print(folder / "fragility.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    asked = parser.parse_args()
    main(asked.folder, asked.seeds)
