"""Weights of a Hugging Face folder or of another home's phase, imported into a home."""

import json
import os
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from phasewise.flows.recipes.phase import Pretrained
from phasewise.tasks.home import Home
from phasewise.tasks.training import pretrained
from phasewise.trainer.base.errors import CheckpointError, ConfigError, TrainingError
from phasewise.trainer.checkpoints.state import read_params
from phasewise.trainer.config import ModelConfig, Rope
from phasewise.trainer.model.hugging_face import read_folder, write_folder
from phasewise.trainer.model.params import init_params
from phasewise.trainer.step import params_digest

MODEL = ModelConfig(
    vocab_size=50, seq_len=64, num_layers=2, d_model=16, d_ff=24, num_query_heads=4, num_kv_heads=2, head_dim=4,
    rope=Rope(theta=10_000, scaling=None), rms_norm_epsilon=1e-5, initializer_std=0.02, compute_dtype="float32", qk_norm=True,
    tied_head=False, sliding_window=None, float32_attention=False,
)  # fmt: skip


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_folder(tmp_path / "Tiny-Qwen3", init_params(7, MODEL), MODEL)
    return tmp_path / "Tiny-Qwen3"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.open(str(tmp_path / "home"))


def start_of(folder: Path, **fields: object) -> Pretrained:
    return Pretrained.model_validate({"pretrained": str(folder), **fields})


def test_weights_are_imported_once_and_again_after_a_change_of_the_source(source: Path, home: Home):
    start, model = start_of(source), pretrained.model_of(str(source)).but(seq_len=32)
    with pytest.raises(TrainingError, match="which are not imported yet"):
        pretrained.start_checkpoint(start, model, "warm", home, "mine-own")
    assert pretrained.import_weights(start, model, "warm", home, "mine-own")
    assert not pretrained.import_weights(start, model, "warm", home, "mine-own")
    checkpoint, digest = pretrained.start_checkpoint(start, model, "warm", home, "mine-own")
    assert checkpoint.parents[1].name.startswith("pretrained-tiny-qwen3-")
    expected = read_folder(source)[0]
    assert digest == params_digest(expected)
    jax.tree.map(np.testing.assert_array_equal, read_params(checkpoint, model), expected)

    tensors = load_file(source / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"] + 1
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    with pytest.raises(TrainingError, match=r"model\.safetensors of .* changed after its import"):
        pretrained.start_checkpoint(start, model, "warm", home, "mine-own")
    assert pretrained.import_weights(start, model, "warm", home, "mine-own")
    assert pretrained.start_checkpoint(start, model, "warm", home, "mine-own")[1] not in (digest, "")

    shutil.rmtree(source)  # the import is in the home
    assert not pretrained.import_weights(start, model, "warm", home, "mine-own")


def test_an_import_whose_description_was_edited_is_made_again(source: Path, home: Home):
    start, model = start_of(source), pretrained.model_of(str(source))
    pretrained.import_weights(start, model, "warm", home, "mine-own")
    described = pretrained.folder_of(start, model, home, "mine-own") / pretrained.SOURCE_NAME
    written = described.read_text()
    for edited in (written.replace('"new_rows": 0', '"new_rows": 1'), written[: len(written) // 2], ""):
        assert edited != written
        described.write_text(edited)
        assert pretrained.import_weights(start, model, "warm", home, "mine-own")
        assert described.read_text() == written


@pytest.mark.parametrize("tied_head", [False, True])
def test_new_rows_are_the_mean_of_the_others(tmp_path: Path, home: Home, tied_head: bool):
    model = MODEL.but(tied_head=tied_head)
    write_folder(tmp_path / "folder", init_params(7, model), model)
    start, grown = start_of(tmp_path / "folder", new_rows=3), model.but(vocab_size=53)
    pretrained.import_weights(start, grown, "warm", home, "mine-own")
    found, before = (
        read_params(pretrained.start_checkpoint(start, grown, "warm", home, "mine-own")[0], grown),
        read_folder(tmp_path / "folder")[0],
    )
    np.testing.assert_array_equal(found["embedding"][:50], before["embedding"])
    np.testing.assert_allclose(found["embedding"][50:], np.tile(before["embedding"].mean(axis=0), (3, 1)), rtol=1e-5, atol=1e-8)
    if not tied_head:
        np.testing.assert_array_equal(found["head"][:, :50], before["head"])
        np.testing.assert_allclose(found["head"][:, 50:], np.tile(before["head"].mean(axis=1), (3, 1)).T, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(
    ("fields", "changes", "said"),
    [
        ({}, {"rope": Rope(theta=500_000, scaling=None)}, r"rope is .*10000.* in the folder and .*500000.*declares=\(\"rope\",\)"),
        ({"declares": ("rope",)}, {}, "declares rope, and has the RoPE of"),
        ({}, {"tied_head": True}, "tied_head is False in the folder and True in the phase"),
        ({}, {"vocab_size": 53}, "vocab_size is 53 in the phase, and the folder has 50 rows and new_rows is 0"),
        ({"new_rows": 2}, {"vocab_size": 53}, "new_rows is 2"),
        ({}, {"qk_norm": False, "num_layers": 3}, "num_layers is 2 in the folder and 3 in the phase"),
        ({}, {"rms_norm_epsilon": 1e-6}, "rms_norm_epsilon is 1e-05 in the folder"),
    ],
)
def test_a_model_that_is_not_the_source_s_is_refused(source: Path, fields: dict[str, object], changes: dict[str, object], said: str):
    with pytest.raises(ConfigError, match=said):
        pretrained.check_model(start_of(source, **fields), MODEL.but(**changes), "warm")


def test_what_changes_no_weight_may_differ(source: Path):
    pretrained.check_model(
        start_of(source), MODEL.but(seq_len=16, compute_dtype="bfloat16", float32_attention=True, initializer_std=0.5), "warm"
    )
    pretrained.check_model(start_of(source, declares=("rope",)), MODEL.but(rope=Rope(theta=500_000, scaling=None)), "warm")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}, "biases in the query, key and value projections"),
        ({"architectures": ["Olmo2ForCausalLM"]}, "norms only after attention and MLP"),
        ({"architectures": ["Gemma3ForCausalLM"]}, "gains of norms that are added to 1"),
        ({"architectures": ["OwnForCausalLM"]}, "another architecture"),
        ({"attention_bias": True}, "attention_bias False, found True"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}}, "RoPE must be of the kind default or llama3"),
        (
            {"use_sliding_window": True, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
            "in every layer or in none",
        ),
    ],
)
def test_what_the_decoder_lacks_is_refused_by_name(source: Path, changes: dict[str, object], said: str):
    config = source / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **changes}))
    with pytest.raises(CheckpointError, match=said):
        pretrained.model_of(str(source))


def test_a_source_that_is_not_here_is_refused_in_one_line(tmp_path: Path, source: Path, home: Home, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ConfigError, match="found no folder at"):
        pretrained.find_folder("./nowhere", None)
    with pytest.raises(ConfigError, match=r"names a folder \(./…\) or a model of the Hub"):
        pretrained.find_folder("a/b/c", None)
    with pytest.raises(ValueError, match=r"only a model of the Hub has revisions"):
        start_of(source, revision="main")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match="the model own/model at v1 is not in the cache of the Hub, and cannot be downloaded"):
        pretrained.find_folder("own/model", "v1")
    with pytest.raises(ConfigError, match="must have a chat template, and has none"):
        pretrained.chat_template_of(str(source))
    (source / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    assert pretrained.chat_template_of(str(source)) == "{{ messages }}"
    os.truncate(source / "model.safetensors", 1000)
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged"):
        pretrained.import_weights(start_of(source), MODEL, "warm", home, "mine-own")
    assert not list(home.runs.glob("*/*/checkpoints/0/digests.json"))
