"""Benchmark index: the words of every item's parts, their weights, and the rare four-word runs that find items.

The index is built once, named by its content, and memory-mapped by every scan.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from string import ascii_uppercase

import numpy as np
from jaxtyping import Bool, Float32, Int32, Int64, UInt8, UInt64

from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.identity import check_file, code_digest, digest_of_file, digest_of_json, read_sealed, write_sealed
from phasewise.validations.evidence.leakage import TABLE_NAME, fold, items, segments, words
from phasewise.validations.evidence.leakage.items import BenchmarkItem, without_punctuation
from phasewise.validations.evidence.leakage.segments import (
    CHOICE,
    GRAM_FACTOR,
    PASSAGE,
    Segments,
    count_holders,
    distinct,
    own_grams,
    own_runs,
    part_sizes,
    shared_choices,
    word_weights,
)
from phasewise.validations.evidence.leakage.words import is_number, split_words

SEED_WORDS, GRAM_WORDS = 4, 2
COMMON_SEED_ITEMS, MIN_HALF_SEEDS, MIN_JOINED_SEEDS = 8, 4, 16
"""A run is rare in up to this number of items. If all runs are common, the index takes this number of the rarest runs from each half of a
segment, so that a half without the other half is found, and from the ends of choices."""
MAX_COUNTED = 1000
MIN_DISTINCT_CHOICES = 8  # distinct words other than signs that identify choices in any order
OWN_GRAM, TELLING_NUMBER, OWN_RUN = np.uint8(1), np.uint8(2), np.uint8(4)
COMMON_NUMBERS = b"0 1 2"
BUCKET_BITS, FILTER_BITS, FILTER_SHIFTS = 20, 19, (39, 33)
"""A hash sets two bits in one of 2^19 words of 64 bits. A larger filter leaves the processor's caches, and takes ten times as long."""
CODE = (fold, items, segments, words, sys.modules[__name__])
_Runs = tuple[UInt64[np.ndarray, "n"], Int32[np.ndarray, "n"], Int64[np.ndarray, "n"]]  # hash, item and first word of runs


@dataclass(frozen=True, eq=False)
class LeakageIndex:
    """All items as one sequence of words. A part is a segment of the sequence, an item a range of segments."""

    names: tuple[tuple[str, str], ...]  # (benchmark, id) of each item
    digest: str
    hashes: UInt64[np.ndarray, "w"]
    weights: Float32[np.ndarray, "w"]  # weights of words. A word in fewer items weighs more. The average word weighs 1
    grams: UInt64[np.ndarray, "w"]  # hash of each word and the next, or of a segment's only word, else 0
    marks: UInt8[np.ndarray, "w"]
    """`OWN_GRAM`: few items of the task hold the gram. `OWN_RUN`: the same for a longer run, in parts with few own grams.
    `TELLING_NUMBER`: the first occurrence in its part of a number above two."""
    segment_starts: Int32[np.ndarray, "s+1"]
    segment_kinds: UInt8[np.ndarray, "s"]
    item_segments: Int32[np.ndarray, "i+1"]
    item_of_word: Int32[np.ndarray, "w"]
    is_excerpt: Bool[np.ndarray, "i"]
    is_example: Bool[np.ndarray, "i"]
    is_reading: Bool[np.ndarray, "i"]  # copies of items without punctuation
    shared_choices: UInt8[np.ndarray, "i"]
    part_words: Int32[np.ndarray, "i 5"]  # this array and the next four are explained in `PartSizes`
    distinct_words: Int32[np.ndarray, "i 5"]
    telling_words: Int32[np.ndarray, "i 5"]
    telling_words_with_question: Int32[np.ndarray, "i 5"]
    part_weights: Float32[np.ndarray, "i 5"]
    seed_hashes: UInt64[np.ndarray, "g"]  # rare four-word runs, sorted by hash
    seed_words: Int32[np.ndarray, "g"]  # first word of each run
    seed_buckets: Int32[np.ndarray, "b+1"]  # first run with each value of the hash's first bits
    seed_filter: UInt64[np.ndarray, "f"]  # Bloom filter of the hashes

    @cached_property
    def items_per_benchmark(self) -> dict[str, int]:
        """Benchmark → number of test items."""
        found: dict[str, int] = {}
        for (benchmark, _), is_counted in zip(self.names, self.is_counted.tolist(), strict=True):
            found[benchmark] = found.get(benchmark, 0) + is_counted
        return found

    @property
    def is_counted(self) -> Bool[np.ndarray, "i"]:
        """Mark the test items."""
        return ~(self.is_example | self.is_reading)

    @classmethod
    def build(cls, items: Sequence[BenchmarkItem]) -> "LeakageIndex":
        """Index the items, and readings of items whose words join without punctuation."""
        if not items:
            raise DataError("a benchmark index needs at least one item, found none. Name a folder with benchmark items.")
        seen: set[tuple[str, str]] = set()
        for item in items:
            if (item.benchmark, item.id) in seen:
                raise DataError(f"item ids must be unique within a benchmark, found {item.id} twice in {item.benchmark}. Rename one.")
            seen.add((item.benchmark, item.id))
        digest, num_items = index_digest(items), len(items)
        readings = (without_punctuation(item) for item in items if not item.is_example and not item.is_excerpt)
        items = [*items, *(reading._replace(task=f"{reading.task} read without punctuation") for reading in readings if reading)]
        of_items = Segments.of(items)
        tasks = [item.task for item in items]
        groups = ["reading" if place >= num_items else "example" if item.is_example else "test" for place, item in enumerate(items)]
        weights = word_weights(of_items, tasks)
        # Hash each word and the next in either order, or the only word of a segment
        following = np.append(of_items.hashes[1:], np.uint64(0))
        grams = np.where(of_items.words_left > 1, (of_items.hashes + following) * GRAM_FACTOR, np.uint64(0))
        firsts = of_items.starts[:-1][np.diff(of_items.starts) == 1]
        grams[firsts] = of_items.hashes[firsts]
        sizes = part_sizes(of_items, weights)
        seeds, places = _seeds(of_items, sizes.telling[:, CHOICE] < MIN_DISTINCT_CHOICES)
        is_own = own_grams(of_items, grams, tasks, groups)
        in_segment = of_items.segment_of_word.astype(np.int64) * (int(of_items.vocabulary.max()) + 1) + of_items.vocabulary
        is_telling = np.zeros(len(in_segment), bool)
        is_telling[np.unique(in_segment, return_index=True)[1]] = True
        is_telling &= is_number(of_items.hashes) & ~np.isin(of_items.hashes, split_words(COMMON_NUMBERS).hashes)
        marks = OWN_GRAM * is_own + OWN_RUN * own_runs(of_items, is_own, groups) + TELLING_NUMBER * is_telling
        seed_filter, keys = np.zeros(1 << FILTER_BITS, np.uint64), distinct(seeds) * GRAM_FACTOR
        for shift in FILTER_SHIFTS:
            bits = np.uint64(1) << ((keys >> np.uint64(shift)) & np.uint64(63))
            np.bitwise_or.at(seed_filter, (keys >> np.uint64(64 - FILTER_BITS)).astype(np.int64), bits)
        return cls(
            names=tuple((item.benchmark, item.id) for item in items),
            digest=digest,
            hashes=of_items.hashes,
            weights=weights,
            grams=grams,
            marks=marks.astype(np.uint8),
            segment_starts=of_items.starts,
            segment_kinds=of_items.kinds,
            item_segments=of_items.item_segments,
            item_of_word=of_items.item_of_word,
            is_excerpt=np.array([item.is_excerpt for item in items], bool),
            is_example=np.array([item.is_example for item in items], bool),
            is_reading=np.arange(len(items)) >= num_items,
            shared_choices=shared_choices(of_items, groups),
            part_words=sizes.words,
            distinct_words=sizes.distinct,
            telling_words=sizes.telling,
            telling_words_with_question=sizes.telling_with_question,
            part_weights=sizes.weights,
            seed_hashes=seeds,
            seed_words=places,
            seed_buckets=np.searchsorted(seeds >> np.uint64(64 - BUCKET_BITS), np.arange((1 << BUCKET_BITS) + 1)).astype(np.int32),
            seed_filter=seed_filter,
        )

    def save(self, folder: Path) -> None:
        """Write the index into a folder, with the table last, so that a folder with a table holds a complete index."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in _ARRAYS:
            np.save(folder / f"{name}.npy", getattr(self, name))
        files = {path.name: digest_of_file(path) for path in sorted(folder.glob("*.npy"))}
        write_sealed(folder / TABLE_NAME, {"items": self.digest, "names": [list(name) for name in self.names], "files": files})

    @classmethod
    def load(cls, folder: Path) -> "LeakageIndex":
        """Map an index into memory, where all processes share it."""
        try:
            table = read_sealed(folder / TABLE_NAME)
            for name, digest in table["files"].items():
                check_file(folder / name, digest, "Delete the folder and scan again.")
            names = tuple((str(benchmark), str(id)) for benchmark, id in table["names"])
            arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in _ARRAYS}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{folder} holds no whole benchmark index ({error}). Delete the folder and scan again.") from None
        return cls(names=names, digest=str(table["items"]), **arrays)


_ARRAYS = [field.name for field in fields(LeakageIndex) if field.name not in ("names", "digest")]


def index_digest(items: Sequence[BenchmarkItem]) -> str:
    """Return the digest of the inputs of a scan, except the limits: the items, and the code that reads and compares words."""
    return digest_of_json({"items": [json.dumps(item) for item in items], "code": code_digest(*CODE)})


def _seeds(segments: Segments, has_plain_choices: Bool[np.ndarray, "i"]) -> tuple[UInt64[np.ndarray, "g"], Int32[np.ndarray, "g"]]:
    """Return the runs of four words that few items share, and the rarest of each half of a segment, sorted by hash, with first words."""
    runs = segments.runs(SEED_WORDS)
    places = np.flatnonzero((runs != 0) & (segments.kinds[segments.segment_of_word] != PASSAGE))
    runs, items, segment = runs[places], segments.item_of_word[places], segments.segment_of_word[places]
    middles = (segments.starts[:-1] + segments.starts[1:]) // 2
    owners = 2 * segment + (places >= middles[segment])
    # Runs across neighbouring choices, with and without letters, of short choices or few telling words
    of_choices = segments.kinds == CHOICE
    item_of_segment = segments.item_of_word[segments.starts[:-1]]
    has_runs = np.bincount(item_of_segment[of_choices & (np.diff(segments.starts) >= SEED_WORDS)], minlength=len(has_plain_choices)) > 1
    chosen = np.flatnonzero(of_choices & (has_plain_choices | ~has_runs)[item_of_segment])
    in_choices = np.flatnonzero(np.isin(segments.segment_of_word, chosen))
    of_chosen = item_of_segment[chosen]
    letters = np.array([split_words(letter.encode()).hashes[0] for letter in ascii_uppercase])
    before, letter = np.searchsorted(in_choices, segments.starts[chosen]), np.arange(len(chosen)) - np.searchsorted(of_chosen, of_chosen)
    words, items_of_words = segments.hashes[in_choices], segments.item_of_word[in_choices]
    lettered = np.insert(words, before, letters[letter % len(letters)])
    parts = (
        (runs, items, places),
        _runs_of(words, items_of_words, in_choices),
        _runs_of(lettered, np.insert(items_of_words, before, of_chosen), np.insert(in_choices, before, segments.starts[chosen])),
    )
    runs, items, places = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    is_joined = np.arange(len(runs)) >= len(owners)
    owners = np.append(owners, 2 * len(segments.kinds) + items[len(owners) :])
    shared_by = count_holders(runs, items)
    order = np.lexsort((places, shared_by, owners))
    rank = np.empty(len(places), np.int64)
    rank[order] = np.arange(len(places)) - np.searchsorted(owners[order], owners[order])
    kept = (shared_by <= COMMON_SEED_ITEMS) | (rank < np.where(is_joined, MIN_JOINED_SEEDS, MIN_HALF_SEEDS))
    runs, places = runs[kept], places[kept]
    order = np.lexsort((places, runs))
    return runs[order], places[order].astype(np.int32)


def _runs_of(hashes: UInt64[np.ndarray, "w"], items: Int32[np.ndarray, "w"], places: Int64[np.ndarray, "w"]) -> _Runs:
    """Return the runs of four words within one item, except arithmetic progressions such as 2 4 6 8, which are in every table."""
    count = max(0, len(hashes) - SEED_WORDS + 1)
    runs = np.zeros(count, np.uint64)
    numbers = np.array([split_words(str(number).encode()).hashes[0] for number in range(MAX_COUNTED)])
    order = np.argsort(numbers)
    found = np.minimum(np.searchsorted(numbers[order], hashes), MAX_COUNTED - 1)
    is_number, steps = numbers[order][found] == hashes, np.diff(order[found])
    is_progression = np.ones(count, bool)
    for offset in range(SEED_WORDS):
        runs = runs * GRAM_FACTOR + hashes[offset : offset + count]
        is_progression &= is_number[offset : offset + count]
    for offset in range(1, SEED_WORDS - 1):
        is_progression &= steps[offset : offset + count] == steps[:count]
    kept = (items[:count] == items[len(items) - count :]) & ~is_progression
    return runs[kept], items[:count][kept], places[:count][kept]
