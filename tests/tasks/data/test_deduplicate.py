"""Exact copies over a whole component: the first stays, whatever the parts and buckets."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.tasks.data import deduplicate
from phasewise.tasks.data.deduplicate import find_copies, is_held_out, join_buckets, num_buckets
from phasewise.tasks.data.documents import split_texts
from phasewise.tasks.data.parts import split_of
from phasewise.tasks.data.source import Source
from phasewise.trainer.base.identity import digest_of_bytes
from tests.tasks.data.builds import write_documents


def write(folder: Path, files: list[list[str]], max_part_bytes: int) -> list[str]:
    """The texts that are kept, in order: both splits, as the files have them."""
    (folder / "in").mkdir(parents=True)
    for number, texts in enumerate(files):
        (folder / "in" / f"{number:02d}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    source = Source(url=(folder / "in").as_uri(), include=("*",), format="jsonl", max_bad_fraction=1.0)
    write_documents(source, folder / "out", max_part_bytes)
    return [text for split in ("train", "held_out") for text in split_texts(folder / "out", split)]


@settings(max_examples=25, deadline=None)
@given(
    files=st.lists(st.lists(st.integers(0, 60), max_size=40), min_size=1, max_size=4),
    buckets=st.sampled_from([1, 3, 256]),
    max_part_bytes=st.sampled_from([1, 200, 1 << 20]),
)
def test_it_keeps_what_a_set_would(tmp_path_factory: pytest.TempPathFactory, files: list[list[int]], buckets: int, max_part_bytes: int):
    always = list(range(100, 160))  # so that neither split is empty
    texts = [[f"Document {number}." for number in numbers] for numbers in [*files, always]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.tasks.data.builds.num_buckets", lambda _: buckets)
        found = write(tmp_path_factory.mktemp("texts"), texts, max_part_bytes)
    expected = list(dict.fromkeys(text for file in texts for text in file))
    assert found == sorted(expected, key=lambda text: split_of(digest_of_bytes(text.encode())) == "held_out")


def test_the_split_is_the_same_however_it_is_computed():
    digests = [digest_of_bytes(str(number).encode()) for number in range(500)]
    words = np.array([int(digest[:16], 16) for digest in digests], np.uint64)
    assert is_held_out(words).tolist() == [split_of(digest) == "held_out" for digest in digests]


@pytest.mark.parametrize(("documents", "expected"), [(0, 1), (1 << 17, 1), ((1 << 17) + 1, 2), (1 << 40, 256)])
def test_buckets_grow_with_the_documents(documents: int, expected: int):
    assert num_buckets(documents) == expected


def test_no_parts_have_no_copies(tmp_path: Path):
    assert find_copies(tmp_path, [], 0) == (0, 0)
    assert join_buckets(tmp_path, 1, 0) == ((), digest_of_bytes(b""))
    assert (tmp_path / deduplicate.COPIES_NAME).read_bytes() == b""
