import json
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import phasewise.trainer.model.hugging_face as folder_module
from phasewise.trainer.base.errors import CheckpointError, ConfigError
from phasewise.trainer.config import ModelConfig
from phasewise.trainer.model.hugging_face import TokenizerFiles, read_folder, write_folder
from phasewise.trainer.model.hugging_face_config import Computation, from_hugging_face, to_hugging_face
from phasewise.trainer.model.params import Params, init_params
from tests.trainer.preflight.models import ROPE as LLAMA3

VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama tied": {"tied_head": True, "rope": LLAMA3},
    "mistral window": {"sliding_window": 5},
    "qwen": {"qk_norm": True, "head_dim": 6},
    "qwen window": {"qk_norm": True, "sliding_window": 5, "rope": LLAMA3},
}


def random_params(config: ModelConfig) -> Params:
    """Every weight, gains among them, with numbers of its own."""
    rng = np.random.default_rng(5)
    return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), init_params(0, config))


def assert_same(one: Params, other: Params) -> None:
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert left.dtype == right.dtype == np.float32
        assert np.asarray(left).tobytes() == np.asarray(right).tobytes()


@pytest.fixture
def params(model: ModelConfig) -> Params:
    return random_params(model)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def exported(out: Path, params: Params, model: ModelConfig) -> Path:
    write_folder(out, params, model)
    return out


@pytest.mark.parametrize("variant", VARIANTS)
def test_weights_and_model_survive_the_way_there_and_back(out: Path, model: ModelConfig, variant: str):
    config = model.but(**VARIANTS[variant])
    params = random_params(config)
    write_folder(out, params, config)
    found, described = read_folder(out)
    assert described == config
    assert_same(found, params)


def test_large_models_are_cut_into_files_with_an_index(out: Path, params: Params, model: ModelConfig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(folder_module, "MAX_SHARD_BYTES", 20_000)
    write_folder(out, params, model)
    index = json.loads((out / "model.safetensors.index.json").read_text())
    names = sorted(set(index["weight_map"].values()))
    assert names == [f"model-{number:05d}-of-{len(names):05d}.safetensors" for number in range(1, len(names) + 1)]
    assert len(names) > 3
    sizes = [sum(tensor.nbytes for tensor in load_file(out / name).values()) for name in names]
    assert sum(sizes) == index["metadata"]["total_size"] == sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    assert all(size <= 20_000 or size == params["embedding"].nbytes for size in sizes)
    assert_same(read_folder(out)[0], params)


def test_bfloat16_is_rounded_once_and_a_tokenizer_with_the_ids_of_begin_and_end_goes_along(out: Path, params: Params, model: ModelConfig):
    tokenizer = TokenizerFiles({"tokenizer.json": b"{}"}, begin_of_text=3, end_of_text=4)
    write_folder(out, params, model, dtype="bfloat16", tokenizer=tokenizer)
    assert_same(read_folder(out)[0], jax.tree.map(lambda leaf: leaf.astype(ml_dtypes.bfloat16).astype(np.float32), params))
    assert json.loads((out / "config.json").read_text())["torch_dtype"] == "bfloat16"
    assert (out / "tokenizer.json").read_bytes() == b"{}"
    for name in ("config.json", "generation_config.json"):
        written = json.loads((out / name).read_text())
        assert (written["bos_token_id"], written["eos_token_id"]) == (3, 4)


def test_an_empty_folder_is_taken_and_no_other(tmp_path: Path, params: Params, model: ModelConfig):
    (tmp_path / "empty").mkdir()
    write_folder(tmp_path / "empty", params, model)
    before = {path.name: path.read_bytes() for path in (tmp_path / "empty").iterdir()}
    (tmp_path / "file").touch()
    for taken in ("empty", "file"):
        with pytest.raises(ConfigError, match="must be new or empty"):
            write_folder(tmp_path / taken, params, model)
    assert {path.name: path.read_bytes() for path in (tmp_path / "empty").iterdir()} == before
    assert {path.name for path in tmp_path.iterdir()} == {"empty", "file"}


def test_what_fails_half_way_leaves_nothing(tmp_path: Path, params: Params, model: ModelConfig, monkeypatch: pytest.MonkeyPatch):
    def fail(*arguments: object) -> None:
        assert len(list(tmp_path.iterdir())) == 1  # what is staged, and not the folder
        assert not (tmp_path / "out").exists()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder_module, "save_file", fail)
    with pytest.raises(ConfigError, match="cannot be written: No space left"):
        write_folder(tmp_path / "out", params, model)
    assert list(tmp_path.iterdir()) == []


def edit(folder: Path, **tensors: np.ndarray | None) -> None:
    """Change tensors of a folder, or with None take them out."""
    path = folder / "model.safetensors"
    found = {**load_file(path), **{name.replace("__", "."): tensor for name, tensor in tensors.items()}}
    save_file({name: tensor for name, tensor in found.items() if tensor is not None}, path, {"format": "pt"})


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"model__norm__weight": None}, r"misses tensors: model\.norm\.weight\. It must"),
        ({"model__extra": np.ones(1, np.float32)}, r"has unexpected tensors: model\.extra\. It must"),
        ({"lm_head__weight": np.ones((256, 31), np.float32)}, r"lm_head\.weight .* shape \[256, 32\], found \[256, 31\]"),
        ({"lm_head__weight": np.ones((256, 32), np.float64)}, "found F64"),
    ],
)
def test_other_tensors_shapes_and_types_are_refused(exported: Path, tensors: dict[str, np.ndarray | None], said: str):
    edit(exported, **tensors)
    with pytest.raises(CheckpointError, match=said):
        read_folder(exported)


def test_a_tied_head_may_be_there_if_it_is_the_embedding(out: Path, model: ModelConfig):
    config = model.but(tied_head=True)
    params = random_params(config)
    write_folder(out, params, config)
    edit(out, lm_head__weight=params["embedding"])
    assert_same(read_folder(out)[0], params)
    edit(out, lm_head__weight=params["embedding"] + 1)
    with pytest.raises(CheckpointError, match=r"unexpected tensors: lm_head\.weight"):
        read_folder(out)


def test_what_is_no_such_folder_is_refused(tmp_path: Path, exported: Path):
    def assert_refused(folder: Path, said: str) -> None:
        with pytest.raises(CheckpointError, match=said):
            read_folder(folder)

    assert_refused(tmp_path, r"no config\.json")
    weights = exported / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    assert_refused(exported, "is damaged")
    weights.unlink()
    assert_refused(exported, "has neither")
    (exported / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"model.norm.weight": "gone.safetensors"}}))
    assert_refused(exported, r"gone\.safetensors is missing")
    (exported / "config.json").write_text("{")
    assert_refused(exported, "is no JSON")


LLAMA_3_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False, "mlp_bias": False, "hidden_act": "silu",
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "initializer_range": 0.02, "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    },
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "vocab_size": 128256,
}  # fmt: skip
"""What the folder of Llama 3.1 8B says, in the words of version 4."""


@pytest.mark.parametrize("left_out", [("rope_parameters",), ("rope_theta", "rope_scaling")], ids=["version 4", "version 5"])
def test_the_words_of_either_version_suffice(model: ModelConfig, left_out: tuple[str, ...]):
    config = model.but(rope=LLAMA3)
    written = {name: value for name, value in to_hugging_face(config, "float32").items() if name not in left_out}
    assert from_hugging_face(written, Computation()) == config


def test_a_published_model_is_understood():
    config = from_hugging_face(LLAMA_3_8B, Computation("bfloat16", float32_attention=True))
    assert config.rope == LLAMA3
    assert (config.num_layers, config.d_model, config.d_ff, config.head_dim) == (32, 4096, 14336, 128)
    assert (config.compute_dtype, config.float32_attention, config.qk_norm, config.tied_head) == ("bfloat16", True, False, False)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, "found MixtralForCausalLM in config.json: it has a softmax over the chosen experts"),
        ({"architectures": None, "model_type": "gemma"}, "found gemma"),
        ({"hidden_act": "gelu"}, "hidden_act 'silu', found 'gelu'"),
        ({"attention_bias": True}, "attention_bias False, found True"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "default or llama3"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 4.0}}, "needs low_freq_factor, high_freq_factor"),
        ({"rope_theta": None}, "must name rope_theta"),
        ({"vocab_size": None, "hidden_size": None}, "must name hidden_size, vocab_size"),
        ({"num_key_value_heads": 5}, "multiple of num_kv_heads, found 32 and 5"),
    ],
)
def test_other_models_are_refused(change: dict[str, Any], said: str):
    with pytest.raises(CheckpointError, match=said):
        from_hugging_face({**LLAMA_3_8B, **change}, Computation())


def test_a_window_in_some_layers_is_refused(model: ModelConfig):
    written = to_hugging_face(model.but(qk_norm=True, sliding_window=5), "float32")
    some_layers = {"layer_types": ["full_attention", "sliding_attention"]}, {"layer_types": None, "max_window_layers": 1}
    for change in some_layers:
        with pytest.raises(CheckpointError, match="in 1 of 2"):
            from_hugging_face({**written, **change}, Computation())
    assert from_hugging_face({**written, "use_sliding_window": False}, Computation()).sliding_window is None


@pytest.mark.parametrize(
    ("change", "said"),
    [({"num_query_heads": 6, "num_kv_heads": 3}, "multiple of num_query_heads")],
)
def test_what_their_llama_cannot_do_is_not_exported(model: ModelConfig, change: dict[str, Any], said: str):
    with pytest.raises(ConfigError, match=said):
        to_hugging_face(model.but(**change), "float32")
