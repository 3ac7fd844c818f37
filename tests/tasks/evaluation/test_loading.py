"""The language model of a checkpoint, hot or averaged, and of a folder; on one device and on eight."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tokenizers import Tokenizer

from phasewise.tasks.data.template import ChatTemplate
from phasewise.tasks.data.tokenizer import load_tokenizer
from phasewise.tasks.evaluation import model_loading
from phasewise.tasks.evaluation.language_model import JaxLanguageModel
from phasewise.tasks.evaluation.model_loading import model_of_checkpoint, model_of_folder
from phasewise.tasks.report.export import tokenizer_files
from phasewise.trainer.base.errors import CheckpointError, ConfigError
from phasewise.trainer.base.storage import read_json
from phasewise.trainer.checkpoints.checkpointer import Checkpoints
from phasewise.trainer.config import Mesh, ModelConfig, RunConfig
from phasewise.trainer.model.hugging_face import write_folder
from phasewise.trainer.state import TrainState, init_state
from tests.tasks.evaluation.hflm import GOLDEN
from tests.trainer.eight_devices import run_on_eight_devices


@pytest.fixture(scope="module")
def run(tokenizer: Tokenizer, config: ModelConfig, tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """A run that keeps an average; it is not run."""
    never: list[Any] = [[0, None]]
    names = ("max_grad_norm", "z_loss", "max_update_rms", "max_update_norm", "skip_step")
    return RunConfig.model_validate(
        {
            "recipe": "tiny", "scale": "proxy", "phase": "tiny", "start_step": 0, "stop_step": 4, "seed": 0, "model": config.model_dump(),
            "optimizer": {"kind": "adamw", "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1},
            "learning_rate": [{"kind": "constant", "start_step": 0, "end_step": 4, "start": 1e-3, "end": 1e-3}],
            "stability": {**dict.fromkeys(names, never), "ema_decay": [[0, 0.9]]}, "batch": [[0, 2]], "mixture": [[0, {"a": 100}]],
            "order": {"seed": 0, "permutation": "feistel", "block_sequences": 2}, "start": None, "caches": {"a": "none"}, "verdict": "none",
            "checkpoints": {"every_steps": 4, "every_minutes": None, "keep_all": False}, "output": str(tmp_path_factory.mktemp("run")),
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def state(run: RunConfig) -> TrainState:
    """Weights, and an average that is another."""
    fresh = init_state(run)
    return fresh._replace(ema=jax.tree.map(lambda weight: 0.5 * weight + 0.25, fresh.params))


@pytest.fixture(scope="module")
def checkpoint(run: RunConfig, state: TrainState) -> Path:
    with Checkpoints(Path(run.output) / "checkpoints", run) as checkpoints:
        checkpoints.save(4, state, {})
    return Path(run.output) / "checkpoints" / "4"


@pytest.fixture(scope="module")
def tokenizer_path(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(tokenizer.to_str())
    return path


@pytest.mark.parametrize(("weights", "field"), [("last", "params"), ("ema", "ema")])
def test_a_checkpoint_s_weights_or_their_average(
    checkpoint: Path, tokenizer_path: Path, state: TrainState, config: ModelConfig, weights: model_loading.Weights, field: str
) -> None:
    model = model_of_checkpoint(checkpoint, tokenizer_path, weights=weights)
    assert model.config == config
    assert (model.prefix_token_id, model.eot_token_id, model.begins_texts) == (0, 1, True)
    for found, expected in zip(jax.tree.leaves(model.params), jax.tree.leaves(getattr(state, field)), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_mesh_that_does_not_fit_is_refused_before_weights_are_read(tmp_path: Path, checkpoint: Path, tokenizer_path: Path) -> None:
    with pytest.raises(ConfigError, match="must divide"):
        model_of_checkpoint(checkpoint, tokenizer_path, mesh=Mesh(tensor=3))
    with pytest.raises(CheckpointError, match="no checkpoint"):
        model_of_checkpoint(tmp_path / "none", tokenizer_path)


def test_a_folder_s_tokenizer_says_how_a_text_begins(tmp_path: Path) -> None:
    ours = model_of_folder(GOLDEN / "model")
    assert (ours.prefix_token_id, ours.eot_token_id, ours.begins_texts) == (0, 1, True)
    without = changed(tmp_path / "without", {"bos_token": None}, {"post_processor": None})
    assert (without.prefix_token_id, without.eot_token_id, without.begins_texts) == (1, 1, False)
    assert without.tok_encode("ba") == load_tokenizer(GOLDEN / "model" / "tokenizer.json").encode("ba", add_special_tokens=False).ids
    with pytest.raises(CheckpointError, match=r"must have an end token \(eos_token\), found None"):
        changed(tmp_path / "endless", {"eos_token": None}, {})
    (tmp_path / "endless" / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"must hold tokenizer\.json"):
        model_of_folder(tmp_path / "endless")


def test_what_a_folder_ends_a_text_at_is_what_generate_of_transformers_does(tmp_path: Path) -> None:
    """The tokenizer's end token, and the ids of `generation_config.json`; where there is none, of `config.json`."""
    assert model_of_folder(GOLDEN / "model").ends == (1,)
    for name, ids in (("generation_config.json", [1, 7, 9]), ("config.json", 7)):
        folder = tmp_path / name
        shutil.copytree(GOLDEN / "model", folder)
        if name == "config.json":
            (folder / "generation_config.json").unlink(missing_ok=True)
        written = json.loads((folder / name).read_text()) if (folder / name).exists() else {}
        (folder / name).write_text(json.dumps({**written, "eos_token_id": ids}))
        assert model_of_folder(folder).ends == tuple(sorted({1, *(ids if isinstance(ids, list) else [ids])}))
    (tmp_path / "generation_config.json" / "generation_config.json").write_text('{"eos_token_id": [1, 70000]}')
    with pytest.raises(CheckpointError, match=r"ids below the model's vocab_size of [\d,]+, found \[1, 70000\]"):
        model_of_folder(tmp_path / "generation_config.json")


def test_a_checkpoint_ends_a_text_where_its_export_does(
    checkpoint: Path, tokenizer: Tokenizer, state: TrainState, config: ModelConfig, tmp_path: Path
) -> None:
    """The same weights are to give the same answers: at the end of a document, and at that of an answer of each template."""
    path, turn = tmp_path / "tokenizer.json", str(tokenizer.id_to_token(9))
    path.write_text(tokenizer.to_str())
    marked = "{% generation %}{{ messages[0].content + END }}{% endgeneration %}"
    chats = [ChatTemplate(marked.replace("END", end), end, [turn]) for end in (f"'{turn}'", "eos_token")]
    for given, ends in (((), (1,)), (chats[:1], (1, 9)), (chats[1:], (1,)), (chats, (1, 9))):
        folder = tmp_path / f"out-{len(given)}-{len(ends)}"
        write_folder(folder, state.params, config, tokenizer=tokenizer_files(path, config.seq_len, given))
        assert model_of_checkpoint(checkpoint, path, chats=given).ends == model_of_folder(folder).ends == ends


def changed(folder: Path, of_config: Mapping[str, Any], of_tokenizer: Mapping[str, Any]) -> JaxLanguageModel:
    """The golden's model with another tokenizer."""
    shutil.copytree(GOLDEN / "model", folder)
    for name, changes in (("tokenizer_config.json", of_config), ("tokenizer.json", of_tokenizer)):
        (folder / name).write_text(json.dumps({**json.loads((folder / name).read_text()), **changes}))
    return model_of_folder(folder)


def test_a_mesh_changes_no_answer(tmp_path: Path) -> None:
    """Eight devices in a process of its own; each holds its part of the weights."""
    run_on_eight_devices(Path(__file__).with_name("on_eight_devices.py"), tmp_path / "found.json")
    log_likelihood, others, share = read_json(tmp_path / "found.json")
    assert log_likelihood < 1e-3
    assert others == 0
    assert share < 0.3
