"""The same answers as lm-eval's own model for the exported folder."""

from pathlib import Path
from typing import Any

import pytest

from phasewise.tasks.evaluation.model_loading import model_of_folder
from tests.shared_data import shared_folder
from tests.tasks.evaluation.hflm import GOLDEN, MODEL, Requests, ask, ask_hflm, compare, golden, local_requests, made_requests, write_model
from tests.trainer.model.families import AFMOE

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen": {"qk_norm": True, "tied_head": True, "sliding_window": 12},
    "afmoe": AFMOE | {"num_layers": 4},
}


def test_the_golden_is_of_these_requests_and_small() -> None:
    assert golden()[0] == {kind: [tuple(request) for request in asked] for kind, asked in made_requests().items()}
    assert sum(path.stat().st_size for path in GOLDEN.rglob("*") if path.is_file()) < 150_000


def test_answers_are_those_that_were_kept() -> None:
    requests, expected = golden()
    difference = compare(ask(model_of_folder(GOLDEN / "model"), requests), expected)
    assert difference.log_likelihood < 1e-3
    assert difference.others == 0
    assert len(set(expected["generate_until"])) > 8  # else equality would say little


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_theirs(tmp_path: Path, family: str) -> None:
    _need_theirs()
    assert_same_answers(write_model(tmp_path / "model", MODEL.but(**FAMILIES[family])), made_requests())


def test_answers_to_real_items_are_theirs(tmp_path: Path) -> None:
    """ARC-Easy, HellaSwag, LAMBADA and GSM8K."""
    _need_theirs()
    assert_same_answers(write_model(tmp_path / "model"), local_requests(shared_folder("benchmarks"), 5))


def assert_same_answers(folder: Path, requests: Requests) -> None:
    difference = compare(ask(model_of_folder(folder), requests), ask_hflm(folder, requests))
    assert difference.log_likelihood < 1e-3
    assert difference.others == 0


def _need_theirs() -> None:
    for needed in ("torch", "transformers", "accelerate"):
        pytest.importorskip(needed, reason=f"HFLM needs {needed}: pip install -e '.[parity]'")
