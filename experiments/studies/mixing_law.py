"""The law of mixtures on RegMix's public runs: `python -m experiments.studies.mixing_law FOLDER`.

FOLDER has the CSV files of sail-sg/regmix (commit b004d3a3, `mixture_law/`): 512 runs of 1M parameters to fit, and unseen mixtures at 1M,
60M and 1B. The law predicts each validation domain. The rank correlation is Spearman's, over the unseen mixtures of one size.
"""

import argparse
import csv
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from phasewise.validations.evidence.mixing_law import fit_law

SIZES, PILE_CC = ("1m", "60m", "1B"), "the_pile_pile_cc"


def read(path: Path) -> tuple[list[str], dict[str, np.ndarray]]:
    """Return the columns, and index → values."""
    with open(path, newline="") as file:
        head, *rows = csv.reader(file)
    return head[1:], {row[0]: np.array([float(value) for value in row[1:]]) for row in rows}


def paired(folder: Path, split: str, size: str) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return the targets, and shares and losses of the runs in both files. RegMix rounds shares to 0.001, so they are normalised."""
    _, mixtures = read(folder / f"{split}_mixture_{size}.csv")
    targets, losses = read(folder / f"{split}_pile_loss_{size}.csv")
    both = [index for index in losses if index in mixtures]
    shares = np.stack([mixtures[index] for index in both])
    names = [target.removeprefix("metric/").removesuffix("_val_loss") for target in targets]
    return names, shares / shares.sum(axis=1, keepdims=True), np.stack([losses[index] for index in both])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    names, shares, losses = paired(folder, "train", "1m")
    started = time.monotonic()
    law = fit_law(shares, losses)
    seconds = time.monotonic() - started
    print(f"{len(shares)} runs, {shares.shape[1]} components, {len(names)} targets, fitted in {seconds:.1f} s")
    print("| size | mixtures | mean over domains | least | Pile-CC | mean loss |\n|---|---|---|---|---|---|")
    for size in SIZES:
        _, unseen, measured = paired(folder, "test", size)
        predicted = law.losses(unseen)
        found: list[Any] = [spearmanr(predicted[:, one], measured[:, one]) for one in range(len(names))]
        of_mean: Any = spearmanr(predicted.mean(axis=1), measured.mean(axis=1))
        ranks, mean = [float(one.statistic) for one in found], float(of_mean.statistic)
        cells = (np.mean(ranks), min(ranks), ranks[names.index(PILE_CC)], mean)
        print(f"| {size} | {len(unseen)} | {' | '.join(f'{cell:.4f}' for cell in cells)} |")


if __name__ == "__main__":
    main()
