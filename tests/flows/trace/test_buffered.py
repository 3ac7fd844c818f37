"""`phasewise trace` of a phase whose rows are filled from document buffers, against the trainer's loader, both ways."""

from collections import Counter
from typing import Any

import numpy as np

from phasewise.trainer.data.loader import Loader
from tests.flows.trace.world import Piece, World, run_of

STEPS = range(53, 61)


def key(row: dict[str, Any]) -> Piece:
    names = ("phase", "step", "row", "component", "document", "file", "offset", "tokens", "at", "epoch", "cache_row", "buffer_row")
    return tuple(row[name] for name in names)


def test_a_row_names_every_document_that_it_has_tokens_of_and_each_document_finds_its_rows(world: World):
    found = [row for step in STEPS for row in world.ask("/buffered", step=step)["rows"]]
    documents = {name: world.documents(name) for name in ("medu_science_qa", "dolmino_stackexchange", "flan")}
    rows: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in found:
        rows.setdefault((row["step"], row["row"]), []).append(row)
    loader = Loader(run_of(world.recipe, world.home, "buffered"))
    for step in STEPS:
        for number, expected in enumerate(loader.batch(step - 1).tokens):
            pieces = rows.pop((step, number))
            assert [piece["at"] for piece in pieces] == np.cumsum([0, *(piece["tokens"] for piece in pieces)])[:-1].tolist()
            tokens = [documents[p["component"]][p["document"]][p["offset"] : p["offset"] + p["tokens"]] for p in pieces]
            np.testing.assert_array_equal(np.concatenate(tokens), expected)
    assert not rows
    assert any(row["offset"] and row["at"] for row in found), "a document goes on in the middle of a row"
    assert {row["cache_row"] for row in found} == {None}
    files = ("one/text.jsonl", "two/text.jsonl")
    backward = [row for name in files for row in world.ask("/buffered", source_file=name)["rows"] if row["phase"] == "buffered"]
    assert Counter(map(key, backward)) == Counter(map(key, found))


def test_what_people_see_says_that_a_buffer_filled_the_row(world: World):
    code, out, _ = world.invoke("/buffered", "--step", "53")
    assert code == 0
    assert "from its document buffer, pass 1" in out
    assert "of its cache" not in out
    row = world.ask("/buffered", step=53)["rows"][0]
    assert world.documents(row["component"])[row["document"]].size == row["document_tokens"]
    assert row["text"]
