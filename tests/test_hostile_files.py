"""Files that break readers, made here: each ends as read, quarantined or refused, in little time and memory, under every reader.

The same with more of them, and with the corpora of others: `python -m tests.hostile_files`.
"""

from collections import Counter
from itertools import chain

import pytest

from tests.hostile_files import End, bad, ends
from tests.hostile_makers import designed, mutations
from tests.shared_data import shared_folder

pytestmark = pytest.mark.timeout(180)  # a guard against hanging
MUTATIONS = 80
READERS = ("scan", "jsonl", "parquet")  # the others, too, with `python -m tests.hostile_files`
DESIGNED_MIB = 120  # just above what is free to unfold
EXPECTED = {
    "bomb.gz": "quarantined", "bomb.gz.gz": "quarantined", "bomb.zst": "quarantined", "bombs.zip": "quarantined",
    "lists of indices.parquet": "refused", "page.parquet": "refused", "deep.json": "read", "bomb.json": "read",
    "encrypted.zip": "refused", "two.zip": "refused", "outside.tar": "read", "links.tar": "listed as no text", "sparse.tar": "refused",
    "two.tar": "quarantined", "cut.tar": "quarantined", "garbage behind.gz": "quarantined", "empty.jsonl": "read", "zeros": "refused",
    "numbers.npy": "listed as no text", "texts.npy": "refused", "image.jsonl": "listed as no text", "pipe.jsonl": "refused",
    "socket.jsonl": "refused", "to nowhere.jsonl": "refused", "link.jsonl": "read", "folder.jsonl": "read", "twice.parquet": "read",
    "pointer.parquet": "refused", "b10b": "read", "utf-16.jsonl": "read", "one huge line.jsonl": "read", "long.warc": "refused",
}  # fmt: skip
"""How the scan ends them."""


@pytest.fixture(scope="module")
def every_end(tmp_path_factory: pytest.TempPathFactory) -> list[End]:
    """Of all files, in one process."""
    folder = tmp_path_factory.mktemp("hostile")
    return list(ends(chain(designed(folder / "designed", DESIGNED_MIB), mutations(folder / "mutations", MUTATIONS, seed=1)), READERS))


@pytest.fixture
def of_designed(every_end: list[End]) -> list[End]:
    return every_end[: -MUTATIONS * len(READERS)]


def test_what_is_made_to_break_readers_ends_well(of_designed: list[End]):
    assert not bad(of_designed)
    scanned = {end.file: end.outcome for end in of_designed if end.reader == "scan"}
    assert {name: scanned[name] for name in EXPECTED} == EXPECTED


def test_a_source_takes_nothing_of_another_format(of_designed: list[End]):
    """What its own format is, packed or not; a folder, a pipe and a link to nothing are refused."""
    taken = {reader: {end.file for end in of_designed if end.reader == reader and end.outcome == "read"} for reader in READERS}
    empty = {"empty.jsonl", "empty.gz", "devices.tar", "links.tar"}  # counted as without text
    assert taken["jsonl"] == {"bom.jsonl", "link.jsonl", "outside.tar"} | empty
    assert {"b10b"} <= taken["parquet"] - empty <= {"b10b", "indices.parquet", "deltas.parquet"}


def test_mutations_of_good_files_end_well(every_end: list[End]):
    mutated = every_end[-MUTATIONS * len(READERS) :]
    assert not bad(mutated)
    counts = Counter((end.reader == "scan", end.outcome) for end in mutated)
    assert min(counts[True, "read"], counts[True, "quarantined"], counts[True, "refused"], counts[False, "read"]) >= 1


def test_the_corpora_of_others_end_well():
    folder = shared_folder("hostile")
    files = sorted(path for path in folder.rglob("*") if path.is_file() and ("crash-" in path.name or ".encrypted" in path.name))
    assert not bad(ends(files, ("scan", "parquet", "arrow")))


def test_a_reader_that_fails_hangs_or_dies_is_seen():
    slow = End("x", "scan", "read", 31.0, 0, "")
    large = End("x", "scan", "refused", 1.0, 2**31, "")
    died = End("x", "scan", "killed", 1.0, 0, "")
    assert bad([slow, large, died, End("x", "scan", "read", 1.0, 0, "")]) == [slow, large, died]
