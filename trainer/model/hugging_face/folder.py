"""Folders of safetensors: written whole or not at all, and read only where they hold exactly the model that they describe."""

import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from phasewise.trainer.base.errors import CheckpointError, ConfigError
from phasewise.trainer.base.json_reader import parse_json
from phasewise.trainer.config import ModelConfig
from phasewise.trainer.model.hugging_face.config import Computation, DTypeName, from_hugging_face, to_hugging_face
from phasewise.trainer.model.hugging_face.tensors import EMBEDDING_NAME, HEAD_NAME, Place, from_tensors, places, to_tensors
from phasewise.trainer.model.params import Params, count_parameters

MAX_SHARD_BYTES = 5_000_000_000
SINGLE_NAME, INDEX_NAME, CONFIG_NAME = "model.safetensors", "model.safetensors.index.json", "config.json"
FLOAT_TYPES = {"F32", "F16", "BF16"}
"""Types that float32 holds without loss."""
SHOWN_NAMES = 3


class TokenizerFiles(NamedTuple):
    """Files by name that go beside the weights, and the ids of the tokens that begin and end a document.

    `ends_of_turns` are those that end an answer, of a model of conversations.
    """

    files: Mapping[str, bytes]
    begin_of_text: int
    end_of_text: int
    ends_of_turns: tuple[int, ...] = ()

    @property
    def ends(self) -> dict[str, int | list[int]]:
        """What `config.json` and `generation_config.json` say of them: text is made until one that ends it."""
        stops = {self.end_of_text, *self.ends_of_turns}
        return {"bos_token_id": self.begin_of_text, "eos_token_id": self.end_of_text if len(stops) == 1 else sorted(stops)}


def write_folder(
    folder: Path, params: Params, config: ModelConfig, *, tokenizer: TokenizerFiles | None = None, dtype: DTypeName = "float32"
) -> None:
    """Weights, `config.json` and what belongs to them. The folder appears when all is in it.

    Raises:
        ConfigError: there is something at `folder` already, or `transformers` has no class for such a model.
    """
    check_writable(folder, config)
    ends = {} if tokenizer is None else tokenizer.ends
    with _appearing(folder) as staged:
        _write_json(staged / CONFIG_NAME, {**to_hugging_face(config, dtype), **ends})
        _write_json(staged / "generation_config.json", ends)
        for name, content in (tokenizer.files if tokenizer else {}).items():
            (staged / name).write_bytes(content)
        _write_weights(staged, params, config, dtype)
        for path in staged.iterdir():
            _sync(path)


def read_folder(folder: Path, *, computation: Computation = Computation()) -> tuple[Params, ModelConfig]:  # noqa: B008  # a frozen tuple
    """The weights, in float32, and the model that they make. A folder does not say in which types it is computed: `computation` does.

    Raises:
        CheckpointError: a file is missing or damaged, the model is one that this decoder cannot compute, or its tensors are not exactly
            those of such a model.
    """
    config = from_hugging_face(read_settings(folder / CONFIG_NAME), computation)
    with ExitStack() as stack:
        files = [stack.enter_context(_opened(path)) for path in _weight_files(folder)]
        holders = {name: file for file in files for name in file.keys()}  # noqa: SIM118  # not a mapping
        _check_tensors(folder, holders, config)
        return from_tensors(lambda name: _tensor(holders[name], name), config), config


def check_writable(folder: Path, config: ModelConfig) -> None:
    """What `write_folder` refuses, before the weights are there.

    Raises:
        ConfigError: there is something at `folder` already, or `transformers` has no class for such a model.
    """
    to_hugging_face(config, "float32")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"the folder to export to must be new or empty, and {folder} is not: choose another, or remove it.")


@contextmanager
def _appearing(folder: Path) -> Iterator[Path]:
    """A folder beside `folder` that takes its place when all went well, and goes away when not."""
    staged = folder.parent / f".{folder.name}.{uuid.uuid4().hex}"
    try:
        staged.mkdir(parents=True)
        yield staged
        os.replace(staged, folder)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}. Choose another folder, or make room.") from None
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _write_weights(folder: Path, params: Params, config: ModelConfig, dtype: DTypeName) -> None:
    """One file, or where that would be more than `MAX_SHARD_BYTES` several and an index. One file's tensors are in memory at a time."""
    shards = _shards(places(config), itemsize=jnp.dtype(dtype).itemsize)
    names = [SINGLE_NAME] if len(shards) == 1 else [f"model-{n:05d}-of-{len(shards):05d}.safetensors" for n in range(1, len(shards) + 1)]
    tensors = to_tensors(params, config)
    for name, shard in zip(names, shards, strict=True):
        save_file({tensor: array.astype(dtype) for tensor, array in (next(tensors) for _ in shard)}, folder / name, {"format": "pt"})
    if len(shards) > 1:
        total = count_parameters(config) * jnp.dtype(dtype).itemsize
        where = {place.tensor: name for name, shard in zip(names, shards, strict=True) for place in shard}
        _write_json(folder / INDEX_NAME, {"metadata": {"total_size": total}, "weight_map": where})


def _shards(wanted: list[Place], *, itemsize: int) -> list[list[Place]]:
    """Runs of tensors that fit into a file; one that alone is larger has a file of its own."""
    shards: list[list[Place]] = [[]]
    room = MAX_SHARD_BYTES
    for place in wanted:
        size = itemsize * int(np.prod(place.shape))
        if shards[-1] and size > room:
            shards.append([])
            room = MAX_SHARD_BYTES
        shards[-1].append(place)
        room -= size
    return shards


def _weight_files(folder: Path) -> list[Path]:
    if (folder / SINGLE_NAME).exists():
        return [folder / SINGLE_NAME]
    if not (folder / INDEX_NAME).exists():
        raise CheckpointError(f"{folder} must hold {SINGLE_NAME} or {INDEX_NAME}, and has neither: only safetensors can be read.")
    return [folder / name for name in sorted(set(read_settings(folder / INDEX_NAME).get("weight_map", {}).values()))]


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    if not path.exists():
        raise CheckpointError(f"{path} is missing, though {INDEX_NAME} names it: fetch the folder again.")
    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except SafetensorError as error:
        raise CheckpointError(f"{path} is damaged: {error}. Fetch or export it again.") from None


def _check_tensors(folder: Path, holders: Mapping[str, Any], config: ModelConfig) -> None:
    """Refuse missing and unexpected tensors, other shapes and types, and a head that is tied but differs from the embedding."""
    wanted = {place.tensor: place for place in places(config)}
    for what, names in (("misses", [name for name in wanted if name not in holders]), ("has unexpected", _unexpected(holders, config))):
        if names:
            more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
            raise CheckpointError(
                f"{folder} {what} tensors: {', '.join(names[:SHOWN_NAMES])}{more}. It must hold exactly what its config.json describes."
            )
    for name, place in wanted.items():
        found = holders[name].get_slice(name)
        if tuple(found.get_shape()) != place.stored_shape:
            raise CheckpointError(
                f"{name} in {folder} must have the shape {list(place.stored_shape)}, found {list(found.get_shape())}: "
                "its config.json is of another model."
            )
        if found.get_dtype() not in FLOAT_TYPES:
            raise CheckpointError(f"{name} in {folder} must be of the type {', '.join(sorted(FLOAT_TYPES))}, found {found.get_dtype()}.")


def _unexpected(holders: Mapping[str, Any], config: ModelConfig) -> list[str]:
    """Tensors that such a model does not have. A tied head may be there if it is the embedding."""
    unexpected = sorted(set(holders) - {place.tensor for place in places(config)})
    if config.tied_head and HEAD_NAME in unexpected and EMBEDDING_NAME in holders:
        head, embedding = (_tensor(holders[name], name) for name in (HEAD_NAME, EMBEDDING_NAME))
        if np.array_equal(head, embedding):
            unexpected.remove(HEAD_NAME)
    return unexpected


def _tensor(file: Any, name: str) -> np.ndarray:
    return file.get_tensor(name)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def read_settings(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a Hugging Face folder. A number that decides is checked by who reads it.

    Raises:
        CheckpointError: the file is missing, cannot be read, or is not one JSON object.
    """
    if not path.exists():
        raise CheckpointError(f"there is no {path.name} in {path.parent}: a Hugging Face folder has one.")
    try:
        found = parse_json(path.read_bytes(), allows_nan=True)
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{path} is no JSON: {error}.") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} must hold one JSON object, found {type(found).__name__}.")
    return found


def _sync(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
