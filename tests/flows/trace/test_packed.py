"""`phasewise trace` of a phase whose rows are packed: against the loader, both ways, and what is cut."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from phasewise.flows.cli.preflight import utilisation_of
from phasewise.flows.recipes import at_scale
from phasewise.flows.recipes.recipe import Recipe
from phasewise.trainer.data.cache import TokenCache
from phasewise.trainer.data.loader import Loader
from phasewise.trainer.data.packing import ComponentRows, RowRule
from tests.flows.trace.world import Piece, World, key, run_of

STEPS = range(53, 61)


@pytest.fixture(scope="module")
def packed(world: World, tmp_path_factory: pytest.TempPathFactory) -> World:
    """The third phase in rows of whole documents; the caches are those of the world."""
    raw = json.loads(world.recipe.read_text())
    third = raw["phases"][2]
    third["packing"] = "greedy"
    third["start"]["declares"].append("packing")
    path = tmp_path_factory.mktemp("packed") / world.recipe.name
    path.write_text(json.dumps(raw))
    return World(path, world.home)


@pytest.fixture(scope="module")
def forward(packed: World) -> Counter[Piece]:
    return Counter(key(row) for step in STEPS for row in packed.ask("/third", step=step)["rows"])


def test_the_tokens_of_every_row_are_those_that_the_loader_gives(packed: World, forward: Counter[Piece]):
    """Each piece is where it says, and nothing else is but padding."""
    loader = Loader(run_of(packed.recipe, packed.home, "third"))
    documents = {name: packed.documents(name) for name in ("medu_science_qa", "flan", "dolmino_stackexchange")}
    batches = {step: loader.batch(step - 1) for step in STEPS}
    filled = {step: np.zeros(batch.tokens.shape, bool) for step, batch in batches.items()}
    for _, step, row, component, document, _, offset, tokens, at, *_ in forward:
        expected = documents[component][document][offset : offset + tokens]
        assert offset == 0
        np.testing.assert_array_equal(batches[step].tokens[row, at : at + tokens], expected)
        filled[step][row, at : at + tokens] = True
    for step, batch in batches.items():
        np.testing.assert_array_equal(filled[step], batch.segment_ids != 0)
    assert not all(part.all() for part in filled.values())


def test_backward_finds_every_row_and_nothing_else(packed: World, forward: Counter[Piece]):
    """Of all documents what the third phase trains of them; the first tokens alone of one that is cut."""
    backward: Counter[Piece] = Counter()
    cut = 0
    for component in {piece[3] for piece in forward}:
        for one, tokens in packed.documents(component).items():
            answer = packed.ask("/third", document=one)
            backward.update(key(row) for row in answer["rows"] if row["phase"] == "third")
            (found,) = [found for found in answer["documents"] if found["component"] == component]
            cut += bool(found["rows"]) and found["tokens_trained"] < len(tokens)
    assert backward == forward
    assert cut, "a document is longer than a row"


def test_of_each_row_it_says_how_many_tokens_are_predicted(packed: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As the loader has it, of all tokens and of answers alone; and that a question is never predicted."""
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
    said = "Of third the answers alone are predicted: all else that is listed is read, and not predicted."
    assert said in answers.ask("/third", step=53, row=0)["remarks"]
    assert said not in packed.ask("/third", step=53, row=0)["remarks"]
    monkeypatch.setattr(TokenCache, "spans", lambda cache: np.empty((0, 2), np.int64))
    told = [one for name in ("one", "two") for one in answers.ask("/third", source_file=f"{name}/text.jsonl")["documents"]]
    silent = [one for one in told if one["told"].endswith("read, and never predicted")]
    assert silent == [one for one in told if one["rows"] and not one["predicted"]]
    assert silent


def _as_the_loader(asked: World) -> int:
    """How many tokens are predicted in all steps, once they are those of each batch."""
    loader = Loader(run_of(asked.recipe, asked.home, "third"))
    total = 0
    for step in STEPS:
        targets = loader.batch(step - 1).targets
        assert targets is not None
        for row in asked.ask("/third", step=step)["rows"]:
            assert row["predicted"] == targets[row["row"], row["at"] : row["at"] + row["tokens"]].sum()
            total += row["predicted"]
    return total


def test_the_utilisation_is_that_of_what_is_drawn(packed: World, forward: Counter[Piece]):
    """The mean over the rows of each component, as often as the phase draws from it."""
    recipe = at_scale(Recipe.model_validate_json(Path(packed.recipe).read_text()), "proxy", str(packed.recipe))
    found = utilisation_of(recipe, recipe.phases, packed.home)
    assert list(found) == ["third"]
    run = run_of(packed.recipe, packed.home, "third")
    drawn = Counter(piece[3] for piece in {piece[:4] for piece in forward})
    laid = {name: ComponentRows(TokenCache.open(run.caches[name]), RowRule("greedy"), run.model.seq_len) for name in drawn}
    used = {name: laid[name].used(np.arange(laid[name].num_rows)).mean() for name in drawn}
    targets = {name: laid[name].targets(np.arange(laid[name].num_rows)).sum(axis=1).mean() for name in drawn}
    for what, of_rows in (("tokens", used), ("counted", targets)):
        expected = sum(drawn[name] * of_rows[name] for name in drawn) / (run.model.seq_len * drawn.total())
        assert found["third"][what] == pytest.approx(expected)
    assert found["third"]["counted"] < found["third"]["tokens"] < 1
