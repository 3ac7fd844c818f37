"""A collapsing router, and methods that balance the router, at small scale: `python -m experiments.incidents.collapse FOLDER [--seeds N]`.

A sparse model of Trinity's family learns a text with 50 % common words at a high rate. Without balancing, its router sends almost all
tokens to one expert. Sign updates and SMEBU hold it. Each run goes through the trainer, and the health verdict judges it. The command
prints a row per run and writes a report of the first seed. `docs/lab/experts.md` has the results.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from experiments.incidents.collapse_pictures import write_pictures
from experiments.incidents.collapse_runs import KINDS, SEEDS, Trained, train


def in_words(trained: Trained) -> str:
    """A row of the table."""
    loss = float(np.mean([row["loss"] for row in trained.rows[-50:]]))
    dead = float(np.mean([row["dead_experts"] for row in trained.rows[-50:]]))
    found = "stopped" if trained.is_stopped else "passes"
    return f"{trained.kind:<6} {trained.seed:>4} {trained.last_violation:>7.2f} {dead:>6.1f} {loss:>6.2f}  {found}"


def tell(home: Path, seeds: Sequence[int]) -> list[Trained]:
    print("kind   seed  MaxVio   dead   loss  health verdict (medians and means of the last 50 updates)", flush=True)
    found: list[Trained] = []
    for kind in KINDS:
        for seed in seeds:
            found.append(train(kind, seed, home))
            print(in_words(found[-1]), flush=True)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    asked = parser.parse_args()
    for path in write_pictures(tell(asked.folder, range(asked.seeds)), asked.folder):
        print(path)
