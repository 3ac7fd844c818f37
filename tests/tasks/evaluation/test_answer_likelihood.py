from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phasewise.tasks.evaluation import checkpoint
from phasewise.tasks.evaluation.checkpoint import answer_nats, answers_beside_parent, read_conversations
from phasewise.tasks.evaluation.settings import Measured
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.config import Execution, ModelConfig, StartFrom
from phasewise.trainer.model.params import Params, init_params
from phasewise.trainer.preflight.spec import run_of
from tests.trainer.model.families import logits
from tests.trainer.preflight.models import LLAMA_8B, step_of
from tests.trainer.token_caches import BEGIN, END, write_conversations, write_token_cache

SEQ_LEN = 16
MEASURED = Measured(benchmarks=(), held_out_tokens=None)


@pytest.fixture(scope="module")
def config() -> ModelConfig:
    small = {"vocab_size": 64, "seq_len": SEQ_LEN, "num_layers": 2, "d_model": 16, "d_ff": 16, "head_dim": 8, "compute_dtype": "float32"}
    return LLAMA_8B.but(**small, num_query_heads=2, num_kv_heads=1, initializer_std=0.3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four conversations: one is longer than a row, one has its only answer behind it, one has none."""
    rng = np.random.default_rng(1)
    lengths, answers = [10, 24, 30, 7], [[(3, 5), (7, 9)], [(2, 4), (12, 20)], [(20, 25)], []]
    documents = [np.array([BEGIN, *rng.integers(2, 64, length - 2), END], np.uint16) for length in lengths]
    shards = list(zip(documents, answers, strict=True))
    return write_conversations(tmp_path_factory.mktemp("talk") / "talk", [shards[:1], shards[1:]], split="held_out")


def by_hand(params: Params, config: ModelConfig, tokens: np.ndarray, answers: list[int]) -> float:
    rows = jnp.asarray(tokens[None].astype(np.int32))
    found = jax.nn.log_softmax(logits(params, rows, config)[0].astype(jnp.float32), axis=-1)
    return -sum(float(found[at - 1, int(tokens[at])]) for at in answers)


def test_only_answers_within_a_row_count_and_conversations_are_whole(config: ModelConfig, folder: Path):
    params = init_params(0, config)
    conversations = read_conversations("talk", folder, SEQ_LEN, max_tokens=None)
    assert [int(one.is_answer.sum()) for one in conversations] == [4, 2 + 4]
    first, second = answer_nats(params, config, conversations)
    assert first == pytest.approx(by_hand(params, config, conversations[0].tokens, [3, 4, 7, 8]), rel=1e-5)
    assert second == pytest.approx(by_hand(params, config, conversations[1].tokens, [2, 3, 12, 13, 14, 15]), rel=1e-5)
    assert len(read_conversations("talk", folder, SEQ_LEN, max_tokens=9)) == 1
    assert len(read_conversations("talk", folder, SEQ_LEN, max_tokens=11)) == 2


def test_both_models_are_measured_on_the_same(config: ModelConfig, folder: Path, monkeypatch: pytest.MonkeyPatch):
    ours, theirs = init_params(0, config), init_params(1, config)
    start = StartFrom(checkpoint="/runs/base/checkpoints/7", params_digest="digest", fresh=())
    run = run_of(step_of(LLAMA_8B, 1), Execution()).but(model=config, caches={"talk": "train"}, mixture=((0, {"talk": 100.0}),))
    assert answers_beside_parent(run, ours, {"talk": folder}, MEASURED) is None
    run = run.but(loss_on="answers", start=start)
    monkeypatch.setattr(checkpoint, "saved_params_digest", lambda path: "digest")
    monkeypatch.setattr(checkpoint, "read_about", lambda path: {"run": {"model": config.model_dump()}})
    monkeypatch.setattr(checkpoint, "read_params", lambda path, model: theirs)
    found: Any = answers_beside_parent(run, ours, {"talk": folder}, MEASURED)
    assert found["against"] == "base"
    conversations = read_conversations("talk", folder, SEQ_LEN, max_tokens=None)
    assert [item["nats"] for item in found["items"]] == answer_nats(ours, config, conversations)
    assert [item["parent_nats"] for item in found["items"]] == answer_nats(theirs, config, conversations)
    alone: Any = answers_beside_parent(run.but(start=None), ours, {"talk": folder}, MEASURED)
    assert [item["parent_nats"] for item in alone["items"]] == [None, None]
    broken = jax.tree.map(lambda leaf: leaf * jnp.nan, ours)
    measured: Any = answers_beside_parent(run, broken, {"talk": folder}, MEASURED)
    assert all(np.isnan(item["nats"]) for item in measured["items"])


def test_plain_text_and_conversations_without_answers_are_refused(folder: Path, tmp_path: Path):
    document = np.array([BEGIN, 5, 6, END], np.uint16)
    with pytest.raises(DataError, match="is of plain text"):
        read_conversations("web", write_token_cache(tmp_path / "web", [[document]]), SEQ_LEN, max_tokens=None)
    with pytest.raises(DataError, match="found none in"):
        read_conversations("talk", write_conversations(tmp_path / "talk", [[(document, [])]]), SEQ_LEN, max_tokens=None)
