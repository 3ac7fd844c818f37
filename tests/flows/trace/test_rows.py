"""`phasewise trace` against the trainer's loader, both ways, over every row."""

from collections import Counter

import numpy as np

from phasewise.trainer.data.loader import Loader
from tests.flows.trace.world import PHASES, Piece, World, key, run_of


def test_the_tokens_of_every_row_are_those_that_the_loader_gives(world: World, forward: Counter[Piece]):
    """Step s is made by the loader's batch s - 1. The tokens are put together from whole documents, by offset and count."""
    documents = {name: world.documents(name) for name in ("medu_science_qa", "dolmino_stackexchange", "flan")}
    rows: dict[tuple[str, int, int], list[np.ndarray]] = {}
    for phase, step, row, component, document, _, offset, tokens, *_ in forward:
        rows.setdefault((phase, step, row), []).append(documents[component][document][offset : offset + tokens])
    for name, (start, stop) in PHASES.items():
        loader = Loader(run_of(world.recipe, world.home, name))
        for step in range(start + 1, stop + 1):
            batch = loader.batch(step - 1).tokens
            for row, expected in enumerate(batch):
                np.testing.assert_array_equal(np.concatenate(rows.pop((name, step, row))), expected)
    assert not rows


def test_three_phases_have_every_hard_case(forward: Counter[Piece]):
    assert {piece[9] for piece in forward if piece[3] == "flan"} >= {0, 1}  # an epoch ends
    sizes = Counter(piece[1] for piece in {piece[:3] for piece in forward})
    assert [sizes[step] for step in (40, 41, 52, 53, 56, 57)] == [2, 6, 6, 3, 3, 5]  # the batch changes at hand-offs and within a phase
    assert {piece[3] for piece in forward if piece[1] > 49 and piece[0] == "ocelot"} == {"medu_science_qa", "flan"}  # the mixture switches
    before, after = (
        {piece[10] for piece in forward if piece[3] == "flan" and piece[0] == name and piece[9] == 0} for name in ("kestrel", "third")
    )
    assert before & after  # an order that begins again draws again what was drawn


def test_backward_finds_every_row_and_nothing_else(world: World, forward: Counter[Piece]):
    documents = {
        name: [*world.documents(name), *world.documents(name, "held_out")] for name in ("medu_science_qa", "dolmino_stackexchange", "flan")
    }
    backward: Counter[Piece] = Counter()
    for component, ids in documents.items():
        for one in ids:
            answer = world.ask(document=one)
            assert {found["component"] for found in answer["documents"]} == {component}
            backward.update(key(row) for row in answer["rows"])
    assert backward == forward


def test_files_find_the_same_rows_as_documents(world: World, forward: Counter[Piece]):
    rows = [key(row) for row in world.ask(source_file="one/text.jsonl")["rows"]] + [
        key(row) for row in world.ask(source_file="two/text.jsonl")["rows"]
    ]
    assert Counter(rows) == forward
    (flan,) = [name for name in (world.recipe.parent / "text").iterdir() if name.name == "flan"]
    of_path = world.ask(source_file=str(flan / "one/text.jsonl"))
    assert {row["component"] for row in of_path["rows"]} == {"flan"}
    assert [key(row) for row in of_path["rows"]] == [row for row in forward if row[3] == "flan"]


def test_one_row_is_that_row_of_the_step(world: World):
    whole = world.ask("/ocelot", step=50)["rows"]
    assert [row for number in range(6) for row in world.ask("/ocelot", step=50, row=number)["rows"]] == whole


def test_a_branch_is_asked_with_its_lineage_up_to_where_it_leaves_it(world: World, forward: Counter[Piece]):
    ids = list(world.documents("flan"))
    rows = [row for one in ids for row in world.ask("/side", document=one)["rows"]]
    assert {row["phase"] for row in rows} == {"kestrel", "ocelot", "side"}
    assert {row["step"] for row in rows if row["phase"] == "ocelot"} <= set(range(41, 46))
    expected = Counter(
        piece for piece in forward if piece[3] == "flan" and (piece[0] == "kestrel" or (piece[0] == "ocelot" and piece[1] <= 45))
    )
    assert Counter(key(row) for row in rows if row["phase"] != "side") == expected
