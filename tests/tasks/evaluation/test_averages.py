"""The mean of the last checkpoints beside the last weights: a damaged earlier checkpoint costs the mean, and nothing else."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from phasewise.tasks.evaluation import checkpoint
from phasewise.trainer.base.errors import CheckpointError


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many checkpoints each mean was asked of; the measuring itself is another test's."""
    asked: list[int] = []

    def mean(_folder: Path, _run: Any, count: int) -> tuple[dict[str, Any], tuple[int, ...]]:
        asked.append(count)
        return {}, tuple(range(count))

    monkeypatch.setattr(checkpoint, "average_of_last", mean)
    monkeypatch.setattr(checkpoint, "bits_per_byte", lambda *_: SimpleNamespace(macro=2.5))
    return asked


def averages(monkeypatch: pytest.MonkeyPatch, kept: list[int]) -> dict[str, Any]:
    monkeypatch.setattr(checkpoint, "kept_steps", lambda *_: kept)
    run: Any = SimpleNamespace(keeps_average=False, phase="kestrel", model=None)
    return checkpoint._averages(run, Path("checkpoints/40"), {})  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(("kept", "asked"), [([40], []), ([30, 40], [2]), ([10, 15, 20, 25, 30, 40], [4])])
def test_at_most_four_of_those_that_are_kept(monkeypatch: pytest.MonkeyPatch, measured: list[int], kept: list[int], asked: list[int]):
    found = averages(monkeypatch, kept)
    assert measured == asked
    assert found["mean_macro_bits_per_byte"] == (2.5 if asked else None)
    assert len(found["mean_of_steps"]) == sum(asked)


def test_a_damaged_one_is_said_and_costs_the_mean_alone(
    monkeypatch: pytest.MonkeyPatch, measured: list[int], caplog: pytest.LogCaptureFixture
):
    def damaged(*_: Any) -> Any:
        raise CheckpointError("checkpoints/30 is damaged")

    monkeypatch.setattr(checkpoint, "average_of_last", damaged)
    found = averages(monkeypatch, [30, 40])
    assert (found["mean_macro_bits_per_byte"], found["mean_of_steps"], measured) == (None, [], [])
    assert "checkpoints/30 is damaged" in caplog.text
