"""Hugging Face folders of safetensors: written atomically, and read only if their tensors match their `config.json`."""

import itertools
import json
import math
import operator
import os
import shutil
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from phasewise.trainer.base.errors import CheckpointError, ConfigError
from phasewise.trainer.config import ModelConfig
from phasewise.trainer.model.hugging_face_config import Computation, DTypeName, read_model, read_settings, to_hugging_face
from phasewise.trainer.model.params import EXPERT, LAYER, Params, count_parameters, param_specs

EMBEDDING_NAME, HEAD_NAME = "model.embed_tokens.weight", "lm_head.weight"
SINGLE_NAME, INDEX_NAME, CONFIG_NAME = "model.safetensors", "model.safetensors.index.json", "config.json"
MAX_SHARD_BYTES = 5_000_000_000
FLOAT_TYPES = {"F32", "F16", "BF16"}  # types that convert to float32 without loss
SHOWN_NAMES = 3


class Place(NamedTuple):
    """One tensor of the folder and its place in our tree."""

    tensor: str
    path: tuple[str, ...]  # the keys of our weight in the tree
    indices: tuple[int, ...]  # position of the tensor along the weight's stacking axes
    is_matrix: bool
    shape: tuple[int, ...]  # our shape, without the stacking axes
    stored_shape: tuple[int, ...]  # the tensor's shape in the folder: outputs × inputs for a matrix


class TokenizerFiles(NamedTuple):
    """File name → content for files next to the weights, and the ids of BOS and EOS."""

    files: Mapping[str, bytes]
    begin_of_text: int | None
    end_of_text: int
    ends_of_turns: tuple[int, ...] = ()  # tokens that end an answer, for a model of conversations


def places(config: ModelConfig) -> list[Place]:
    """Return every tensor in the order of the folder: the embedding, layer by layer, the last norm, the head."""
    layered: dict[int, list[Place]] = {layer: [] for layer in range(config.num_layers)}
    outside: list[Place] = []
    for name, found in param_specs(config).items():
        specs = {(name, key): spec for key, spec in found.items()} if isinstance(found, dict) else {(name,): found}
        for path, spec in specs.items():
            stacking, inputs = spec.num_stacking_axes, spec.inputs
            shape = stored = spec.shape[stacking:]
            if inputs is not None:
                stored = math.prod(shape[inputs:]), math.prod(shape[:inputs])
            for index in itertools.product(*(range(size) for size in spec.shape[:stacking])):
                at = dict(zip(spec.axes, index, strict=False))
                layer = spec.layers[at[LAYER]] if spec.layers else None
                tensor = spec.tensor.format(layer=layer, expert=at.get(EXPERT))
                place = Place(tensor, path, index, inputs is not None, shape, stored)
                (outside if layer is None else layered[layer]).append(place)
    embedding, *rest = outside
    return [embedding, *itertools.chain.from_iterable(layered.values()), *rest]


def to_tensor(params: Params, place: Place) -> np.ndarray:
    """Return one tensor of the folder, as float32."""
    weight = np.asarray(reduce(operator.getitem, place.path, params))[place.indices]
    return np.ascontiguousarray(weight.reshape(place.stored_shape[::-1]).T if place.is_matrix else weight)


def check_writable(folder: Path, config: ModelConfig) -> None:
    """Raise ConfigError if the folder is not empty, or `transformers` has no class for such a model."""
    to_hugging_face(config, "float32")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"the folder to export to must be new or empty, and {folder} is not: choose another, or remove it.")


def write_folder(
    folder: Path, params: Params, config: ModelConfig, *, tokenizer: TokenizerFiles | None = None, dtype: DTypeName = "float32"
) -> None:
    """Write weights, `config.json` and the tokenizer's files. Only the complete folder appears. Raises ConfigError as `check_writable`."""
    check_writable(folder, config)
    ends: dict[str, int | list[int] | None] = {}
    if tokenizer is not None:
        stops = {tokenizer.end_of_text, *tokenizer.ends_of_turns}
        ends = {"bos_token_id": tokenizer.begin_of_text, "eos_token_id": tokenizer.end_of_text if len(stops) == 1 else sorted(stops)}
    described: dict[str, dict[str, Any]] = {CONFIG_NAME: {**to_hugging_face(config, dtype), **ends}, "generation_config.json": ends}

    itemsize = jnp.dtype(dtype).itemsize
    shards: list[list[Place]] = [[]]
    room = MAX_SHARD_BYTES
    for place in places(config):
        size = itemsize * int(np.prod(place.shape))
        if shards[-1] and size > room:
            shards.append([])
            room = MAX_SHARD_BYTES
        shards[-1].append(place)
        room -= size
    names = [SINGLE_NAME] if len(shards) == 1 else [f"model-{n:05d}-of-{len(shards):05d}.safetensors" for n in range(1, len(shards) + 1)]
    if len(shards) > 1:
        file_of = {place.tensor: name for name, shard in zip(names, shards, strict=True) for place in shard}
        described[INDEX_NAME] = {"metadata": {"total_size": count_parameters(config) * itemsize}, "weight_map": file_of}

    staged = folder.parent / f".{folder.name}.{uuid.uuid4().hex}"
    try:
        staged.mkdir(parents=True)
        for name, value in described.items():
            (staged / name).write_text(json.dumps(value, indent=2) + "\n")
        for name, content in (tokenizer.files if tokenizer else {}).items():
            (staged / name).write_bytes(content)
        for name, shard in zip(names, shards, strict=True):
            save_file({place.tensor: to_tensor(params, place).astype(dtype) for place in shard}, staged / name, {"format": "pt"})
        for path in staged.iterdir():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        os.replace(staged, folder)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}. Choose another folder, or make room.") from None
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def read_folder(folder: Path, *, computation: Computation = Computation()) -> tuple[Params, ModelConfig]:  # noqa: B008  # a frozen tuple
    """Return the float32 weights and the model. Raises CheckpointError if files are damaged, or do not match a supported model."""
    config = read_model(folder, computation)
    wanted = {place.tensor: place for place in places(config)}
    if (folder / SINGLE_NAME).exists():
        paths = [folder / SINGLE_NAME]
    elif (folder / INDEX_NAME).exists():
        paths = [folder / name for name in sorted(set(read_settings(folder / INDEX_NAME).get("weight_map", {}).values()))]
    else:
        raise CheckpointError(f"{folder} must hold {SINGLE_NAME} or {INDEX_NAME}, and has neither: only safetensors can be read.")
    with ExitStack() as stack:
        files: list[Any] = []
        for path in paths:
            if not path.exists():
                raise CheckpointError(f"{path} is missing, though {INDEX_NAME} names it: fetch the folder again.")
            try:
                files.append(stack.enter_context(safe_open(path, framework="numpy")))
            except SafetensorError as error:
                raise CheckpointError(f"{path} is damaged: {error}. Fetch or export it again.") from None
        holders = {name: file for file in files for name in file.keys()}  # noqa: SIM118  # not a mapping
        unexpected = sorted(set(holders) - set(wanted))
        if config.tied_head and HEAD_NAME in unexpected and EMBEDDING_NAME in holders:
            head, embedding = (holders[name].get_tensor(name) for name in (HEAD_NAME, EMBEDDING_NAME))
            if np.array_equal(head, embedding):
                unexpected.remove(HEAD_NAME)
        for problem, names in (("misses", [name for name in wanted if name not in holders]), ("has unexpected", unexpected)):
            if names:
                more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
                shown = f"{', '.join(names[:SHOWN_NAMES])}{more}"
                raise CheckpointError(f"{folder} {problem} tensors: {shown}. It must hold exactly what its config.json describes.")
        for name, place in wanted.items():
            found = holders[name].get_slice(name)
            if tuple(found.get_shape()) != place.stored_shape:
                raise CheckpointError(
                    f"{name} in {folder} must have the shape {list(place.stored_shape)}, found {list(found.get_shape())}: "
                    "its config.json is of another model."
                )
            if found.get_dtype() not in FLOAT_TYPES:
                raise CheckpointError(
                    f"{name} in {folder} must be of the type {', '.join(sorted(FLOAT_TYPES))}, found {found.get_dtype()}."
                )
        params = jax.tree.map(lambda spec: np.empty(spec.shape, np.float32), param_specs(config))
        for name, place in wanted.items():
            tensor = holders[name].get_tensor(name)
            reduce(operator.getitem, place.path, params)[place.indices] = tensor.T.reshape(place.shape) if place.is_matrix else tensor
        return jax.tree.map(jnp.asarray, params), config
