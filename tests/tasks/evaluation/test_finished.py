import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tasks.evaluation.benchmark_folder import read_benchmarks, write_benchmarks
from tasks.evaluation.finished import finished_evaluation
from tasks.evaluation.held_out import HeldOutDocument
from trainer.config import RunConfig
from trainer.errors import DataError
from trainer.storage import write_json


@pytest.fixture
def run(tmp_path: Path) -> RunConfig:
    """Of a run nothing but its folder is asked for."""
    return cast(RunConfig, SimpleNamespace(output=str(tmp_path / "run")))


def write_evaluation(run: RunConfig, **fields: Any) -> dict[str, Any]:
    write_json(Path(run.output) / "evaluation.json", fields)
    return fields


def test_an_evaluation_holds_for_its_weights_and_its_benchmarks(
    run: RunConfig, benchmarks: Path, tmp_path: Path, held_out_texts: Mapping[str, Sequence[HeldOutDocument]]
) -> None:
    assert finished_evaluation(run, "weights", benchmarks) is None
    written = write_evaluation(run, params_digest="weights", benchmarks_digest=read_benchmarks(benchmarks).digest)
    assert finished_evaluation(run, "weights", benchmarks) == written
    assert finished_evaluation(run, "others", benchmarks) is None
    write_benchmarks(tmp_path / "others", {"code": held_out_texts["code"]})
    assert finished_evaluation(run, "weights", tmp_path / "others") is None


def test_an_evaluation_from_before_does_not_hold(run: RunConfig, benchmarks: Path) -> None:
    """It does not say by which benchmarks, and has no answers."""
    write_evaluation(run, params_digest="weights")
    assert finished_evaluation(run, "weights", benchmarks) is None


def test_damaged_benchmarks_are_refused(run: RunConfig, benchmarks: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(benchmarks, tmp_path / "copied"))
    write_evaluation(run, params_digest="weights", benchmarks_digest=read_benchmarks(copied).digest)
    (copied / "next_word.jsonl").write_text("")
    with pytest.raises(DataError, match=r"next_word\.jsonl"):
        finished_evaluation(run, "weights", copied)
