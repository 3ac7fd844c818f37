"""The scores of a phase's last checkpoints, which a gate takes as the noise of the training."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import Tokenizer

from experiments.survival.runs import tiny_recipe
from phasewise.flows.plan import build_run
from phasewise.tasks.evaluation import checkpoint
from phasewise.tasks.evaluation.checkpoint import evaluate_phase, measure_benchmarks, open_model
from phasewise.tasks.evaluation.held_out import HeldOutTokens
from phasewise.tasks.evaluation.phase_evaluation import EvaluationRequest
from phasewise.tasks.evaluation.settings import Measured
from phasewise.tasks.home import Home
from phasewise.trainer.checkpoints.checkpointer import Checkpoints
from phasewise.trainer.config import ModelConfig, RunConfig
from phasewise.trainer.state import TrainState, abstract_state, params_digest

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


def asked(run: RunConfig, last: TrainState, tokenizer: Path, caches: Mapping[str, Path], benchmarks: Path) -> EvaluationRequest:
    result = {"checkpoint": str(Path(run.output) / "checkpoints" / str(STEPS[-1])), "params_digest": params_digest(last.params)}
    measured = Measured(benchmarks=NAMES, held_out_tokens=100)
    return EvaluationRequest(
        run=run, result=result, measured=measured, key="key", tokenizer=str(tokenizer), measured_on={},
        held_out={name: str(path) for name, path in caches.items()}, benchmarks=str(benchmarks), real=None, haystack=(),
    )  # fmt: skip


def _keeping_ends(measure: Callable[..., Any], ends: list[Sequence[int]]) -> Callable[..., Any]:
    def kept(model: Any, *given: Any) -> Any:
        ends.append(model.ends)
        return measure(model, *given)

    return kept


def test_three_kept_checkpoints_are_scored_and_a_damaged_one_costs_only_their_spread(
    run: RunConfig, config: ModelConfig, tokenizer: Tokenizer, caches: Mapping[str, Path], benchmarks: Path, tmp_path: Path,
    held_out_tokens: Mapping[str, HeldOutTokens], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    ends: list[Sequence[int]] = []
    monkeypatch.setattr(checkpoint, "turn_end_ids", lambda tokenizer, chats: (7,))
    monkeypatch.setattr(checkpoint, "measure_benchmarks", _keeping_ends(checkpoint.measure_benchmarks, ends))
    written = tmp_path / "tokenizer.json"
    tokenizer.save(str(written))
    states = {step: random_state(run, step) for step in STEPS}
    folder = save(run, states)
    found = evaluate_phase(asked(run, states[40], written, caches, benchmarks))
    scores: list[Sequence[Any]] = [
        measure_benchmarks(open_model(state.params, config, tokenizer, held_out_tokens), benchmarks, NAMES, None)
        for state in states.values()
    ]
    assert ends == [(1, 7)] * len(STEPS), "all checkpoints end what they write alike"
    expected = [[float(of_step[place]["value"]) for of_step in scores] for place in range(len(NAMES))]
    assert [result["checkpoint_values"] for result in found["results"]] == expected
    assert len({*expected[0], *expected[1]}) > 2
    (Path(run.output) / "evaluation.json").unlink()
    damaged = next(path for path in sorted((folder / "20").rglob("*")) if path.is_file() and path.stat().st_size > 1000)
    damaged.write_bytes(damaged.read_bytes()[:-100])
    again = evaluate_phase(asked(run, states[40], written, caches, benchmarks))
    assert [result.get("checkpoint_values") for result in again["results"]] == [None, None]
    assert [result["value"] for result in again["results"]] == [result["value"] for result in found["results"]]
    assert "the spread of its last checkpoints is not measured" in caplog.text
