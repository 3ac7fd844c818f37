import shutil
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phasewise.trainer.base.errors import DataError
from phasewise.trainer.config import AdamW, Execution, LossEvaluation, LossOn, ModelConfig, PackingKind
from phasewise.trainer.data.cache import TokenCache, fetch
from phasewise.trainer.data.manifest import read_manifest, write_manifest
from phasewise.trainer.data.packing import ComponentRows, RowRule
from phasewise.trainer.interventions import Scheduled
from phasewise.trainer.loop import build_evaluate, read_held_out, train
from phasewise.trainer.loss import mean_gradients
from phasewise.trainer.metrics import read_metrics
from phasewise.trainer.model.params import Params, stacks
from phasewise.trainer.model.router import BIAS
from phasewise.trainer.optimizer import build_optimizer
from phasewise.trainer.step import TrainState, build_objective, build_train_step
from tests.trainer.conftest import MakeRun
from tests.trainer.model.families import SPARSE
from tests.trainer.model.test_decoder import large_params, reference_logits
from tests.trainer.token_caches import BEGIN, END, write_conversations

ROWS = np.random.default_rng(1).integers(0, 256, (2, 32)).astype(np.int32)
DOCUMENTS = np.repeat([[1, 1, 2, 3], [1, 2, 2, 2]], 8, axis=1).astype(np.int32)
ONE = np.ones_like(DOCUMENTS)


def reference_loss(params: Params, documents: np.ndarray, config: ModelConfig) -> float:
    """Mean cross-entropy of the rows in float64, where these numbers say what sees what. The last token of a row predicts nothing."""
    losses: list[float] = []
    for row, ids in zip(ROWS, documents, strict=True):
        z = reference_logits(params, row, ids, config)[:-1]
        losses += list(np.log(np.exp(z).sum(axis=-1)) - z[np.arange(len(z)), row[1:]])
    return float(np.mean(losses))


def loss_and_gradients(config: ModelConfig, params: Params, documents: np.ndarray | None) -> tuple[float, Params]:
    objective = build_objective(config, Execution())

    def mean(params: Params) -> jax.Array:
        total, sums = objective(params, jnp.asarray(ROWS), None if documents is None else jnp.asarray(documents), 0.0)
        return total / sums.tokens

    loss, gradients = jax.jit(jax.value_and_grad(mean))(params)
    return float(loss), gradients


FAMILIES = pytest.mark.parametrize("changes", [{}, {"sliding_window": 6, "qk_norm": True}], ids=["llama", "sliding window"])


@FAMILIES
def test_loss_and_gradients_within_documents_and_over_the_whole_row_are_those_of_the_reference(model: ModelConfig, changes: dict[str, Any]):
    within = model.but(**changes)
    across, params = within.but(attend_within_documents=False), large_params(within)
    documents, whole = (reference_loss(params, of, within) for of in (DOCUMENTS, ONE))
    assert abs(documents - whole) > 1e-3  # else the test would say nothing
    loss, on = loss_and_gradients(within, params, DOCUMENTS)
    loss_off, off = loss_and_gradients(across, params, DOCUMENTS)
    assert loss == pytest.approx(documents, rel=1e-5)
    assert loss_off == pytest.approx(whole, rel=1e-5)
    plain = loss_and_gradients(within, params, None)[1]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), off, plain)
    assert any(not np.allclose(a, b, rtol=1e-3) for a, b in zip(jax.tree.leaves(on), jax.tree.leaves(off), strict=True))


Rows = tuple[np.ndarray, np.ndarray, np.ndarray]
ADAMW = AdamW(kind="adamw", beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1)
LENGTHS = (9, 14, 5, 32, 11, 7, 40, 3, 20, 6)  # of the conversations, in tokens: rows have 32, so that one is cut


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> TokenCache:
    """Two turns each, where there is room: the answers are tokens 2 to 4 and the last third."""
    rng = np.random.default_rng(2)
    answers: list[tuple[np.ndarray, list[tuple[int, int]]]] = []
    for length in LENGTHS:
        spans = [(2, min(4, length - 1)), (length - length // 3, length - 1)]
        document = np.array([BEGIN, *rng.integers(2, 256, length - 2), END], np.uint16)
        answers.append((document, [(first, stop) for first, stop in spans if first < stop]))
    return TokenCache.open(write_conversations(tmp_path_factory.mktemp("talk") / "talk", [answers[:4], answers[4:]]))


def laid(talk: TokenCache, kind: PackingKind, loss_on: LossOn) -> Rows:
    rows_of = ComponentRows(talk, RowRule(kind, loss_on), 32)
    rows = np.arange(rows_of.num_rows)
    tokens = np.zeros((len(rows), 32), np.int32)
    fetch(rows_of.read(rows, tokens, rows))
    segments = rows_of.segment_ids(rows)
    assert segments is not None
    return tokens, segments, rows_of.targets(rows)


@pytest.fixture(params=["dense", "sparse"])
def family(model: ModelConfig, request: pytest.FixtureRequest) -> ModelConfig:
    return model if request.param == "dense" else model.but(**SPARSE)


def weighed(family: ModelConfig, sequence_loss: float) -> ModelConfig:
    return family.but(experts=family.experts and family.experts.but(sequence_loss=sequence_loss))


@cache
def compiled(config: ModelConfig, part: int | None) -> Any:
    objective = build_objective(config, Execution())
    return jax.jit(lambda params, *rows: mean_gradients(objective, params, rows, z_loss=1e-3, microbatch_sequences=part))


def gradients(config: ModelConfig, params: Params, rows: Rows, part: int | None = None) -> tuple[float, float, Params]:
    sums, found = compiled(config, part)(params, *rows)  # pyright: ignore[reportArgumentType]  # frozen models have a hash
    return float(sums.cross_entropy), float(sums.tokens), found


@pytest.mark.parametrize("loss_on", ["all", "answers"])
def test_packed_equals_unpacked(family: ModelConfig, talk: TokenCache, loss_on: LossOn):
    config = weighed(family, 0.0)
    params = large_params(config)
    packed, alone = laid(talk, "greedy", loss_on), laid(talk, "pad", loss_on)
    assert len(packed[0]) < len(alone[0]) == len(LENGTHS)
    assert packed[2].sum() == alone[2].sum()
    loss, tokens, of_packed = gradients(config, params, packed)
    loss_alone, tokens_alone, of_alone = gradients(config, params, alone)
    assert tokens == tokens_alone == packed[2].sum()
    assert loss == pytest.approx(loss_alone, rel=2e-6)
    scale = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(of_alone))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6 * scale), of_packed, of_alone)


@pytest.mark.parametrize("loss_on", ["all", "answers"])
def test_the_loss_is_that_of_a_loop_over_conversations(model: ModelConfig, talk: TokenCache, loss_on: LossOn):
    params = large_params(model)
    spans = talk.spans()
    assert spans is not None
    losses: list[float] = []
    start = 0
    for document in talk.documents():
        tokens = document.tokens[:32].astype(np.int64)
        logits = reference_logits(params, tokens, np.ones_like(tokens), model)
        answers = {token - start for first, stop in spans.tolist() for token in range(first, stop)}
        for at in range(1, len(tokens)):
            if loss_on == "all" or at in answers:
                losses.append(float(np.log(np.exp(logits[at - 1]).sum()) - logits[at - 1, tokens[at]]))
        start += len(document.tokens)
    for kind in ("greedy", "pad"):
        loss, tokens, _ = gradients(model, params, laid(talk, kind, loss_on))
        assert tokens == len(losses)
        assert loss == pytest.approx(sum(losses), rel=1e-5)


@pytest.mark.parametrize("part", [pytest.param(1, marks=pytest.mark.long), 2, pytest.param(5, marks=pytest.mark.long)])
def test_parts_count_by_their_targets(family: ModelConfig, talk: TokenCache, part: int):
    tokens, segments, targets = (array[:10] for array in laid(talk, "pad", "answers"))
    rows, config = (tokens, segments, targets & (np.arange(10) != 4)[:, None]), weighed(family, 0.5)
    params = large_params(config)
    loss, count, whole = gradients(config, params, rows)
    in_parts = gradients(config, params, rows, part)
    assert (in_parts[0], in_parts[1]) == (pytest.approx(loss, rel=1e-6), count)
    scale = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(whole))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6 * scale), in_parts[2], whole)


@pytest.mark.parametrize("family", [pytest.param("dense", marks=pytest.mark.long), "sparse"], indirect=True)
def test_a_whole_update_of_packed_rows(family: ModelConfig, talk: TokenCache):
    config = weighed(family, 0.0)
    step = build_train_step(config, ADAMW)

    def update(kind: PackingKind) -> tuple[TrainState, Any]:
        params = large_params(config)
        state = TrainState(params, build_optimizer(ADAMW, config).init(params), None)
        tokens, segments, targets = laid(talk, kind, "answers")
        return step(state, tokens, segments, Scheduled(1e-3, z_loss=0.0, max_grad_norm=1.0, ema_decay=0.0), targets)

    (after, measured), (after_alone, measured_alone) = update("greedy"), update("pad")
    assert float(measured.counted_tokens) == float(measured_alone.counted_tokens) == laid(talk, "pad", "answers")[2].sum()
    assert float(measured.loss) == pytest.approx(float(measured_alone.loss), rel=1e-5)
    assert float(measured.grad_norm) == pytest.approx(float(measured_alone.grad_norm), rel=1e-4)
    names = [stack.name for stack in stacks(config) if stack.kind.has_experts]
    moved = [(after.params[name][BIAS], after_alone.params[name][BIAS]) for name in names]
    assert bool(moved) == (config.experts is not None)
    for one, other in moved:
        assert np.abs(one).max() > 0
        np.testing.assert_array_equal(one, other)


@pytest.fixture(scope="module")
def held_out(talk: TokenCache, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = shutil.copytree(Path(talk.folder), tmp_path_factory.mktemp("held-out") / "talk")
    write_manifest(folder, read_manifest(folder).but(split="held_out"))
    return str(folder)


def test_the_held_out_loss_is_that_of_the_same_rule(model: ModelConfig, talk: TokenCache, held_out: str):
    evaluation = LossEvaluation(every_steps=1, sequences=100, caches={"talk": held_out})
    params = large_params(model)
    found = {}
    for rule in (RowRule(), RowRule("greedy", "answers"), RowRule("pad", "answers"), RowRule("greedy", "all")):
        row = build_evaluate(evaluation, model, Execution(), rule=rule)(params, None)
        found[rule] = row["eval_loss"]
        if rule.packing != "chunk":
            loss, tokens, _ = gradients(model, params, laid(talk, rule.packing, rule.loss_on))
            assert row["eval_loss/talk"] == pytest.approx(loss / tokens, rel=1e-5)
    assert found[RowRule("greedy", "answers")] == pytest.approx(found[RowRule("pad", "answers")], rel=1e-5)
    assert len({round(loss, 3) for loss in found.values()}) == 3


def test_held_out_conversations_without_an_answer_are_refused(model: ModelConfig, tmp_path: Path):
    folder = write_conversations(tmp_path / "talk", [[(np.array([BEGIN, 4, 5, END], np.uint16), [])]], split="held_out")
    evaluation = LossEvaluation(every_steps=1, sequences=4, caches={"talk": str(folder)})
    with pytest.raises(DataError, match=r"must have tokens that are predicted in its first 1 rows"):
        read_held_out(evaluation, model, RowRule("greedy", "answers"))


def test_a_run_on_answers_says_what_it_counted(make_run: MakeRun, talk: TokenCache, held_out: str):
    fields = {"caches": {"talk": str(talk.folder)}, "mixture": [[0, {"talk": 100}]], "packing": "greedy", "loss_on": "answers"}
    evaluation = {"every_steps": 4, "sequences": 5, "caches": {"talk": held_out}}
    run = make_run("on answers", stop_step=6, batch=[[0, 2]], evaluation=evaluation, **fields)
    result = train(run)
    rows = read_metrics(Path(run.output) / "metrics.jsonl")
    assert result["counted_tokens"] == sum(row["counted_tokens"] for row in rows) < result["tokens"] == 6 * 2 * 32
    assert [row["step"] for row in rows if "eval_loss" in row] == [4, 6]
    assert all(0 < row["counted_tokens"] < row["tokens"] for row in rows)
