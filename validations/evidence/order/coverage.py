"""Does every stretch of the order see all of the data alike? Counts of windows against blocks, and close pairs within batches."""

import math

import numpy as np

from phasewise.validations.evidence.order.null import (
    Measure,
    chi_square_least,
    chi_square_most,
    most_surprising,
    poisson_least,
    poisson_most,
)
from phasewise.validations.evidence.order.sample import Sample

MAX_CLASSES = 64
MIN_EXPECTED = 4
"""Indices of a class that a window holds on average: with fewer, the table's tails are further out than the chi-square's."""
RESIDUES = (2, 3, 4, 5, 7, 8, 10, 16, 32, 64)
MAX_BATCH = 256
BATCHES_A_PAIR = 8
"""The distance that counts as close is such that a batch of equal places has one close neighbour in so many batches."""


def coverage_measures(sample: Sample) -> list[Measure]:
    """Windows of the order against data that is sorted in blocks, and against data that is interleaved; each too uneven and too even."""
    length = sample.length
    classes = most_classes(len(sample.stretch))
    tables = {"sorted data": [_blocks(sample.stretch, length)], "interleaved data": []}
    if not sample.is_whole:
        tables["sorted data"].append(_blocks(sample.places, length))
    tables["interleaved data"] = [_residues(sample.stretch, length, many) for many in RESIDUES if many <= classes]
    return [measure for name, found in tables.items() for measure in _both_sides(name, found)]


def batch_measures(sample: Sample) -> list[Measure]:
    """Pairs of close places in a batch: too many where a batch draws neighbours, too few where it keeps them apart.

    Places are taken as on a circle. Whether one pair is close then says nothing of another that shares one place with it, and the number
    of close pairs is near a Poisson draw while there are few.
    """
    length = sample.length
    size = min(MAX_BATCH, len(sample.stretch) // 8)
    batches = len(sample.stretch) // size
    distance = max(1, round(length / (2 * size * BATCHES_A_PAIR)))
    places = np.sort(sample.stretch[: batches * size].reshape(batches, size), axis=1)
    around = np.hstack([places, places + length])
    pairs = 0
    for apart in range(1, size):
        close = int((around[:, apart : apart + size] - places <= distance).sum())
        pairs += close
        if not close:
            break
    mean = batches * size * (size - 1) / 2 * 2 * distance / (length - 1)
    told = f"pairs at most {distance:,} apart, in {batches:,} batches of {size}"
    return [
        Measure("close pairs in a batch, too many", pairs, poisson_most(mean), detail=told),
        Measure("close pairs in a batch, too few", pairs, poisson_least(mean), detail=told),
    ]


def most_classes(count: int) -> int:
    """Into how many classes so many places can be sorted, in as many windows and more."""
    return min(MAX_CLASSES, math.isqrt(count // MIN_EXPECTED))


def _blocks(places: np.ndarray, length: int) -> tuple[float, int, float, str]:
    classes = most_classes(len(places))
    edges = [-(-length * number // classes) for number in range(classes + 1)]
    return (*_chi_square(places * classes // length, np.diff(edges), length), f"{classes} blocks")


def _residues(places: np.ndarray, length: int, classes: int) -> tuple[float, int, float, str]:
    sizes = (length - np.arange(classes) + classes - 1) // classes
    return (*_chi_square(places % classes, sizes, length), f"{classes} sources in turn")


def _chi_square(classed: np.ndarray, sizes: np.ndarray, length: int) -> tuple[float, int, float]:
    """Chi-square of windows against classes, its degrees of freedom, and the least step by which it changes.

    The indices that are in no window make a row of their own, so that both margins are fixed, as they are under random permutations;
    the mean is then exactly `length / (length - 1)` times the degrees of freedom.
    """
    classes = len(sizes)
    window = MIN_EXPECTED * most_classes(len(classed))
    windows = len(classed) // window
    numbered = classed[: windows * window] + np.repeat(np.arange(windows), window) * classes
    counts = np.bincount(numbered, minlength=windows * classes).reshape(windows, classes)
    shares = sizes / length
    expected = window * shares
    total = float(((counts - expected) ** 2 / expected).sum())
    rows = windows - 1
    if left := length - windows * window:
        missing = counts.sum(axis=0) - windows * expected  # what the windows have too much of a class, the rest has too little
        total += float((missing**2 / (left * shares)).sum())
        rows = windows
    return total * (length - 1) / length, rows * (classes - 1), 4 / float(expected.min())


def _both_sides(name: str, tables: list[tuple[float, int, float, str]]) -> list[Measure]:
    most = [Measure(f"{name}, too uneven", x / degrees, chi_square_most(degrees), detail=told) for x, degrees, _, told in tables]
    least = [Measure(f"{name}, too even", x / degrees, chi_square_least(degrees, step=s), detail=told) for x, degrees, s, told in tables]
    return [most_surprising(most), most_surprising(least)]
