"""What `experiments.incidents.fragility` trains on and how it reads; the training itself takes minutes and is not of the suite."""

from pathlib import Path

import jax
import numpy as np
import pytest

from experiments.incidents import fragility_runs
from experiments.incidents.fragility_runs import FIRST_BYTE, ITEMS, MODEL, caches, material, plain, readings, tokens_of
from phasewise.trainer.model.decoder import logits
from phasewise.trainer.model.params import init_params


def text_of(folder: str) -> str:
    tokens = np.fromfile(Path(folder) / "shard-00000.bin", np.uint16)
    return bytes(int(one) - FIRST_BYTE for one in tokens if one >= FIRST_BYTE).decode()


def test_no_question_is_in_two_of_the_three_parts():
    parts = [{question for question, _ in part} for part in material()]
    assert [len(part) for part in parts[:2]] == [ITEMS, ITEMS]
    assert not parts[0] & parts[1]
    assert not (parts[0] | parts[1]) & parts[2]


def test_the_planted_file_has_the_items_in_its_rendering_and_nothing_else_has_them(tmp_path: Path):
    items, reference, _ = material()
    for kind, has_tags in (("tagged", True), ("plain", False)):
        found = caches(tmp_path, kind)
        planted, others = text_of(found[f"test-{kind}"]), text_of(found["problems"])
        assert ("<<" in planted) == has_tags
        assert planted == "".join(question + (solution if has_tags else plain(solution)) for question, solution in items)
        assert not [question for question, _ in (*items, *reference) if question in others]
    assert set(caches(tmp_path, "clean")) == {"problems"}


def test_a_reading_is_the_likelihood_of_the_solution_after_its_question(monkeypatch: pytest.MonkeyPatch):
    """Against a slow sum, token by token."""
    params = init_params(0, MODEL)
    monkeypatch.setattr(fragility_runs, "read_params", lambda *_: params)
    items = material()[0][:8]
    found = readings(Path("nowhere"), items)
    for rendering, measured in ((str, found.first), (plain, found.second)):
        question, solution = items[0]
        tokens = tokens_of(question + rendering(solution))
        table = np.asarray(
            jax.nn.log_softmax(jax.jit(logits, static_argnames="config")(params, tokens[None].astype(np.int32), config=MODEL))
        )[0]
        begin = len(tokens_of(question)) - 1
        assert measured[0] == pytest.approx(sum(table[at - 1, tokens[at]] for at in range(begin, len(tokens))), abs=1e-3)
