"""Scan of a stream of documents for benchmark items, with bounded memory and a bounded number of hits per item, and its evidence tables.

The token caches are scanned as text instead of their sources: text that was filtered from a source may still be in a cache.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float64, Int32, Int64
from pydantic import Field

from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.data.cache import TokenCache
from phasewise.validations.evidence.caches import name_some
from phasewise.validations.evidence.leakage.detokenize import Detokenize, fill
from phasewise.validations.evidence.leakage.index import LeakageIndex
from phasewise.validations.evidence.leakage.match import IndexWords, build_scratch, score_candidates
from phasewise.validations.evidence.leakage.prefilter import PAIR_COLUMNS, find_seeds, group_seeds
from phasewise.validations.evidence.leakage.rules import PARTS, Rules, build_rules
from phasewise.validations.evidence.leakage.segments import NUM_KINDS
from phasewise.validations.evidence.leakage.words import room_for, split_words
from phasewise.validations.limits import LeakageLimits

TABLE_COLUMNS = (
    "component", "benchmark", "items", "items_hit", "hit_percent", "documents_hit", "tokens_hit", "files", "documents_scanned",
    "items_out_of_reach", "benchmark_items_hit", "held_out_percent", "scan_key", "expected_scan_key",
)  # fmt: skip
LEAKED_ITEM_COLUMNS = (
    "component", "benchmark", "item", "part", "score", "documents", "files", "document", "excerpt", "start", "end",
)  # fmt: skip
BATCH_BYTES, CARRIED_BYTES = 2**21, 2**16
MAX_HITS_PER_ITEM, EXCERPT_BYTES = 1000, 160
CLEARLY_BETTER, MOSTLY, MAX_HULL = 0.1, 0.5, 1.5
_MAX_PAIRS, _BLOCK_WORDS = 2**20, 1024
_CANDIDATE_ROOM, _HELD_ROOM, _OUT_ROOM = 2**16, 2**16, 2**17
_OUT_TYPES = (np.int32, np.uint8, np.float64, np.int64, np.int64, np.int64)
_INDEX_TYPES = (np.uint64, np.uint64, np.uint8, np.float32, np.int32, np.uint8, np.int32)
_RULE_TYPES = (
    *((np.uint8, 2), (np.uint8, 2), (np.float32, 2), (np.float32, 2), (np.uint8, 1)),
    *((np.float32, 2), (np.bool_, 1), (np.int32, 1), (np.bool_, 1)),
)


class Document(NamedTuple):
    """A document to scan: file, position in the file, id, UTF-8 text, and number of tokens in a cache."""

    file: str
    number: int
    id: str
    text: bytes
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Hit:
    """A part of an item in a document. Not a validated model: a text full of items has hundreds of thousands of hits."""

    file: str
    document: int  # position in the file, or in the token cache, from 0
    id: str
    tokens: int  # tokens of the whole document, if it is from a token cache
    benchmark: str
    item: str
    part: str  # `question`, `choices`, `answer` (also a solution), or `item`: the question with another part
    score: float  # found share of the part, by weight
    start: int  # byte range of the part in the document's text
    end: int
    excerpt: str

    @property
    def place(self) -> tuple[str, int]:
        """The document, for sorting."""
        return self.file, self.document


class Scan(Frozen):
    """Extent of a scan, and its hits sorted by file, document, benchmark, item and part."""

    documents: int = Field(ge=0)
    bytes: int = Field(ge=0)
    hits: tuple[Hit, ...]


class _Chunk(NamedTuple):
    """A piece of a document. A document longer than a batch has several."""

    document: Document
    text: bytes
    start: int


def scan_documents(documents: Iterable[Document], index: LeakageIndex, limits: LeakageLimits) -> Scan:
    """Scan a stream of documents. The scan finds items that are split over two neighbours of the stream."""
    scanner, kept = _Scanner(index, limits), _KeptHits()
    count = size = waiting = 0
    batch: list[_Chunk] = []
    for document in documents:
        count, size = count + 1, size + len(document.text)
        for start in range(0, max(len(document.text), 1), BATCH_BYTES):
            text = document.text[start : start + BATCH_BYTES]
            waiting += len(text)
            if batch and batch[-1].document is document:  # joined, so that no word is split
                last = batch.pop()
                text, start = last.text + text, last.start
            batch.append(_Chunk(document, text, start))
            if waiting >= BATCH_BYTES:
                kept.add(scanner.scan(batch))
                # The end of the batch starts the next batch, so that one batch holds the text across the seam
                carried: list[_Chunk] = []
                room = CARRIED_BYTES
                for chunk in reversed(batch):
                    if len(chunk.text) > room:
                        if not carried:
                            end = len(chunk.text) - room
                            carried.append(_Chunk(chunk.document, chunk.text[end:], chunk.start + end))
                        break
                    carried.append(chunk)
                    room -= len(chunk.text)
                batch = carried[::-1]
                waiting = sum(len(chunk.text) for chunk in batch)
    if batch:
        kept.add(scanner.scan(batch))
    return Scan(documents=count, bytes=size, hits=kept.hits())


def merge_scans(scans: Iterable[Scan]) -> Scan:
    """Merge scans in any order."""
    kept, documents, size = _KeptHits(), 0, 0
    for scan in scans:
        documents, size = documents + scan.documents, size + scan.bytes
        kept.add(scan.hits)
    return Scan(documents=documents, bytes=size, hits=kept.hits())


def cache_documents(folder: Path, detokenize: Detokenize, shard: int | None = None) -> Iterator[Document]:
    """Yield the documents of a token cache, or of one shard, as text."""
    cache = TokenCache.open(folder)
    first = sum(each.documents for each in cache.manifest.shards[: shard or 0])
    for number, document in enumerate(cache.documents(None if shard is None else [shard]), start=first):
        yield Document(document.source_file, number, document.id, detokenize(document.tokens), len(document.tokens))


class _KeptHits:
    """The best hit of each part of an item in a document, for the first thousand documents of the item."""

    def __init__(self) -> None:
        self._by_item: dict[tuple[str, str], dict[tuple[tuple[str, int], str], Hit]] = {}

    def add(self, hits: Iterable[Hit]) -> None:
        for hit in hits:
            of_item = self._by_item.setdefault((hit.benchmark, hit.item), {})
            key = (hit.place, hit.part)
            known = of_item.get(key)
            if known is None or (hit.score, -hit.start) > (known.score, -known.start):
                of_item[key] = hit
            if len(of_item) >= 2 * MAX_HITS_PER_ITEM:
                self._by_item[hit.benchmark, hit.item] = dict(sorted(of_item.items())[:MAX_HITS_PER_ITEM])

    def hits(self) -> tuple[Hit, ...]:
        kept = [hit for of_item in self._by_item.values() for _, hit in sorted(of_item.items())[:MAX_HITS_PER_ITEM]]
        return tuple(sorted(kept, key=lambda hit: (hit.place, hit.benchmark, hit.item, hit.part)))


class _Scanner:
    """An index with the arrays that all batches share."""

    def __init__(self, index: LeakageIndex, limits: LeakageLimits):
        rules, self._benchmarks = _prepared(index, limits)  # pyright: ignore[reportArgumentType]  # frozen models are hashable
        self._names, self._is_example = index.names, np.asarray(index.is_example)
        self._seeds = [_read_only(array) for array in (index.seed_hashes, index.seed_words, index.seed_buckets, index.seed_filter)]
        self._rules = Rules(*map(_read_only, rules))
        self._index = IndexWords(*(_read_only(getattr(index, name)) for name in IndexWords._fields))
        self._item_of_word = _read_only(index.item_of_word)
        segments = np.asarray(index.item_segments)
        max_words = int(np.diff(np.asarray(index.segment_starts)[segments]).max(initial=1))
        self._scratch = build_scratch(max_words, int(np.diff(segments).max(initial=1)))
        self._block = (np.empty(_BLOCK_WORDS, np.uint64), np.empty(_BLOCK_WORDS, np.bool_))
        self._last_pair = np.empty(len(index.names), np.int64)
        self._make_candidate_room(_CANDIDATE_ROOM)
        self._held = np.empty((2, _HELD_ROOM), np.uint8)
        self._out = tuple(np.empty(_OUT_ROOM, kind) for kind in _OUT_TYPES)
        self._room_bytes = 2 * BATCH_BYTES
        self._room = room_for(self._room_bytes)

    def _make_candidate_room(self, room: int) -> None:
        """Allocate seeds in text order, seeds in the order of the pairs, and pairs of document and item."""
        self._found = (np.empty(room, np.int32), np.empty(room, np.int32))
        self._grouped = (np.empty(room, np.int32), np.empty(room, np.int32), np.empty(room, np.int32))
        self._pairs = np.empty((room, PAIR_COLUMNS), np.int32)

    def scan(self, batch: Sequence[_Chunk]) -> list[Hit]:
        """Find the hits in a batch of neighbouring documents."""
        text = b"\n".join(chunk.text for chunk in batch)
        firsts = np.cumsum([0, *(len(chunk.text) + 1 for chunk in batch[:-1])])
        if len(text) > self._room_bytes:
            self._room, self._room_bytes = room_for(len(text)), len(text)
        words = split_words(text, self._room)
        count = int(find_seeds(*[words.hashes, *self._seeds, *self._found, self._block]))
        if count > len(self._pairs):
            self._make_candidate_room(count + count // 4)
            find_seeds(*[words.hashes, *self._seeds, *self._found, self._block])
        if not count:
            return []
        first_words = np.append(np.searchsorted(words.starts, firsts), len(words.starts))
        documents = np.repeat(np.arange(len(firsts), dtype=np.int32), np.diff(first_words))
        item, part, score, anchor, first, last = self._score(count, (words.hashes, first_words), documents)
        # The best find of each part of an item in a document, the first of equals
        owners = np.clip(documents[anchor], documents[first], documents[last])
        order = np.lexsort((first, -score, part, item, owners))
        keys = np.stack([owners, item, part])[:, order]
        is_first = np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0)) if len(order) else np.zeros(0, bool)
        owners, item, part, score, first, last = tuple(column[order[is_first]] for column in (owners, item, part, score, first, last))
        limits = np.append(firsts, len(text) + 1)  # a part that continues in a neighbour ends with its document
        starts, ends = np.maximum(words.starts[first], limits[owners]), np.minimum(words.ends[last], limits[owners + 1] - 1)
        kept = suppress_hits(FoundParts(owners, item, self._benchmarks[item], score, starts, ends), self._is_example[item])
        columns = (owners, item, part, score, starts - firsts[owners], ends - firsts[owners])
        rows: Iterable[tuple[Any, ...]] = zip(*(column[kept].tolist() for column in columns), strict=True)
        hits: list[Hit] = []
        for owner, item_number, part_number, share, start, end in rows:
            chunk, (benchmark, id) = batch[owner], self._names[item_number]
            excerpt = chunk.text[start : start + EXCERPT_BYTES].decode(errors="replace")
            hits.append(
                Hit(
                    file=chunk.document.file,
                    document=chunk.document.number,
                    id=chunk.document.id,
                    tokens=chunk.document.tokens,
                    benchmark=benchmark,
                    item=id,
                    part=PARTS[part_number],
                    score=round(min(share, 1.0), 4),
                    start=chunk.start + start,
                    end=chunk.start + end,
                    excerpt=" ".join(excerpt.split()),
                )
            )
        return hits

    def _score(self, count: int, text: tuple[np.ndarray, np.ndarray], documents: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return item, part, score, place of the seed, first and last word of each find."""
        found = (self._found[0][:count], self._found[1][:count])
        self._last_pair.fill(-1)
        of_words = (self._item_of_word, self._index.item_segments, self._index.segment_starts)
        num_pairs, most_words = group_seeds(found, documents, of_words, self._last_pair, self._pairs, self._grouped)
        if most_words > self._held.shape[1]:
            self._held = np.empty((2, 2 * most_words), np.uint8)
        arguments = (num_pairs, self._pairs, self._grouped[:2], text, self._index, self._rules, self._scratch, self._held)
        num_found = int(score_candidates(*arguments, self._out))
        if num_found > len(self._out[0]):
            self._out = tuple(np.empty(2 * num_found, kind) for kind in _OUT_TYPES)
            score_candidates(*arguments, self._out)
        return tuple(column[:num_found] for column in self._out)


def _read_only(array: np.ndarray) -> np.ndarray:
    """Return a read-only view, so that the loops compile once for arrays in memory and in files."""
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view


@lru_cache(maxsize=2)
def _prepared(index: LeakageIndex, limits: LeakageLimits) -> tuple[Rules, np.ndarray]:
    """Return the rules and the number of each item's benchmark, which all scans of a process share."""
    return build_rules(index, limits), np.unique(np.array([benchmark for benchmark, _ in index.names]), return_inverse=True)[1]


class FoundParts(NamedTuple):
    """Found parts: document, item, number of the item's benchmark, score, byte range."""

    documents: Int32[np.ndarray, "n"]
    items: Int32[np.ndarray, "n"]
    benchmarks: Int64[np.ndarray, "n"]
    scores: Float64[np.ndarray, "n"]
    starts: Int64[np.ndarray, "n"]
    ends: Int64[np.ndarray, "n"]


def suppress_hits(found: FoundParts, is_example: Bool[np.ndarray, "n"]) -> list[int]:
    """Return the indices of kept parts: parts of test items, unless a better find of the same benchmark covers the same text.

    A sibling by template must be clearly better. An example of another split, which may be in the data, must be better, or equal and
    explain more of the document.
    """
    # Byte range of each item in its document, if all its parts are close together, and the total length of the parts
    of_item = found.documents.astype(np.int64) * (int(found.items.max(initial=0)) + 1) + found.items
    group = np.unique(of_item, return_inverse=True)[1]
    first, last = np.full(len(group), np.iinfo(np.int64).max), np.zeros(len(group), np.int64)
    np.minimum.at(first, group, found.starts)
    np.maximum.at(last, group, found.ends)
    of_group = np.bincount(group, weights=found.ends - found.starts, minlength=len(group))
    is_close = (last - first <= MAX_HULL * of_group)[group]
    starts, ends = np.where(is_close, first[group], found.starts), np.where(is_close, last[group], found.ends)
    lengths = of_group[group]
    # Compare each part with all parts of its document and benchmark, in batches of pairs
    order = np.lexsort((found.starts, found.benchmarks, found.documents))
    is_first = np.diff(found.documents[order], prepend=-1) | np.diff(found.benchmarks[order], prepend=-1)
    groups = np.flatnonzero(is_first)
    sizes = np.diff(np.append(groups, len(order)))
    is_test = ~is_example[order]
    numbers, firsts, counts = order[is_test], np.repeat(groups, sizes)[is_test], np.repeat(sizes, sizes)[is_test]
    kept: list[int] = []
    for some in np.split(np.arange(len(numbers)), np.flatnonzero(np.diff(np.cumsum(counts) // _MAX_PAIRS)) + 1):
        of_some = counts[some]
        rows = np.cumsum(of_some) - of_some
        number = np.repeat(numbers[some], of_some)
        other = order[np.repeat(firsts[some] - rows, of_some) + np.arange(of_some.sum())]
        start, end = found.starts[number], found.ends[number]
        covers = np.minimum(end, ends[other]) - np.maximum(start, starts[other]) > MOSTLY * (end - start)
        better = found.scores[other] - found.scores[number]
        explains = (better > 0) | ((better == 0) & (lengths[other] > lengths[number]))
        is_covered = covers & np.where(is_example[other], explains, better > CLEARLY_BETTER)
        kept += numbers[some][~np.logical_or.reduceat(is_covered, rows)].tolist()
    return sorted(kept)


def leakage_evidence(
    scans: Mapping[str, Scan],
    index: LeakageIndex,
    limits: LeakageLimits,
    *,
    scan_keys: Mapping[str, str],
    expected_scan_keys: Mapping[str, str],
) -> pd.DataFrame:
    """Build a row per component and benchmark.

    `tokens_hit`: tokens of the documents with hits. `items_out_of_reach`: items too similar to ordinary text. `benchmark_items_hit`: found
    items, or 0 for items from held-out text. `held_out_percent`: share of found items from held-out text, or 0 for other items. A scan key
    is the digest of a scan's bytes, items, rules and code. `expected_scan_keys` has the cache to train on for every component.
    """
    written = {benchmark for (benchmark, _), is_excerpt in zip(index.names, index.is_excerpt, strict=True) if not is_excerpt}
    unreachable: dict[str, int] = {}
    for item in np.flatnonzero(build_rules(index, limits).out_of_reach & index.is_counted).tolist():
        benchmark = index.names[item][0]
        unreachable[benchmark] = unreachable.get(benchmark, 0) + 1
    rows: list[dict[str, object]] = []
    for component, expected in expected_scan_keys.items():
        scan = scans.get(component)
        for benchmark, items in index.items_per_benchmark.items():
            hits = [hit for hit in scan.hits if hit.benchmark == benchmark] if scan else []
            items_hit = len({hit.item for hit in hits})
            rows.append(
                {
                    "component": component, "benchmark": benchmark, "items": items, "items_hit": items_hit,
                    "hit_percent": 100 * items_hit / items, "documents_hit": len({hit.place for hit in hits}),
                    "tokens_hit": sum({hit.place: hit.tokens for hit in hits}.values()),
                    "files": name_some(sorted({hit.file for hit in hits})), "documents_scanned": scan.documents if scan else 0,
                    "items_out_of_reach": unreachable.get(benchmark, 0), "benchmark_items_hit": items_hit if benchmark in written else 0,
                    "held_out_percent": 0.0 if benchmark in written else 100 * items_hit / items,
                    "scan_key": scan_keys.get(component, "none"), "expected_scan_key": expected,
                }
            )  # fmt: skip
    return pd.DataFrame(rows, columns=list(TABLE_COLUMNS))


def leaked_items(scans: Mapping[str, Scan]) -> pd.DataFrame:
    """Build a row per component and found item: its clearest hit, and its documents and files in words."""
    rows: list[dict[str, object]] = []
    for component, scan in scans.items():
        groups: dict[tuple[str, str], list[Hit]] = {}
        for hit in scan.hits:
            groups.setdefault((hit.benchmark, hit.item), []).append(hit)
        for hits in groups.values():
            clearest = max(hits, key=lambda hit: (hit.score, hit.end - hit.start))
            row: dict[str, object] = {name: getattr(clearest, name) for name in LEAKED_ITEM_COLUMNS if hasattr(clearest, name)}
            documents = name_some(str(number) for number in sorted({hit.document for hit in hits}))
            rows.append(row | {"component": component, "documents": documents, "files": name_some(sorted({hit.file for hit in hits}))})
    return pd.DataFrame(rows, columns=list(LEAKED_ITEM_COLUMNS))


def warm_up_jit() -> None:
    """Compile the loops of a scan for the types of its arguments."""

    def empty(kind: type[np.generic], dimensions: int = 1) -> np.ndarray:
        return _read_only(np.empty((0, NUM_KINDS) if dimensions == 2 else 0, kind))

    words, places = np.empty(0, np.uint64), np.empty(0, np.int32)
    tables = (empty(np.uint64), empty(np.int32), _read_only(np.zeros(2**20 + 1, np.int32)), empty(np.uint64))
    find_seeds(words, *tables, places, places, (np.empty(1, np.uint64), np.empty(1, np.bool_)))
    pairs = np.empty((0, PAIR_COLUMNS), np.int32)
    of_words = (empty(np.int32), empty(np.int32), empty(np.int32))
    group_seeds((places, places), places, of_words, np.empty(0, np.int64), pairs, (places, places, places))
    rules = Rules(*(empty(kind, dimensions) for kind, dimensions in _RULE_TYPES))
    out = tuple(np.empty(0, kind) for kind in _OUT_TYPES)
    text, held = (words, np.zeros(1, np.int64)), np.empty((2, 1), np.uint8)
    index = IndexWords(*map(empty, _INDEX_TYPES))
    score_candidates(0, pairs, (places, places), text, index, rules, build_scratch(1, 1), held, out)
    split_words(b"Two words")
    numbers = np.empty(0, np.int64)
    fill(numbers, numbers, numbers, empty(np.uint8), np.empty(0, np.uint8))


if __name__ == "__main__":
    warm_up_jit()
