"""`make bench`: figures as ratios within one run, never as tests. Absolute numbers are this machine's, today's.

python -m experiments.bench [SUBJECT …] [--megabytes 200] [--gigabytes 5] [--repeats 3] [--home FOLDER]
"""

import argparse
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from experiments.bench import (
    checkpoints,
    end_to_end,
    evaluation,
    experts,
    inference,
    judgement,
    launch,
    memory,
    peers,
    permutation,
    scan,
    site,
    slopes,
    sparse_step,
    startup,
    step,
    tokenization,
    train_step,
)
from experiments.bench.loader import loader_ratios
from experiments.bench.measure import Options, Row, on_cores

MIN_SHARE_OF_BOUND, MAX_FIRST_BATCH_MS = 0.4, 50


def loader(_options: Options) -> Iterator[Row]:
    """The loader's figures with their demands."""
    with on_cores(1):
        for name, value in loader_ratios():
            if "share" in name:
                yield Row(name, value, at_least=MIN_SHARE_OF_BOUND)
            else:
                yield Row(name, value, at_most=MAX_FIRST_BATCH_MS)


SUBJECTS: dict[str, Callable[[Options], Iterator[Row]]] = {
    "step": step.rows,
    "train_step": train_step.rows,
    "experts": experts.rows,
    "sparse_step": sparse_step.rows,
    "evaluation": evaluation.rows,
    "inference": inference.rows,
    "startup": startup.rows,
    "launch": launch.rows,
    "checkpoints": checkpoints.rows,
    "permutation": permutation.rows,
    "loader": loader,
    "tokenization": tokenization.rows,
    "end_to_end": end_to_end.rows,
    "memory": memory.rows,
    "scan": scan.rows,
    "first_scan": scan.first_rows,
    "judgement": judgement.rows,
    "site": site.rows,
    "slopes": slopes.rows,
    "peers": peers.rows,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=f"of {', '.join(SUBJECTS)} (default: all)")
    parser.add_argument("--megabytes", type=int, default=Options.megabytes, help="text to tokenize and to scan")
    parser.add_argument("--gigabytes", type=float, default=Options.gigabytes, help="large input whose peak memory is compared")
    parser.add_argument("--repeats", type=int, default=Options.repeats, help="turns of each side")
    parser.add_argument("--home", type=Path, help="a home with prepared data, else one is made for `judgement` in a minute")
    chosen = parser.parse_args()
    if unknown := set(chosen.subjects) - set(SUBJECTS):
        parser.error(f"no such subject: {', '.join(sorted(unknown))}; there are {', '.join(SUBJECTS)}")
    options = Options(chosen.megabytes, chosen.gigabytes, chosen.repeats, chosen.home)
    os.environ["JAX_PLATFORMS"] = "cpu"
    subjects: list[str] = chosen.subjects or list(SUBJECTS)
    for subject in subjects:
        for row in SUBJECTS[subject](options):
            print(row, flush=True)
    if {"evaluation", "inference", "peers", "scan", "train_step"} & set(subjects) and peers.Place.found() is None:
        print(peers.HOW_TO)


if __name__ == "__main__":
    main()
