from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.identity import write_sealed
from phasewise.trainer.config import Execution, LossEvaluation, ModelConfig, RunConfig
from phasewise.trainer.data.loader import Batch
from phasewise.trainer.data.manifest import read_manifest, write_manifest
from phasewise.trainer.loop import build_evaluate, read_held_out
from phasewise.trainer.metrics import Row, read_metrics
from phasewise.trainer.model.params import Params, init_params
from phasewise.trainer.run import execute
from tests.trainer.conftest import TABLE, MakeRun, metric_of
from tests.trainer.model.families import logits
from tests.trainer.token_caches import write_token_cache

ROWS, SHORT = 5, 20


def as_held_out(folder: Path) -> Path:
    write_manifest(folder, read_manifest(folder).but(split="held_out"))
    return folder


@pytest.fixture(scope="module")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    home = tmp_path_factory.mktemp("held-out")
    rng = np.random.default_rng(0)

    def documents(lengths: list[int]) -> list[np.ndarray]:
        return [np.array([0, *rng.integers(2, 256, length - 2), 1], np.uint16) for length in lengths]

    written = {"books": [documents([20, 50]), documents([30, 80])], "poems": [documents([SHORT])]}
    return {name: str(as_held_out(write_token_cache(home / name, shards))) for name, shards in written.items()}


forward = jax.jit(logits, static_argnums=2)


def settings(held_out: Mapping[str, str], **changes: Any) -> LossEvaluation:
    return LossEvaluation.model_validate({"every_steps": 4, "sequences": ROWS, "caches": dict(held_out), **changes})


def mean_loss(params: Params, tokens: np.ndarray, model: ModelConfig) -> float:
    """Minus the logarithm of the probability of each next token, in float64, one row after the other."""
    losses = list[float]()
    for row in tokens:
        found = forward(params, jnp.asarray(row[None]), model, segment_ids=jnp.asarray(Batch(row[None], 0).segment_ids))
        scores = np.asarray(found, np.float64)[0, :-1]
        scores -= scores.max(axis=-1, keepdims=True)
        log_probabilities = scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))
        losses += [-float(log_probabilities[place, token]) for place, token in enumerate(row[1:])]
    return float(np.mean(losses))


def test_the_loss_is_that_of_the_first_rows(held_out: dict[str, str], model: ModelConfig):
    params = init_params(1, model)
    other = init_params(2, model)
    rows = {name: batch.tokens for name, batch in read_held_out(settings(held_out, sequences=3), model).items()}
    assert {name: tokens.shape for name, tokens in rows.items()} == {"books": (3, 32), "poems": (1, SHORT)}
    found = build_evaluate(settings(held_out, sequences=3), model, Execution())(params, other)
    for name, weights in (("eval_loss", params), ("ema_eval_loss", other)):
        expected = {component: mean_loss(weights, tokens, model) for component, tokens in rows.items()}
        assert {component: found[f"{name}/{component}"] for component in rows} == pytest.approx(expected, rel=1e-5)
        assert found[name] == pytest.approx(sum(expected.values()) / 2, rel=1e-5)
    assert found["ema_gap"] == found["eval_loss"] - found["ema_eval_loss"]


def test_text_that_is_trained_on_or_without_a_token_to_predict_is_refused(caches: Mapping[str, Path], tmp_path: Path, model: ModelConfig):
    tiny = as_held_out(write_token_cache(tmp_path / "tiny", [[np.zeros(1, np.uint16)]]))
    for name, folder, message in (
        ("books", caches["books"], "must be a held-out cache of books, found the split 'train'"),
        ("tiny", tiny, "must have at least 2 tokens to predict one, found 1"),
    ):
        with pytest.raises(DataError, match=message):
            read_held_out(settings({name: str(folder)}), model)


def train(run: RunConfig) -> tuple[str, list[Row]]:
    write_sealed(Path(run.output) / "run.json", run.model_dump(mode="json"))
    return execute(run)["params_digest"], read_metrics(Path(run.output) / "metrics.jsonl")


EVERYTHING = {
    "stability": {
        "max_grad_norm": [[0, 1.0]], "z_loss": [[0, 1e-4]], "ema_decay": [[0, 0.9]], "max_update_rms": [[0, 2.0]],
        "max_update_norm": [[0, {"window": 4, "min_samples": 2, "sigmas": 2.0}]],
        "skip_step": [[0, {"window": 4, "min_samples": 2, "sigmas": 6.0}]],
    },
    "optimizer": {"kind": "adamc", "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1, "peak_learning_rate": 3e-3},
}  # fmt: skip


def test_a_watched_run_ends_with_the_same_weights_and_writes_every_name(
    make_run: MakeRun, held_out: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("phasewise.trainer.recorder.peak_flops", lambda kind, dtype: 1e12)
    plain, without = train(make_run("unwatched", stop_step=10, **EVERYTHING))
    changes = {"evaluation": settings(held_out).model_dump(), "instrumentation": {"layer_norms_every": 3, "tensorboard": False}}
    watched, rows = train(make_run("watched", stop_step=10, **changes, **EVERYTHING))
    assert watched == plain
    assert [row["loss"] for row in rows] == [row["loss"] for row in without]
    assert [row["step"] for row in rows if "eval_loss" in row] == [4, 8, 10]
    assert [row["step"] for row in rows if "grad_norm/query/1" in row] == [3, 6, 9]
    entries = {name: metric_of(name) for row in rows for name in row}
    assert [name for name, entry in entries.items() if entry is None] == []
    missing = [metric for metric in TABLE if metric not in entries.values() and not metric.name.startswith("own_text")]
    assert [metric.name for metric in missing if "experts" not in metric.when] == ["batch_het", "max_skip_update_norm", "counted_tokens"]
    assert all(value is not None for row in rows for value in row.values())
