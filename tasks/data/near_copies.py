"""Near copies among the documents of a component.

Every document has a signature: the minima of `MINIMA` hash functions over its runs of `RUN_WORDS` words (MinHash; Broder, 1997). Two
documents with the same minimum are candidates. A minimum of more than `MAX_SHARING` documents belongs to a template or to common text. It
makes no candidates, so distinct pages of one template stay apart, and the number of candidates grows linearly with the documents. A pair of
candidates is a near copy if enough of the other minima agree, and the longer document has `HIGH_SIMILARITY` of its words in the other. If
the differences are scattered, as edits are, `MIN_SIMILARITY` is enough.

Each stage reads and writes files in the folder of the documents, in pieces of bounded size. `finish_documents` removes them.
"""

import sys
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from phasewise.tasks.data.documents import COPY, DIGEST, HELD_OUT_ONE_IN, BundleRecord, read_model, split_of, write_model
from phasewise.tasks.data.source import Deduplicate
from phasewise.tasks.progress import say
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import check_file, code_digest, digest_of_file, digest_of_json
from phasewise.trainer.base.storage import file_system_of, write_atomically, writing
from phasewise.trainer.data.manifest import MANIFEST_NAME

if TYPE_CHECKING:
    from phasewise.tasks.data.plan import ComponentPlan

RUN_WORDS = 3
MINIMA = 128
MAX_SHARING = 16
MIN_WORDS = 13
MIN_OWN_MINIMA = 7  # a document with fewer minima of its own is mostly template
MIN_AGREEING, MIN_AGREEING_SHARE = 3, 0.1
HIGH_SIMILARITY, MIN_SIMILARITY = 0.9, 0.8
SIMILARITY_DEVIATION = 0.6  # of one word: 1.5 standard deviations of the share of words that chance keeps, if it replaces a fifth
MAX_STRETCH = 28  # consecutive words outside the common runs. With a fifth of 3,000 words replaced, 99 % of documents stay below
SEED = 34
MIX = np.uint64(0x9E3779B97F4A7C15)
WORD_SHIFT = np.uint64(48)  # the highest 16 bits of a word's hash are enough to compare two documents
COLUMNS_PER_CALL = 8
DOCUMENTS_PER_CALL = 1 << 20
DOCUMENTS_PER_COMPARISON = 1 << 14
PAIR = np.dtype([("pair", "<u8"), ("agreeing", "u1")])
COMMON = np.dtype([("document", "<u4"), ("minima", "u1")])
NEAR = np.dtype([("kept", "<u4"), ("removed", "<u4"), ("similarity", "<f4")])
REMOVED_NAME = "removed.parquet"
REMOVED_SCHEMA = pa.schema(
    {"id": pa.string(), "source_file": pa.string(), "kept_id": pa.string(), "kept_source_file": pa.string(), "similarity": pa.float32()}
)
MAX_OPEN_PARTS = 64
WORDS_CODE = tuple(f"validations/evidence/leakage/{name}.py" for name in ("words", "fold"))
Run = Callable[[str, Callable[..., object], Sequence[tuple[object, ...]]], object]
MAX_SAMPLES, EXCERPT_CHARACTERS = 20, 160


def key_of_search(documents_key: str, deduplicate: Deduplicate | None) -> str:
    """The key of documents without their copies: for near copies with the versions of code and library. Raises ConfigError without it."""
    if deduplicate == "exact":
        return documents_key
    search = "none"
    if deduplicate == "near":
        try:
            library = version("rensa")
        except PackageNotFoundError:
            raise ConfigError('deduplicate "near": expected the package rensa, found none. Install it with `pip install rensa`.') from None
        search = f"near-1+{code_digest(sys.modules[__name__], *WORDS_CODE)}+rensa-{library}"
    return digest_of_json({"documents": documents_key, "deduplicate": search})


def keep_copies(folder: Path, ranges: Sequence[tuple[str, int, int]], bucket: int) -> tuple[int, int]:
    """Write that no document of a bucket is left out, as `find_copies` does. Count the documents: training, held out."""
    write_atomically(folder / f"copies-{bucket:03d}.bin", b"")
    digests = [_read(folder / f"{part}.digests", DIGEST, start, stop)["digest"].tobytes() for part, start, stop in ranges]
    firsts = np.frombuffer(b"".join(digests), ">u4")[::8]
    held_out = int((firsts % HELD_OUT_ONE_IN == 0).sum())
    return len(firsts) - held_out, held_out


def find_near_copies(
    component: str, records: Sequence[BundleRecord], folder: Path, *, evidence: Path, num_buckets: int, run: Run
) -> tuple[int, int]:
    """Search the near copies of a component and write them beside its exact copies, with their evidence.

    `num_buckets`: buckets of exact copies, whose files exist. `run`: calls a function with each tuple of arguments, in any order. Return
    the negative numbers of near copies: training, held out.
    """
    parts = numbered(records)
    total = sum(part.documents for part in parts)
    run("signatures", sign_part, [(folder, part, number, num_buckets) for number, part in enumerate(parts)])
    shares = -(-total // DOCUMENTS_PER_CALL)
    columns = [range(first, first + COLUMNS_PER_CALL) for first in range(0, MINIMA, COLUMNS_PER_CALL)]
    calls = [(folder, parts, one, share, shares) for one in columns for share in range(shares)]
    run("pairs of documents", pair_documents, calls)
    own = np.full(total, MINIMA, np.uint8)  # minima that at most `MAX_SHARING` documents have
    for path in folder.glob("common-*.bin"):
        common = _read(path, COMMON)
        own[common["document"]] -= common["minima"]
    write_atomically(folder / "own.bin", own.tobytes())
    ranges = [(folder, parts, first, min(first + DOCUMENTS_PER_COMPARISON, total)) for first in range(0, total, DOCUMENTS_PER_COMPARISON)]
    run("near copies", compare_pairs, ranges)
    removed = remove_copies(folder, parts, component=component, evidence=evidence, num_buckets=num_buckets)
    say(f"{component}: {-sum(removed):,} of {total:,} documents are near copies. They are listed in {evidence / REMOVED_NAME}")
    return removed


class NearCopy(Frozen):
    """A document that was left out, and the kept document. `similarity`: share of the longer document's words that both have."""

    id: str
    source_file: str
    kept_id: str
    kept_source_file: str
    similarity: float
    text: str
    kept_text: str

    @property
    def in_words(self) -> str:
        """Both files and the similarity."""
        return f"{self.source_file} like {self.kept_source_file} ({self.similarity:.0%})"


class NearCopies(Frozen):
    """The evidence on a component's near copies. `removed_digest`: SHA-256 of the list of all near copies."""

    component: str
    documents: int
    near_copies: int
    removed_digest: str
    samples: tuple[NearCopy, ...]


class Numbered(NamedTuple):
    """A part of the documents, and the number of its first document in the component."""

    name: str
    first: int
    documents: int


def numbered(records: Sequence[BundleRecord]) -> tuple[Numbered, ...]:
    """The parts of a component with the numbers of their documents."""
    parts = [part for record in records for part in record.parts]
    firsts = np.cumsum([0, *(part.documents for part in parts)])
    return tuple(Numbered(part.name, int(first), part.documents) for part, first in zip(parts, firsts[:-1], strict=True))


def sign_part(folder: Path, part: Numbered, number: int, num_buckets: int) -> None:
    """Write the signatures and the words of a part's documents. Exact copies and documents below `MIN_WORDS` have neither."""
    from rensa import RMinHash  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]  # it declares no types

    from phasewise.validations.evidence.leakage.words import split_words  # Numba

    left_out = np.zeros(part.documents, bool)
    for bucket in range(num_buckets):
        copies = _read(folder / f"copies-{bucket:03d}.bin", COPY)
        left_out[copies["row"][copies["part"] == number]] = True
    signatures = np.zeros((MINIMA, part.documents), np.uint32)
    starts, row = [0], 0
    path = folder / f"{part.name}.parquet"
    with path.open("rb") as source, writing(path.with_suffix(".words")) as file, pq.ParquetFile(source) as parquet:
        for group in range(parquet.num_row_groups):
            texts = [str(text).encode() for text in parquet.read_row_group(group, ["text"])["text"].to_pylist()]
            words = split_words(b"\n".join(texts))
            bounds = np.searchsorted(words.starts, [0, *np.cumsum([len(text) + 1 for text in texts])])
            hashes = [words.hashes[start:stop] for start, stop in pairwise(bounds.tolist())]
            keep = [at for at, each in enumerate(hashes) if len(each) >= MIN_WORDS and not left_out[row + at]]
            runs = [_runs(hashes[at]) for at in keep]
            if keep:
                offsets = np.cumsum([0, *map(len, runs)]).astype(np.uint64)
                matrix = RMinHash.digest_matrix_from_flat_token_hashes(np.concatenate(runs), offsets, MINIMA, SEED)
                signatures[:, [row + at for at in keep]] = np.array(matrix.to_rows(), np.uint32).T
            lengths = np.zeros(len(texts), np.int64)
            for at in keep:
                lengths[at] = len(hashes[at])
                file.write((hashes[at] >> WORD_SHIFT).astype("<u2").tobytes())
            starts += (starts[-1] + np.cumsum(lengths)).tolist()
            row += len(texts)
    write_atomically(path.with_suffix(".signatures"), signatures.tobytes())
    write_atomically(path.with_suffix(".starts"), np.array(starts, "<i8").tobytes())


def _read(path: Path, dtype: Any, start: int = 0, stop: int | None = None) -> np.ndarray:
    """The entries `[start, stop)` of a file."""
    size = np.dtype(dtype).itemsize
    with path.open("rb") as file:
        file.seek(start * size)
        return np.frombuffer(file.read() if stop is None else file.read((stop - start) * size), dtype)


def _runs(hashes: np.ndarray) -> np.ndarray:
    """A hash of each run of words."""
    count = len(hashes) - RUN_WORDS + 1
    runs = hashes[:count].copy()
    for offset in range(1, RUN_WORDS):
        runs = (runs * MIX) ^ hashes[offset : offset + count]
        runs ^= runs >> np.uint64(29)
    return runs


def pair_documents(folder: Path, parts: Sequence[Numbered], columns: range, bucket: int, num_buckets: int) -> None:
    """Write the pairs of documents with a common minimum in these columns, and for each document the number of its common minima."""
    pairs, common = [np.empty(0, PAIR)], [np.empty(0, "<u4")]
    for column in columns:
        of_parts, numbers = [np.empty(0, np.uint32)], [np.empty(0, np.uint32)]
        for part in parts:
            of_part = _read(folder / f"{part.name}.signatures", "<u4", column * part.documents, (column + 1) * part.documents)
            has_words = np.diff(_read(folder / f"{part.name}.starts", "<i8")) > 0
            if num_buckets > 1:
                has_words &= ((of_part * np.uint32(0x9E3779B1)) >> np.uint32(8)) % np.uint32(num_buckets) == bucket
            of_parts.append(of_part[has_words])
            numbers.append((part.first + np.flatnonzero(has_words)).astype(np.uint32))
        values, documents = np.concatenate(of_parts), np.concatenate(numbers)
        order = np.argsort(values, kind="stable")
        values, documents = values[order], documents[order]
        starts = np.flatnonzero(np.append(True, values[1:] != values[:-1])) if len(values) else np.empty(0, np.int64)
        lengths = np.diff(np.append(starts, len(values)))
        is_common = np.repeat(lengths > MAX_SHARING, lengths)
        common.append(documents[is_common])
        for distance in range(1, MAX_SHARING):
            same = (values[distance:] == values[:-distance]) & ~is_common[distance:]
            if not same.any():
                break
            pairs.append(_as_pairs(documents[:-distance][same], documents[distance:][same], 1))
        if column == columns[0]:  # candidates among documents that are mostly template
            firsts = np.repeat(documents[starts], lengths)
            later = is_common & (firsts != documents)
            pairs.append(_as_pairs(firsts[later], documents[later], 0))
    write_atomically(folder / f"pairs-{columns[0]:03d}-{bucket:03d}.bin", _merged(np.concatenate(pairs)).tobytes())
    found, counts = np.unique(np.concatenate(common), return_counts=True)
    table = np.empty(len(found), COMMON)
    table["document"], table["minima"] = found, counts
    write_atomically(folder / f"common-{columns[0]:03d}-{bucket:03d}.bin", table.tobytes())


def _as_pairs(first: np.ndarray, second: np.ndarray, agreeing: int) -> np.ndarray:
    pairs = np.empty(len(first), PAIR)
    pairs["pair"] = (first.astype(np.uint64) << np.uint64(32)) | second
    pairs["agreeing"] = agreeing
    return pairs


def _merged(pairs: np.ndarray) -> np.ndarray:
    """Each pair once, sorted, with the sum of its agreeing minima."""
    pairs = pairs[np.argsort(pairs["pair"], kind="stable")]
    starts = np.flatnonzero(np.append(True, pairs["pair"][1:] != pairs["pair"][:-1])) if len(pairs) else np.empty(0, np.int64)
    merged = pairs[starts]
    if len(pairs):
        merged["agreeing"] = np.add.reduceat(pairs["agreeing"], starts)
    return merged


def compare_pairs(folder: Path, parts: Sequence[Numbered], first: int, stop: int) -> None:
    """Write the near copies among the pairs whose earlier document has a number in `[first, stop)`."""
    found = [np.empty(0, PAIR)]
    for path in sorted(folder.glob("pairs-*.bin")):
        pairs = _mapped(path, PAIR)
        low, high = np.searchsorted(pairs["pair"], np.array([first, stop], np.uint64) << np.uint64(32))
        found.append(np.array(pairs[low:high]))
    pairs = _merged(np.concatenate(found))
    earlier, later = (pairs["pair"] >> np.uint64(32)).astype(np.int64), (pairs["pair"] & np.uint64(2**32 - 1)).astype(np.int64)
    own = _mapped(folder / "own.bin", np.uint8)
    least, most = np.minimum(own[earlier], own[later]), np.maximum(own[earlier], own[later])
    are_template = most < MIN_OWN_MINIMA
    agrees = pairs["agreeing"] >= np.maximum(MIN_AGREEING, MIN_AGREEING_SHARE * least)
    firsts = [part.first for part in parts]

    @lru_cache(MAX_OPEN_PARTS)
    def opened(part: int) -> tuple[np.ndarray, np.ndarray]:
        path = folder / f"{parts[part].name}.words"
        return _mapped(path, "<u2"), _mapped(path.with_suffix(".starts"), "<i8")

    def words_of(document: int) -> np.ndarray:
        part = bisect_right(firsts, document) - 1
        words, starts = opened(part)
        return words[starts[document - firsts[part]] : starts[document - firsts[part] + 1]]

    near: list[tuple[int, int, float]] = []
    for one, other, is_template in zip(*(column[are_template | agrees].tolist() for column in (earlier, later, are_template)), strict=True):
        texts = words_of(one), words_of(other)
        shorter, longer = sorted(map(len, texts))
        limit = HIGH_SIMILARITY if is_template else MIN_SIMILARITY - SIMILARITY_DEVIATION / longer**0.5
        if shorter >= limit * longer:
            similarity = float(np.minimum(*(np.bincount(text, minlength=2**16) for text in texts)).sum() / longer)
            if similarity >= limit and (similarity >= HIGH_SIMILARITY or _are_scattered(*texts)):
                near.append((one, other, similarity))
    write_atomically(folder / f"near-{first:010d}.bin", np.array(near, NEAR).tobytes())


def _are_scattered(*texts: np.ndarray) -> bool:
    """Whether no `MAX_STRETCH` consecutive words of either text are outside the runs of words that both texts have."""
    runs = [_runs(text.astype(np.uint64)) for text in texts]
    for text, own, other in zip(texts, runs, reversed(runs), strict=True):
        is_common, is_covered = np.isin(own, other), np.zeros(len(text) + 2, bool)
        for offset in range(RUN_WORDS):
            is_covered[1 + offset : 1 + offset + len(own)] |= is_common
        is_covered[[0, -1]] = True
        if np.diff(np.flatnonzero(is_covered)).max() - 1 > MAX_STRETCH:
            return False
    return True


def _mapped(path: Path, dtype: Any) -> np.ndarray:
    """The entries of a file, mapped into memory if the file is local."""
    is_local = file_system_of(path) is None and path.stat().st_size
    return np.memmap(path, dtype, "r") if is_local else _read(path, dtype)


def remove_copies(folder: Path, parts: Sequence[Numbered], *, component: str, evidence: Path, num_buckets: int) -> tuple[int, int]:
    """Write the rows to leave out, and the evidence: every removed document with the kept one, counts and samples.

    A document is left out if it is a near copy of an earlier document that is kept. So no near copy remains beside its original.
    """
    near = np.concatenate([np.empty(0, NEAR), *(_read(path, NEAR) for path in sorted(folder.glob("near-*.bin")))])
    near = near[np.lexsort((near["kept"], near["removed"]))]
    chosen: dict[int, tuple[int, float]] = {}  # number of a document to leave out → of the kept document, and their similarity
    for kept, copy, similarity in near.tolist():  # all pairs of an earlier document come first
        if kept not in chosen and (copy not in chosen or similarity > chosen[copy][1]):
            chosen[copy] = (kept, similarity)
    numbers = np.array(sorted({*chosen, *(kept for kept, _ in chosen.values())}), np.int64)
    samples = set(sorted(chosen)[:: max(1, -(-len(chosen) // MAX_SAMPLES))])
    quoted = samples | {chosen[one][0] for one in samples}
    names: dict[int, tuple[str, str]] = {}
    excerpts: dict[int, str] = {}
    for part in parts:
        row, end = part.first, part.first + part.documents
        if np.searchsorted(numbers, row) == np.searchsorted(numbers, end):
            continue
        columns = ["id", "source_file", *(["text"] if any(row <= number < end for number in quoted) else [])]
        with (folder / f"{part.name}.parquet").open("rb") as source, pq.ParquetFile(source) as parquet:
            for batch in parquet.iter_batches(columns=columns):
                low, high = np.searchsorted(numbers, [row, row + len(batch)])
                for number in numbers[low:high].tolist():
                    names[number] = (str(batch["id"][number - row]), str(batch["source_file"][number - row]))
                    if number in quoted:
                        excerpts[number] = " ".join(str(batch["text"][number - row]).split())[:EXCERPT_CHARACTERS]
                row += len(batch)
    removed = np.array(sorted(chosen), np.int64)
    firsts = np.array([part.first for part in parts], np.int64)
    rows = np.zeros(len(chosen), COPY)
    rows["part"] = np.searchsorted(firsts, removed, side="right") - 1
    rows["row"] = removed - firsts[rows["part"]]
    write_atomically(folder / f"copies-{num_buckets:03d}.bin", rows.tobytes())
    table = [(*names[one], *names[chosen[one][0]], chosen[one][1]) for one in removed.tolist()]
    with writing(evidence / REMOVED_NAME) as file:
        pq.write_table(pa.Table.from_pylist([dict(zip(REMOVED_SCHEMA.names, row, strict=True)) for row in table], REMOVED_SCHEMA), file)
    found = NearCopies(
        component=component,
        documents=sum(part.documents for part in parts),
        near_copies=len(chosen),
        removed_digest=digest_of_file(evidence / REMOVED_NAME),
        samples=tuple(
            NearCopy.model_validate(dict(zip(NearCopy.model_fields, (*row, excerpts[one], excerpts[chosen[one][0]]), strict=True)))
            for one, row in zip(removed.tolist(), table, strict=True)
            if one in samples
        ),
    )
    write_model(evidence / MANIFEST_NAME, found)
    held_out = sum(split_of(names[one][0]) == "held_out" for one in chosen)
    return held_out - len(chosen), -held_out


def read_near_copies(component: "ComponentPlan") -> NearCopies | None:
    """The evidence on the near copies of a component. None if they were not searched, or the training cache is pinned."""
    if component.source.deduplicate != "near" or component.train.pin is not None:
        return None
    return read_model(NearCopies, component.near_copies / MANIFEST_NAME)


def find_removed(component: "ComponentPlan", column: Literal["id", "source_file"], names: Sequence[str]) -> list[dict[str, Any]]:
    """The near copies with these source files, or with these starts of ids, and their kept documents."""
    found = read_near_copies(component)
    if found is None:
        return []
    path = component.near_copies / REMOVED_NAME
    check_file(path, found.removed_digest, f"Delete {component.documents.folder} and {component.near_copies}, and prepare the data again.")
    with path.open("rb") as file:
        rows = pq.read_table(file).to_pylist()
    return [row for row in rows if row[column] in names or (column == "id" and row["id"].startswith(tuple(names)))]
