"""What tells the places of 0, 1, 2, … under a permutation from those under a true random one.

`measure` gives numbers whose distribution is known only from true random permutations: draw many of those (`random_places`), measure
them in the same way, and compare (`worst_p_value`). No limit is set by hand.
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import ks_2samp

WINDOW = 4096
RUN = 1024
CLASSES = 64
MAX_PAIRS = 100_000


def random_places(rng: np.random.Generator, count: int, length: int) -> np.ndarray:
    """The first `count` places of a true random permutation: where there are many more, draws that were not drawn before."""
    if length < 4 * count:
        return rng.permutation(length)[:count]
    drawn = rng.integers(0, length, 2 * count)
    _, first = np.unique(drawn, return_index=True)
    return drawn[np.sort(first)[:count]]


def measure(places: np.ndarray, length: int) -> dict[str, float]:
    """Every probe. `places` are those of the indices 0, 1, 2, …, as int64."""
    return {
        **input_bits_in_output_bits(places, length),
        **parity_runs(places),
        **neighbours(places, length),
        **evenness("block", places * CLASSES // length, classes=CLASSES, length=length),
        **evenness("residue", places % CLASSES, classes=CLASSES, length=length),
        **evenness("parity", places % 2, classes=2, length=length),
    }


def input_bits_in_output_bits(places: np.ndarray, length: int) -> dict[str, float]:
    """The largest correlation of an output bit with one input bit, with the XOR of two, and with the XOR of any number of them.

    A Walsh-Hadamard transform of the output bit's signs holds its correlation with every XOR of input bits at once.
    """
    size = 1 << (len(places) - 1).bit_length()
    weights = np.bitwise_count(np.arange(size))
    half_bits = ((length - 1).bit_length() + 1) // 2
    found: dict[str, float] = {}
    for bit in (0, 1, 2, 3, half_bits):
        signs = np.zeros(size, np.float32)
        signs[: len(places)] = 1 - 2 * ((places >> bit) & 1)
        correlations = np.abs(walsh_hadamard(signs)) / len(places)
        name = "middle bit" if bit == half_bits else f"bit {bit}"
        found[f"{name}, one input bit"] = correlations[weights == 1].max()
        found[f"{name}, two input bits"] = correlations[weights == 2].max()
        found[f"{name}, any input bits"] = correlations[1:].max()
    return found


def walsh_hadamard(values: np.ndarray) -> np.ndarray:
    """Entry m is the sum over x of values[x] · (-1)^(number of common bits of m and x)."""
    step = 1
    while step < values.size:
        pairs = values.reshape(-1, 2, step)
        values = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1)
        step *= 2
    return values.ravel()


def parity_runs(places: np.ndarray) -> dict[str, float]:
    """How long even or odd places follow one another: aligned runs of 1,024 that are all even or all odd, and the mean length."""
    parity = places & 1
    runs = parity[: len(parity) // RUN * RUN].reshape(-1, RUN).mean(axis=1)
    return {
        "runs of one parity": float(np.isin(runs, (0, 1)).mean()),
        "mean parity run": len(parity) / (1 + np.count_nonzero(np.diff(parity))),
    }


def neighbours(places: np.ndarray, length: int) -> dict[str, float]:
    """Correlation with the next place and with those some powers of two or one root of the length further; repeated differences."""
    share = places / length
    lags = [*(2**power for power in range(1, 20)), math.isqrt(length - 1) + 1]
    correlations = [np.corrcoef(share[:-lag], share[lag:])[0, 1] for lag in lags if lag <= len(places) // 2]
    differences = np.diff(places[: MAX_PAIRS + 1]) % length
    return {
        "next place": np.corrcoef(share[:-1], share[1:])[0, 1],
        "place a stride away": float(np.abs(correlations).max()),
        "distinct differences": len(np.unique(differences)),
    }


def evenness(name: str, classed: np.ndarray, *, classes: int, length: int) -> dict[str, float]:
    """Chi² per degree of freedom of the classes' counts, over windows of 4,096 indices: 1 where random, 0 where dealt out evenly."""
    windows = len(classed) // WINDOW
    numbered = classed[: windows * WINDOW] + np.repeat(np.arange(windows), WINDOW) * classes
    counts = np.bincount(numbered, minlength=windows * classes).reshape(windows, classes)
    expected = WINDOW / classes
    without_replacement = (length - WINDOW) / (length - 1)
    chi = ((counts - expected) ** 2 / expected).sum(axis=1) / (classes - 1) / without_replacement
    return {f"{name} chi², mean": chi.mean(), f"{name} chi², least": chi.min(), f"{name} chi², most": chi.max()}


def worst_p_value(found: Sequence[dict[str, float]], null: Sequence[dict[str, float]]) -> tuple[float, str]:
    """The least p-value of the probes, with the probe's name: could `found` have been drawn from where `null` was? (Kolmogorov-Smirnov)

    Makes no assumption about the distributions. For what is truly random it is below `alpha` in about `alpha` × probes of all cases.
    """

    def p_value(name: str) -> float:
        _, value = np.asarray(ks_2samp([f[name] for f in found], [n[name] for n in null], method="asymp"))
        return float(value)

    return min((p_value(name), name) for name in null[0])
