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
from phasewise.tasks.evaluation.language_model import JaxLanguageModel
from phasewise.tasks.evaluation.model_loading import find_chats, model_of_checkpoint, model_of_folder
from phasewise.tasks.report.export import tokenizer_files
from phasewise.trainer.base.errors import CheckpointError, ConfigError
from phasewise.trainer.base.storage import read_json
from phasewise.trainer.checkpoints.checkpointer import Checkpoints
from phasewise.trainer.config import Mesh, ModelConfig, RunConfig
from phasewise.trainer.data.manifest import read_manifest, write_manifest
from phasewise.trainer.model.hugging_face import write_folder
from phasewise.trainer.step import TrainState, init_state
from tests.shared_data import shared_folder
from tests.tasks.conftest import tiny_run
from tests.tasks.data.conversation_worlds import layout
from tests.tasks.evaluation.hflm import GOLDEN, MODEL, ask, ask_hflm, compare, golden, local_requests, made_requests, write_model
from tests.trainer.eight_devices import run_on_eight_devices
from tests.trainer.model.families import AFMOE
from tests.trainer.token_caches import BEGIN, END, write_conversations, write_token_cache


@pytest.fixture(scope="module")
def run(config: ModelConfig, tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    made = tiny_run("tiny", 4, {"a": Path("none")}, Path("none"), tmp_path_factory.mktemp("run"), mixture=[[0, {"a": 100}]])
    return made.but(model=config, stability={**made.stability.model_dump(), "ema_decay": [[0, 0.9]]})


@pytest.fixture(scope="module")
def state(run: RunConfig) -> TrainState:
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
def test_weights_or_their_average(checkpoint: Path, tokenizer_path: Path, state: TrainState, config: ModelConfig, weights: Any, field: str):
    model = model_of_checkpoint(checkpoint, tokenizer_path, weights=weights)
    assert model.config == config
    assert (model.prefix_token_id, model.eot_token_id, model.begins_texts) == (0, 1, True)
    for found, expected in zip(jax.tree.leaves(model.params), jax.tree.leaves(getattr(state, field)), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_mesh_that_does_not_fit_is_refused_before_weights_are_read(tmp_path: Path, checkpoint: Path, tokenizer_path: Path):
    with pytest.raises(ConfigError, match="must divide"):
        model_of_checkpoint(checkpoint, tokenizer_path, mesh=Mesh(tensor=3))
    with pytest.raises(CheckpointError, match="no checkpoint"):
        model_of_checkpoint(tmp_path / "none", tokenizer_path)


def test_a_folder_says_how_a_text_begins_and_ends(tmp_path: Path):
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


def test_a_checkpoint_ends_a_text_as_its_export(
    checkpoint: Path, tokenizer: Tokenizer, state: TrainState, config: ModelConfig, tmp_path: Path
):
    path, turn = tmp_path / "tokenizer.json", str(tokenizer.id_to_token(9))
    path.write_text(tokenizer.to_str())
    marked = "{% generation %}{{ messages[0].content + END }}{% endgeneration %}"
    chats = [ChatTemplate(marked.replace("END", end), end, [turn]) for end in (f"'{turn}'", "eos_token")]
    for given, ends in (((), (1,)), (chats[:1], (1, 9)), (chats[1:], (1,)), (chats, (1, 9))):
        folder = tmp_path / f"out-{len(given)}-{len(ends)}"
        write_folder(folder, state.params, config, tokenizer=tokenizer_files(path, config.seq_len, given))
        assert model_of_checkpoint(checkpoint, path, chats=given).ends == model_of_folder(folder).ends == ends


def changed(folder: Path, of_config: Mapping[str, Any], of_tokenizer: Mapping[str, Any]) -> JaxLanguageModel:
    shutil.copytree(GOLDEN / "model", folder)
    for name, changes in (("tokenizer_config.json", of_config), ("tokenizer.json", of_tokenizer)):
        (folder / name).write_text(json.dumps({**json.loads((folder / name).read_text()), **changes}))
    return model_of_folder(folder)


def test_a_mesh_changes_no_answer(tmp_path: Path):
    run_on_eight_devices(Path(__file__).with_name("on_eight_devices.py"), tmp_path / "found.json")
    log_likelihood, others, share = read_json(tmp_path / "found.json")
    assert log_likelihood < 1e-3
    assert others == 0
    assert share < 0.3


def test_a_checkpoint_s_chat_templates_are_found_in_the_home_that_it_is_in_now(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    document = np.array([BEGIN, 5, 6, END], np.uint16)
    talk = write_conversations(tmp_path / "home" / "tokens" / "talk" / "train-1", [[(document, [(1, 3)])]])
    how = layout("messages", "{% generation %}{{ messages[0].content + '<|end|>' }}{% endgeneration %}")
    write_manifest(talk, read_manifest(talk).but(source={"conversation": how.model_dump(mode="json")}))
    web = write_token_cache(tmp_path / "home" / "tokens" / "web" / "train-1", [[document]])
    run = {"caches": {"talk": str(talk), "web": str(web)}}
    checkpoint = tmp_path / "home" / "runs" / "recipe" / "phase" / "checkpoints" / "4"
    assert [chat.turn_end() for chat in find_chats(checkpoint, run)] == ["<|end|>"]
    assert caplog.text == ""
    shutil.move(tmp_path / "home", tmp_path / "moved")
    moved = tmp_path / "moved" / checkpoint.relative_to(tmp_path / "home")
    assert [chat.turn_end() for chat in find_chats(moved, run)] == ["<|end|>"]
    assert [chat.turn_end() for chat in find_chats(tmp_path / "4", run, tmp_path / "moved")] == ["<|end|>"]
    assert caplog.text == ""
    assert find_chats(tmp_path / "4", run) == ()
    assert "the caches of talk, web are gone" in caplog.text


QWEN = {"qk_norm": True, "tied_head": True, "sliding_window": 12}
FAMILIES: dict[str, dict[str, Any]] = {"llama": {}, "qwen": QWEN, "afmoe": AFMOE | {"num_layers": 4}}


def test_the_golden_is_of_these_requests_and_its_answers_are_ours():
    assert golden()[0] == {kind: [tuple(request) for request in asked] for kind, asked in made_requests().items()}
    assert sum(path.stat().st_size for path in GOLDEN.rglob("*") if path.is_file()) < 150_000
    requests, expected = golden()
    difference = compare(ask(model_of_folder(GOLDEN / "model"), requests), expected)
    assert difference.log_likelihood < 1e-3
    assert difference.others == 0
    assert len(set(expected["generate_until"])) > 8  # else equality would say little


@pytest.mark.parametrize("family", [*FAMILIES, "llama on real items"])
def test_answers_are_theirs(tmp_path: Path, family: str):
    for needed in ("torch", "transformers", "accelerate"):
        pytest.importorskip(needed, reason=f"HFLM needs {needed}: pip install -e '.[parity]'")
    folder = write_model(tmp_path / "model", MODEL.but(**FAMILIES.get(family, {})))
    requests = made_requests() if family in FAMILIES else local_requests(shared_folder("benchmarks"), 5)
    difference = compare(ask(model_of_folder(folder), requests), ask_hflm(folder, requests))
    assert difference.log_likelihood < 1e-3
    assert difference.others == 0
