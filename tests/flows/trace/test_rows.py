import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phasewise.flows.cli.preflight import utilisation_of
from phasewise.flows.recipes import at_scale
from phasewise.flows.recipes.recipe import Recipe
from phasewise.trainer.data.cache import TokenCache
from phasewise.trainer.data.loader import Loader
from phasewise.trainer.data.packing import ComponentRows, RowRule
from tests.flows.trace.world import PHASES, Piece, World, key, run_of


def test_the_tokens_of_every_row_are_those_that_the_loader_gives(world: World, forward: Counter[Piece]):
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


def test_backward_finds_every_row_and_nothing_else_and_one_row_is_that_row_of_the_step(world: World, forward: Counter[Piece]):
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


# ── rows that are filled from document buffers ──

STEPS = range(53, 61)


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


# ── packed rows ──


@pytest.fixture(scope="module")
def packed(world: World, tmp_path_factory: pytest.TempPathFactory) -> World:
    raw = json.loads(world.recipe.read_text())
    third = raw["phases"][2]
    third["packing"] = "greedy"
    third["start"]["declares"].append("packing")
    path = tmp_path_factory.mktemp("packed") / world.recipe.name
    path.write_text(json.dumps(raw))
    return World(path, world.home)


@pytest.fixture(scope="module")
def forward_packed(packed: World) -> Counter[Piece]:
    return Counter(key(row) for step in STEPS for row in packed.ask("/third", step=step)["rows"])


def test_the_tokens_and_utilisation_of_packed_rows_are_those_that_the_loader_gives(packed: World, forward_packed: Counter[Piece]):
    loader = Loader(run_of(packed.recipe, packed.home, "third"))
    documents = {name: packed.documents(name) for name in ("medu_science_qa", "flan", "dolmino_stackexchange")}
    batches = {step: loader.batch(step - 1) for step in STEPS}
    filled = {step: np.zeros(batch.tokens.shape, bool) for step, batch in batches.items()}
    for _, step, row, component, document, _, offset, tokens, at, *_ in forward_packed:
        expected = documents[component][document][offset : offset + tokens]
        assert offset == 0
        np.testing.assert_array_equal(batches[step].tokens[row, at : at + tokens], expected)
        filled[step][row, at : at + tokens] = True
    for step, batch in batches.items():
        np.testing.assert_array_equal(filled[step], batch.segment_ids != 0)
    assert not all(part.all() for part in filled.values())
    recipe = at_scale(Recipe.model_validate_json(Path(packed.recipe).read_text()), "proxy", str(packed.recipe))
    found = utilisation_of(recipe, recipe.phases, packed.home)
    assert list(found) == ["third"]
    run = run_of(packed.recipe, packed.home, "third")
    drawn = Counter(piece[3] for piece in {piece[:4] for piece in forward_packed})
    laid = {name: ComponentRows(TokenCache.open(run.caches[name]), RowRule("greedy"), run.model.seq_len) for name in drawn}
    used = {name: laid[name].used(np.arange(laid[name].num_rows)).mean() for name in drawn}
    targets = {name: laid[name].targets(np.arange(laid[name].num_rows)).sum(axis=1).mean() for name in drawn}
    for what, of_rows in (("tokens", used), ("counted", targets)):
        expected = sum(drawn[name] * of_rows[name] for name in drawn) / (run.model.seq_len * drawn.total())
        assert found["third"][what] == pytest.approx(expected)
    assert found["third"]["counted"] < found["third"]["tokens"] < 1


def test_of_each_row_it_says_how_many_tokens_are_predicted(packed: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    raw = json.loads(packed.recipe.read_text())
    raw["phases"][2] |= {"loss_on": "answers"}
    raw["phases"][2]["start"]["declares"].append("loss_on")
    path = tmp_path / packed.recipe.name
    path.write_text(json.dumps(raw))
    monkeypatch.setattr(TokenCache, "spans", lambda cache: np.arange(7, cache.manifest.tokens - 9, 31)[:, None] + np.array([0, 9]))
    monkeypatch.setattr("phasewise.flows.resolved.check_feasible", lambda *_: None)  # plain text has no answers: they are marked above
    answers = World(path, packed.home)
    counts = {name: _as_the_loader(asked) for name, asked in (("all", packed), ("answers", answers))}
    assert 0 < counts["answers"] < counts["all"] / 2
    said = "third only predicts the answers. The other listed text is read, and not predicted."
    assert said in answers.ask("/third", step=53, row=0)["remarks"]
    assert said not in packed.ask("/third", step=53, row=0)["remarks"]
    monkeypatch.setattr(TokenCache, "spans", lambda cache: np.empty((0, 2), np.int64))
    told = [one for name in ("one", "two") for one in answers.ask("/third", source_file=f"{name}/text.jsonl")["documents"]]
    silent = [one for one in told if one["told"].endswith("read, and never predicted")]
    assert silent == [one for one in told if one["rows"] and not one["predicted"]]
    assert silent


def _as_the_loader(asked: World) -> int:
    loader = Loader(run_of(asked.recipe, asked.home, "third"))
    total = 0
    for step in STEPS:
        targets = loader.batch(step - 1).targets
        assert targets is not None
        for row in asked.ask("/third", step=step)["rows"]:
            assert row["predicted"] == targets[row["row"], row["at"] : row["at"] + row["tokens"]].sum()
            total += row["predicted"]
    return total
