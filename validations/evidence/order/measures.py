"""Everything that is measured of a permutation, and how it compares with true random ones."""

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from phasewise.validations.evidence.order.null import (
    Measure,
    Null,
    brownian_bridge,
    chi_square_least,
    chi_square_most,
    commonest,
    longest_run,
    most_surprising,
    normal_size,
    nothing,
    poisson_least,
    poisson_most,
)

STRETCH = 2**16
"""Ranges up to here are looked at whole."""
SAMPLED = 2**14


class Shuffle(Protocol):
    """What is judged: `trainer.data.permutation.Permutation` is one."""

    @property
    def length(self) -> int:
        """It permutes `range(length)`."""
        ...

    def __call__(self, indices: np.ndarray) -> np.ndarray:
        """Where each index goes."""
        ...

    def inverse(self, places: np.ndarray) -> np.ndarray:
        """Which index comes to each place."""
        ...


@dataclass(frozen=True)
class Sample:
    """Places of a permutation.

    Attributes:
        stretch: those of indices in a row, from a multiple of their number on.
        indices: all of them where the stretch is the whole range, else some drawn at random, in order.
        places: those of `indices`.
        misses: places that are outside the range, or that the inverse does not bring back, or that two indices share.
    """

    length: int
    stretch: np.ndarray
    indices: np.ndarray
    places: np.ndarray
    misses: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether nothing was left out."""
        return len(self.stretch) == self.length


def take_sample(shuffle: Shuffle, *, near: int = 0) -> Sample:
    """Look at the stretch that holds index `near`, and all over. What is looked at depends on the length alone."""
    length = shuffle.length
    start = near // STRETCH * STRETCH
    start = start if start + STRETCH <= length else 0
    in_a_row = np.arange(start, min(start + STRETCH, length))
    stretch = shuffle(in_a_row)
    if len(in_a_row) == length:
        return Sample(length, stretch, in_a_row, stretch, _misses(shuffle, in_a_row, stretch))
    indices = random_indices(np.random.default_rng(length), length)
    places = shuffle(indices)
    looked_at, first = np.unique(np.concatenate([in_a_row, indices]), return_index=True)
    return Sample(length, stretch, indices, places, _misses(shuffle, looked_at, np.concatenate([stretch, places])[first]))


def random_indices(rng: np.random.Generator, length: int) -> np.ndarray:
    """Different indices from all over a range longer than a stretch, in order."""
    return np.unique(rng.integers(0, length, SAMPLED))


def _misses(shuffle: Shuffle, indices: np.ndarray, places: np.ndarray) -> int:
    outside = (places < 0) | (places >= shuffle.length)
    wrong = int(outside.sum() + (shuffle.inverse(places[~outside]) != indices[~outside]).sum())
    return max(wrong, len(places) - len(np.unique(places)))


MAX_LAG_POWER = 15


def serial_measures(sample: Sample) -> list[Measure]:
    """All of them."""
    # With the next place, with those powers of two away, and with the one a root of the length away, where Feistel networks repeat
    places = sample.stretch - sample.stretch.mean()
    count = len(places)
    variance = float(places @ places)
    measures: list[Measure] = []
    for lag in _lags(sample, powers=MAX_LAG_POWER):
        pairs = count - lag
        found = float(places[:-lag] @ places[lag:]) / variance + pairs / (count * (count - 1))
        measures.append(Measure("serial correlation", abs(found), normal_size(math.sqrt(pairs) / count), detail=f"{lag} apart"))
    return [most_surprising(measures), _steps(sample), *_parity(sample.stretch), _drift(sample)]


def cusum(values: np.ndarray) -> tuple[int, float]:
    """Where the mean of some values changes most (Page's cumulative sums), and how much.

    The first is how many values come before the change. The second is the largest size of the sum of deviations from the mean, in
    standard deviations times the root of their number: a Brownian bridge's largest distance, where the values come in random order, and
    a little less where they are few (Kolmogorov's distribution).
    """
    centred = values - values.mean()
    deviation = centred.std()
    if not deviation > 0:
        return len(values) // 2, 0.0
    sums = np.abs(np.cumsum(centred))[:-1]
    at = int(sums.argmax())
    return at + 1, float(sums[at] / deviation / math.sqrt(len(values)))


def _steps(sample: Sample) -> Measure:
    """How often the commonest step comes, from a place to the next, the next but one, and the one a root of the length away."""
    measures: list[Measure] = []
    for lag in _lags(sample, powers=1):
        steps = np.sort((sample.stretch[lag:] - sample.stretch[:-lag]) % sample.length)
        ends = np.flatnonzero(np.diff(steps, append=-1))
        runs = np.diff(ends, prepend=-1)
        most = int(runs.argmax())
        null = commonest(sample.length - 1, len(steps))
        told = f"a step of {steps[ends[most]]:,}, {lag} apart"
        measures.append(Measure("commonest step", int(runs[most]), null, detail=told))
    return most_surprising(measures)


def _lags(sample: Sample, *, powers: int) -> list[int]:
    lags = {*(2**power for power in range(powers + 1)), math.isqrt(sample.length - 1) + 1}
    return sorted(lag for lag in lags if lag <= len(sample.stretch) // 2)


def _parity(places: np.ndarray) -> list[Measure]:
    """How often even and odd places change (Wald and Wolfowitz's runs), and the longest run of one of them."""
    parity = places & 1
    changes = np.flatnonzero(np.diff(parity))
    count = len(parity)
    odd = int(parity.sum())
    mean = 2 * odd * (count - odd) / count
    deviation = math.sqrt(max(mean * (mean - 1) / (count - 1), 0.0)) or 1.0
    longest = int(np.diff(changes, prepend=-1, append=count - 1).max())
    return [
        Measure("changes of parity", abs(len(changes) - mean), normal_size(deviation, step=1.0), detail=f"{len(changes):,} changes"),
        Measure("longest run of one parity", longest, longest_run(count)),
    ]


def _drift(sample: Sample) -> Measure:
    """How far the mean place moves: the phase shift of data that is sorted through and through."""
    looked_at = {"in a row": sample.stretch} | ({} if sample.is_whole else {"over the whole order": sample.places})
    measures: list[Measure] = []
    for told, places in looked_at.items():
        at, distance = cusum(places)
        shift = (places[at:].mean() - places[:at].mean()) / places.std()
        detail = f"{shift:+.2f} deviations after {at:,} of {len(places):,} places {told}"
        measures.append(Measure("phase shift of sorted data", distance, brownian_bridge(), detail=detail))
    return most_surprising(measures)


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


MAX_IMBALANCE = 0.8
"""Of signs: bits that are set in fewer than a tenth of all indices or places, or in more than nine tenths, say little and skew the tail."""


def bit_measures(sample: Sample) -> list[Measure]:
    """The largest correlation of a place's bit with one bit of its index, with the XOR of two of them, and with that of any number."""
    names = [f"place's bit with {what}" for what in ("one bit of the index", "the XOR of two", "the XOR of any")]
    if not (output_bits(sample.places, sample.length) and output_bits(sample.stretch, sample.length)):
        return [Measure(name, 1.0, _null(len(sample.places)), detail="no bit of the places varies") for name in names]
    # From indices all over the range. Bits are packed into words, and what two bits' XOR agrees on is counted word by word
    count = len(sample.indices)
    numbers = np.arange((sample.length - 1).bit_length())
    inputs = _packed(np.vstack([np.zeros(count, np.int64), sample.indices >> numbers[:, None] & 1]))  # with none of a pair, it is one bit
    first, second = np.triu_indices(len(inputs), 1)
    xors = inputs[first] ^ inputs[second]
    means = _mean_signs(xors, count)
    usable = np.abs(means) <= MAX_IMBALANCE
    first, second, xors, means = first[usable], second[usable], xors[usable], means[usable]
    outputs = output_bits(sample.places, sample.length)
    found = np.stack([_correlations(_packed(bit[None]), bit, xors, means) for bit in outputs.values()])
    measures: list[Measure] = []
    for name, chosen in zip(names, (first == 0, first > 0), strict=False):
        sizes = np.abs(found[:, chosen])
        output, at = np.unravel_index(sizes.argmax(), sizes.shape)
        one, other = first[chosen][at] - 1, second[chosen][at] - 1
        told = f"{list(outputs)[output]} with bit {other}" + (f" and bit {one}" if one >= 0 else "")
        measures.append(Measure(name, float(sizes[output, at]), _null(count), sizes.size, told))
    return [*measures, _with_any(sample, names[2])]


def output_bits(places: np.ndarray, length: int) -> dict[str, np.ndarray]:
    """The bits of the places that are looked at: the lowest four, the middle one, and in which half and quarter of the range they are."""
    middle = ((length - 1).bit_length() + 1) // 2
    bits = {f"bit {bit}": places >> bit & 1 for bit in dict.fromkeys((0, 1, 2, 3, middle))}
    bits |= {"the half": places * 2 // length, "the quarter": places * 4 // length & 1}
    return {name: bit for name, bit in bits.items() if abs(1 - 2 * bit.mean()) <= MAX_IMBALANCE}


def _null(count: int) -> Null:
    """Of the correlation of signs in so many places: one more that agrees takes one with it that does not."""
    return normal_size((count - 1) ** -0.5, step=4 / count)


def _packed(bits: np.ndarray) -> np.ndarray:
    """Rows of bits as 64-bit words, filled up with zeros."""
    filled = np.pad(bits.astype(np.uint8), ((0, 0), (0, -bits.shape[1] % 64)))
    return np.packbits(filled, axis=1).view(np.uint64)


def _mean_signs(words: np.ndarray, count: int) -> np.ndarray:
    """Per row the mean of 1 where a bit is 0 and -1 where it is 1."""
    return 1 - 2 * np.bitwise_count(words).sum(axis=1, dtype=np.int64) / count


def _correlations(packed: np.ndarray, bit: np.ndarray, xors: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Of one bit's sign with the sign of every XOR."""
    mean = 1 - 2 * bit.mean()
    return (_mean_signs(xors ^ packed, len(bit)) - mean * means) / np.sqrt((1 - mean**2) * (1 - means**2))


def _with_any(sample: Sample, name: str) -> Measure:
    """From indices in a row, a power of two of them: the low bits of the index take all values."""
    count = 1 << (len(sample.stretch).bit_length() - 1)
    outputs = output_bits(sample.stretch, sample.length)
    signs = {bit: 1 - 2 * values[:count].astype(np.float32) for bit, values in outputs.items()}
    found = np.abs(walsh_hadamard(np.stack(list(signs.values()))))[:, 1:] / count
    found /= np.array([max(sign.std(), 1 / count) for sign in signs.values()])[:, None]
    output, mask = divmod(int(found.argmax()), count - 1)
    bits = ", ".join(str(bit) for bit in range(count.bit_length()) if (mask + 1) >> bit & 1)
    told = f"{list(signs)[output]} with bits {bits}"
    return Measure(name, float(found.max()), _null(count), found.size, told)


def walsh_hadamard(values: np.ndarray) -> np.ndarray:
    """Along the last axis, entry m is the sum over x of values[x] · (-1)^(number of common bits of m and x)."""
    size = values.shape[-1]
    step = 1
    while step < size:
        pairs = values.reshape(-1, 2, step)
        values = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1)
        step *= 2
    return values.reshape(-1, size)


MIN_LENGTH = 16
"""Fewer have too few orders for one to be surprising at the rates in use. Only that each place is taken once is asked of them."""


@dataclass(frozen=True)
class Judged:
    """A measure against its limit.

    Attributes:
        bound: whether `limit` is the largest (`max`) or the smallest (`min`) value that passes.
        p_value: the chance that a true random permutation gives a value so far out, or a bound above it.
    """

    name: str
    value: float
    limit: float
    bound: Literal["max", "min"]
    p_value: float
    passes: bool
    detail: str


def measure_order(sample: Sample) -> list[Measure]:
    """All measures of a permutation that are possible at its length."""
    found = [Measure("places not taken exactly once", sample.misses, nothing())]
    if sample.length >= MIN_LENGTH:
        found += [*bit_measures(sample), *serial_measures(sample), *coverage_measures(sample), *batch_measures(sample)]
    return found


def judge_measures(measures: list[Measure], rate: float) -> list[Judged]:
    """Hold each measure against what true random permutations reach at `rate`, which is its own share of all false alarms."""
    return [
        Judged(one.name, float(one.value), one.limit(rate), one.null.bound, one.p_value, one.p_value >= rate, one.detail)
        for one in measures
    ]
