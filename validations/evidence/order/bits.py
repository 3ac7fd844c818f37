"""Do bits of an index show in bits of its place? Correlations of both, with their distribution under true random permutations.

Given how many of the places have a bit set, a true random permutation deals these out at random: a correlation then has mean 0 and
variance 1 / (places - 1), and is close to normal, with lighter tails where signs are balanced.
"""

import numpy as np

from phasewise.validations.evidence.order.null import Measure, Null, normal_size
from phasewise.validations.evidence.order.sample import Sample

MAX_IMBALANCE = 0.8
"""Of signs: bits that are set in fewer than a tenth of all indices or places, or in more than nine tenths, say little and skew the tail."""


def bit_measures(sample: Sample) -> list[Measure]:
    """The largest correlation of a place's bit with one bit of its index, with the XOR of two of them, and with that of any number."""
    names = [f"place's bit with {what}" for what in ("one bit of the index", "the XOR of two", "the XOR of any")]
    if not (output_bits(sample.places, sample.length) and output_bits(sample.stretch, sample.length)):
        return [Measure(name, 1.0, _null(len(sample.places)), detail="no bit of the places varies") for name in names]
    return [*_with_one_or_two(sample, names), _with_any(sample, names[2])]


def output_bits(places: np.ndarray, length: int) -> dict[str, np.ndarray]:
    """The bits of the places that are looked at: the lowest four, the middle one, and in which half and quarter of the range they are."""
    middle = ((length - 1).bit_length() + 1) // 2
    bits = {f"bit {bit}": places >> bit & 1 for bit in dict.fromkeys((0, 1, 2, 3, middle))}
    bits |= {"the half": places * 2 // length, "the quarter": places * 4 // length & 1}
    return {name: bit for name, bit in bits.items() if abs(1 - 2 * bit.mean()) <= MAX_IMBALANCE}


def _with_one_or_two(sample: Sample, names: list[str]) -> list[Measure]:
    """From indices all over the range. Bits are packed into words, and what two bits' XOR agrees on is counted word by word."""
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
    return measures


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
