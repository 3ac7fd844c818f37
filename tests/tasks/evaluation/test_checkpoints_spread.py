from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import Tokenizer

from experiments.survival.runs import tiny_recipe
from phasewise.flows.plan import build_run
from phasewise.flows.status.summary import curves_of
from phasewise.tasks.evaluation import checkpoint
from phasewise.tasks.evaluation.checkpoint import evaluate_phase, measure_benchmarks, open_model
from phasewise.tasks.evaluation.held_out import HeldOutTokens, read_held_out_tokens
from phasewise.tasks.evaluation.phase_evaluation import EvaluationRequest
from phasewise.tasks.evaluation.scoring import bits_per_byte
from phasewise.tasks.evaluation.settings import Measured
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import CheckpointError
from phasewise.trainer.checkpoints.checkpointer import Checkpoints
from phasewise.trainer.config import ModelConfig, RunConfig
from phasewise.trainer.step import TrainState, abstract_state, params_digest

STEPS = (20, 30, 40)
NAMES = ("word_order", "next_word")


@pytest.fixture
def run(config: ModelConfig, tmp_path: Path) -> RunConfig:
    recipe = tiny_recipe()
    phase = recipe.phases[0]
    home = Home.open(str(tmp_path / "home"))
    values = build_run(recipe, phase, home, dict.fromkeys(phase.components, Path("nowhere"))).model_dump(mode="json")
    kept = {**values["checkpoints"], "every_steps": 10, "keep_all": True}
    return RunConfig.model_validate({**values, "model": config.model_dump(mode="json"), "checkpoints": kept})


def random_state(run: RunConfig, seed: int) -> TrainState:
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype), abstract_state(run, with_ema=False))


def save(run: RunConfig, states: Mapping[int, TrainState]) -> Path:
    folder = Path(run.output) / "checkpoints"
    with Checkpoints(folder, run) as checkpoints:
        for step, state in states.items():
            checkpoints.save(step, state, {})
    return folder


def asked(
    run: RunConfig, last: TrainState, tokenizer: Path, caches: Mapping[str, Path], benchmarks: Path, *, every_steps: int | None = None
) -> EvaluationRequest:
    result = {"checkpoint": str(Path(run.output) / "checkpoints" / str(STEPS[-1])), "params_digest": params_digest(last.params)}
    measured = Measured(benchmarks=NAMES, held_out_tokens=100, every_steps=every_steps)
    return EvaluationRequest(
        run=run, result=result, measured=measured, key="key", tokenizer=str(tokenizer), measured_on={},
        held_out={name: str(path) for name, path in caches.items()}, benchmarks=str(benchmarks), real=None, haystack=(),
    )  # fmt: skip


def test_three_kept_checkpoints_are_scored_and_a_damaged_one_costs_only_their_spread(
    run: RunConfig, config: ModelConfig, tokenizer: Tokenizer, caches: Mapping[str, Path], benchmarks: Path, tmp_path: Path,
    held_out_tokens: Mapping[str, HeldOutTokens], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    ends: list[Sequence[int]] = []
    monkeypatch.setattr(checkpoint, "turn_end_ids", lambda tokenizer, chats: (7,))
    measure = checkpoint.measure_benchmarks
    monkeypatch.setattr(checkpoint, "measure_benchmarks", lambda model, *given: (ends.append(model.ends), measure(model, *given))[1])
    written = tmp_path / "tokenizer.json"
    tokenizer.save(str(written))
    states = {step: random_state(run, step) for step in STEPS}
    folder = save(run, states)
    found = evaluate_phase(asked(run, states[40], written, caches, benchmarks))
    models = [open_model(state.params, config, tokenizer, held_out_tokens) for state in states.values()]
    scores: list[Sequence[Any]] = [measure_benchmarks(model, benchmarks, NAMES, None) for model in models]
    assert ends == [(1, 7)] * len(STEPS), "all checkpoints end what they write alike"
    expected = [[float(of_step[place]["value"]) for of_step in scores] for place in range(len(NAMES))]
    assert [result["checkpoint_values"] for result in found["results"]] == expected
    assert len({*expected[0], *expected[1]}) > 2
    (Path(run.output) / "evaluation.json").unlink()
    damaged = next(path for path in sorted((folder / "20").rglob("*")) if path.is_file() and path.stat().st_size > 1000)
    damaged.write_bytes(damaged.read_bytes()[:-100])
    again = evaluate_phase(asked(run, states[40], written, caches, benchmarks, every_steps=10))
    assert [result.get("checkpoint_values") for result in again["results"]] == [None, None]
    assert [result["value"] for result in again["results"]] == [result["value"] for result in found["results"]]
    assert "the spread of its last checkpoints is not measured" in caplog.text
    assert "curve" not in found
    broken, whole = again["curve"]  # the second was measured once, for the curve
    assert (broken["step"], "results" in broken, str(folder / "20") in broken["why_not"]) == (20, False, True)
    assert (whole["step"], [one["value"] for one in whole["results"]]) == (30, [of_step[1] for of_step in expected])
    text = read_held_out_tokens(caches, tokenizer, max_tokens=100)
    assert whole["macro_bits_per_byte"] == pytest.approx(bits_per_byte(states[30].params, config, text).macro)
    curves = curves_of(again, 40)
    assert curves["macro bits per byte"] == ((30, whole["macro_bits_per_byte"]), (40, again["macro_bits_per_byte"]))
    assert [len(points) for points in curves.values()] == [2, 2, 2]
    assert curves_of(found, 40) == {}


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
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


def test_a_damaged_one_costs_the_mean_alone(monkeypatch: pytest.MonkeyPatch, measured: list[int], caplog: pytest.LogCaptureFixture):
    def damaged(*_: Any) -> Any:
        raise CheckpointError("checkpoints/30 is damaged")

    monkeypatch.setattr(checkpoint, "average_of_last", damaged)
    found = averages(monkeypatch, [30, 40])
    assert (found["mean_macro_bits_per_byte"], found["mean_of_steps"], measured) == (None, [], [])
    assert "checkpoints/30 is damaged" in caplog.text
