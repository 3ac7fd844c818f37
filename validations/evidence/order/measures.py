"""Measures of a permutation, compared with true random permutations."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from phasewise.validations.evidence.order import null as nulls

STRETCH = 2**16  # ranges up to this length are measured as a whole
SAMPLED = 2**14
MIN_LENGTH = 16  # shorter permutations have too few orders for surprises. The only requirement is that each place is taken once
MAX_LAG_POWER = 15
MAX_CLASSES = 64
MIN_EXPECTED = 4  # mean number of a class's indices in a window. With fewer, the tails exceed the chi-square's
RESIDUES = (2, 3, 4, 5, 7, 8, 10, 16, 32, 64)
MAX_BATCH = 256
BATCHES_A_PAIR = 8  # the distance of close places is such that one in eight batches of equal places has a close pair at a given place
MAX_IMBALANCE = 0.8  # bits set in fewer than a tenth, or more than nine tenths, of the indices carry little information and skew the tail


@dataclass(frozen=True)
class Sample:
    """Places of a permutation."""

    length: int
    stretch: np.ndarray  # places of consecutive indices, from a multiple of `STRETCH`
    indices: np.ndarray  # all indices if the stretch is the whole range, else sorted random indices
    places: np.ndarray  # places of `indices`
    misses: int = 0  # places outside the range, places that the inverse does not map back, or shared places

    @property
    def is_whole(self) -> bool:
        """Return whether the sample covers the whole range."""
        return len(self.stretch) == self.length


def take_sample(
    length: int, place: Callable[[np.ndarray], np.ndarray], inverse: Callable[[np.ndarray], np.ndarray], *, near: int = 0
) -> Sample:
    """Sample the stretch of index `near`, and random indices that depend only on the length, of a permutation: `place` of each index."""
    start = near // STRETCH * STRETCH
    start = start if start + STRETCH <= length else 0
    in_a_row = np.arange(start, min(start + STRETCH, length))
    stretch = place(in_a_row)
    indices, places = in_a_row, stretch
    checked, of_checked = in_a_row, stretch
    if len(in_a_row) < length:
        indices = np.unique(np.random.default_rng(length).integers(0, length, SAMPLED))
        places = place(indices)
        checked, first = np.unique(np.concatenate([in_a_row, indices]), return_index=True)
        of_checked = np.concatenate([stretch, places])[first]
    outside = (of_checked < 0) | (of_checked >= length)
    wrong = int(outside.sum() + (inverse(of_checked[~outside]) != checked[~outside]).sum())
    return Sample(length, stretch, indices, places, max(wrong, len(of_checked) - len(np.unique(of_checked))))


def measure_order(sample: Sample) -> list[nulls.Measure]:
    """Run all measures that the permutation's length allows."""
    found = [nulls.Measure("places not taken exactly once", sample.misses, nulls.IMPOSSIBLE)]
    if sample.length >= MIN_LENGTH:
        found += [*_bits(sample), *_serial(sample), *_coverage(sample), *_close_pairs(sample)]
    return found


def cusum(values: np.ndarray) -> tuple[int, float]:
    """Find the largest change of the mean (Page's cumulative sums).

    Returns the number of values before the change, and the largest cumulative deviation in standard deviations times the root of the number
    of values: the maximum of a Brownian bridge under a random order, and slightly less for few values.
    """
    centred = values - values.mean()
    deviation = centred.std()
    if not deviation > 0:
        return len(values) // 2, 0.0
    sums = np.abs(np.cumsum(centred))[:-1]
    at = int(sums.argmax())
    return at + 1, float(sums[at] / deviation / math.sqrt(len(values)))


def _serial(sample: Sample) -> list[nulls.Measure]:
    """Measure correlation along the stretch, the commonest step, runs of parity, and drift of the mean place."""
    stretch, found = sample.stretch, list[nulls.Measure]()
    # Serial correlation with the next place, with places at powers of two, and at the root of the length, where Feistel networks repeat
    places, count = stretch - stretch.mean(), len(stretch)
    variance = float(places @ places)
    root = math.isqrt(sample.length - 1) + 1
    lags = sorted(lag for lag in {root, *(2**power for power in range(MAX_LAG_POWER + 1))} if lag <= count // 2)
    measures: list[nulls.Measure] = []
    for lag in lags:
        pairs = count - lag
        value = float(places[:-lag] @ places[lag:]) / variance + pairs / (count * (count - 1))
        measures.append(nulls.Measure("serial correlation", abs(value), nulls.normal_size(math.sqrt(pairs) / count), detail=f"{lag} apart"))
    found.append(nulls.most_surprising(measures))
    # The commonest step to the next place, the next but one, and the place at the root of the length
    measures, num_steps = [], sample.length - 1
    for lag in [lag for lag in lags if lag in (1, 2, root)]:
        steps = np.sort((stretch[lag:] - stretch[:-lag]) % sample.length)
        ends = np.flatnonzero(np.diff(steps, append=-1))
        runs = np.diff(ends, prepend=-1)
        most = int(runs.argmax())
        told = f"a step of {steps[ends[most]]:,}, {lag} apart"
        measures.append(
            nulls.Measure("commonest step", int(runs[most]), nulls.poisson_most(len(steps) / num_steps, values=num_steps), detail=told)
        )
    found.append(nulls.most_surprising(measures))
    # Changes between even and odd places (Wald and Wolfowitz's runs), and the longest run of either
    parity = stretch & 1
    changes, odd = np.flatnonzero(np.diff(parity)), int(parity.sum())
    mean = 2 * odd * (count - odd) / count
    deviation = math.sqrt(max(mean * (mean - 1) / (count - 1), 0.0)) or 1.0
    longest = int(np.diff(changes, prepend=-1, append=count - 1).max())
    told = f"{len(changes):,} changes"
    found.append(nulls.Measure("changes of parity", abs(len(changes) - mean), nulls.normal_size(deviation, step=1.0), detail=told))
    found.append(nulls.Measure("longest run of one parity", longest, nulls.longest_run(count)))
    # Drift of the mean place: the phase shift of fully sorted data
    looked_at = {"in a row": stretch} if sample.is_whole else {"in a row": stretch, "over the whole order": sample.places}
    measures = []
    for told, values in looked_at.items():
        at, distance = cusum(values)
        shift = (values[at:].mean() - values[:at].mean()) / values.std()
        detail = f"{shift:+.2f} deviations after {at:,} of {len(values):,} places {told}"
        measures.append(nulls.Measure("phase shift of sorted data", distance, nulls.BROWNIAN_BRIDGE, detail=detail))
    return [*found, nulls.most_surprising(measures)]


def _coverage(sample: Sample) -> list[nulls.Measure]:
    """Compare windows of the order with data sorted in blocks, and with interleaved data: too uneven, and too even."""
    length, measures = sample.length, list[nulls.Measure]()
    sorted_data: list[tuple[float, int, float, str]] = []
    for places in (sample.stretch,) if sample.is_whole else (sample.stretch, sample.places):
        classes = _most_classes(len(places))
        edges = [-(-length * number // classes) for number in range(classes + 1)]
        sorted_data.append((*_chi_square(places * classes // length, np.diff(edges), length), f"{classes} blocks"))
    interleaved: list[tuple[float, int, float, str]] = []
    for classes in RESIDUES:
        if classes <= _most_classes(len(sample.stretch)):
            sizes = (length - np.arange(classes) + classes - 1) // classes
            interleaved.append((*_chi_square(sample.stretch % classes, sizes, length), f"{classes} sources in turn"))
    for name, tables in {"sorted data": sorted_data, "interleaved data": interleaved}.items():
        most = [
            nulls.Measure(f"{name}, too uneven", x / degrees, nulls.chi_square_most(degrees), detail=told) for x, degrees, _, told in tables
        ]
        least = [
            nulls.Measure(f"{name}, too even", x / degrees, nulls.chi_square_least(degrees, step=s), detail=told)
            for x, degrees, s, told in tables
        ]
        measures += [nulls.most_surprising(most), nulls.most_surprising(least)]
    return measures


def _most_classes(count: int) -> int:
    """Return the number of classes for this number of places, which have at least as many windows."""
    return min(MAX_CLASSES, math.isqrt(count // MIN_EXPECTED))


def _chi_square(classed: np.ndarray, sizes: np.ndarray, length: int) -> tuple[float, int, float]:
    """Return the chi-square of windows against classes, its degrees of freedom, and its smallest step.

    Indices outside the windows form a further row, so that both margins are fixed, as under random permutations.
    """
    classes = len(sizes)
    window = MIN_EXPECTED * _most_classes(len(classed))
    windows = len(classed) // window
    numbered = classed[: windows * window] + np.repeat(np.arange(windows), window) * classes
    counts = np.bincount(numbered, minlength=windows * classes).reshape(windows, classes)
    shares = sizes / length
    expected = window * shares
    total = float(((counts - expected) ** 2 / expected).sum())
    rows = windows - 1
    if left := length - windows * window:
        missing = counts.sum(axis=0) - windows * expected  # the rest lacks what the windows have too much of
        total += float((missing**2 / (left * shares)).sum())
        rows = windows
    return total * (length - 1) / length, rows * (classes - 1), 4 / float(expected.min())


def _close_pairs(sample: Sample) -> list[nulls.Measure]:
    """Count close places in a batch: many if a batch draws neighbours, few if the order keeps neighbours apart.

    On a circle, close pairs with a shared place are independent, and few close pairs have a Poisson distribution.
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
        nulls.Measure("close pairs in a batch, too many", pairs, nulls.poisson_most(mean), detail=told),
        nulls.Measure("close pairs in a batch, too few", pairs, nulls.poisson_least(mean), detail=told),
    ]


def _bits(sample: Sample) -> list[nulls.Measure]:
    """Find the largest correlation of a place's bit with one bit of its index, the XOR of two bits, and the XOR of any number of bits."""
    names = [f"place's bit with {what}" for what in ("one bit of the index", "the XOR of two", "the XOR of any")]
    outputs, in_a_row = _output_bits(sample.places, sample.length), _output_bits(sample.stretch, sample.length)
    count = len(sample.indices)
    null = nulls.normal_size((count - 1) ** -0.5, step=4 / count)
    if not (outputs and in_a_row):
        return [nulls.Measure(name, 1.0, null, detail="no bit of the places varies") for name in names]
    # Random indices: bits are packed into words, and agreements with the XOR of two bits are counted by word
    numbers = np.arange((sample.length - 1).bit_length())
    inputs = _packed(np.vstack([np.zeros(count, np.int64), sample.indices >> numbers[:, None] & 1]))  # XOR with zeros is one bit
    first, second = np.triu_indices(len(inputs), 1)
    xors = inputs[first] ^ inputs[second]
    means = 1 - 2 * np.bitwise_count(xors).sum(axis=1, dtype=np.int64) / count  # of the signs: 1 for a bit 0, -1 for a bit 1
    usable = np.abs(means) <= MAX_IMBALANCE
    first, second, xors, means = first[usable], second[usable], xors[usable], means[usable]
    correlations: list[np.ndarray] = []
    for bit in outputs.values():
        mean = 1 - 2 * bit.mean()
        together = 1 - 2 * np.bitwise_count(xors ^ _packed(bit[None])).sum(axis=1, dtype=np.int64) / count
        correlations.append((together - mean * means) / np.sqrt((1 - mean**2) * (1 - means**2)))
    found = np.stack(correlations)
    measures: list[nulls.Measure] = []
    for name, chosen in zip(names, (first == 0, first > 0), strict=False):
        sizes = np.abs(found[:, chosen])
        output, at = np.unravel_index(sizes.argmax(), sizes.shape)
        one, other = first[chosen][at] - 1, second[chosen][at] - 1
        told = f"{list(outputs)[output]} with bit {other}" + (f" and bit {one}" if one >= 0 else "")
        measures.append(nulls.Measure(name, float(sizes[output, at]), null, sizes.size, told))
    # A power of two of consecutive indices: the low bits of the index take all values
    count = 1 << (len(sample.stretch).bit_length() - 1)
    signs = {bit: 1 - 2 * values[:count].astype(np.float32) for bit, values in in_a_row.items()}
    found = np.abs(walsh_hadamard(np.stack(list(signs.values()))))[:, 1:] / count
    found /= np.array([max(sign.std(), 1 / count) for sign in signs.values()])[:, None]
    output, mask = divmod(int(found.argmax()), count - 1)
    bits = ", ".join(str(bit) for bit in range(count.bit_length()) if (mask + 1) >> bit & 1)
    null = nulls.normal_size((count - 1) ** -0.5, step=4 / count)
    return [*measures, nulls.Measure(names[2], float(found.max()), null, found.size, f"{list(signs)[output]} with bits {bits}")]


def _output_bits(places: np.ndarray, length: int) -> dict[str, np.ndarray]:
    """Return the measured bits of places: the lowest four, the middle, and the half and quarter of the range."""
    middle = ((length - 1).bit_length() + 1) // 2
    bits = {f"bit {bit}": places >> bit & 1 for bit in dict.fromkeys((0, 1, 2, 3, middle))}
    bits |= {"the half": places * 2 // length, "the quarter": places * 4 // length & 1}
    return {name: bit for name, bit in bits.items() if abs(1 - 2 * bit.mean()) <= MAX_IMBALANCE}


def _packed(bits: np.ndarray) -> np.ndarray:
    """Pack rows of bits into 64-bit words, padded with zeros."""
    return np.packbits(np.pad(bits.astype(np.uint8), ((0, 0), (0, -bits.shape[1] % 64))), axis=1).view(np.uint64)


def walsh_hadamard(values: np.ndarray) -> np.ndarray:
    """Return along the last axis, at entry m, the sum over x of values[x] · (-1)^(number of common bits of m and x)."""
    size = values.shape[-1]
    step = 1
    while step < size:
        pairs = values.reshape(-1, 2, step)
        values = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1)
        step *= 2
    return values.reshape(-1, size)
