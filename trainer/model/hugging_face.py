"""Folders of safetensors: written whole or not at all, and read only where they hold exactly the model that they describe."""

import itertools
import json
import math
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from phasewise.trainer.base.errors import CheckpointError, ConfigError
from phasewise.trainer.base.storage import parse_json
from phasewise.trainer.config import ModelConfig
from phasewise.trainer.model.hugging_face_config import Computation, DTypeName, from_hugging_face, to_hugging_face
from phasewise.trainer.model.params import EXPERT, LAYER, Params, ParamSpec, count_parameters, param_specs

EMBEDDING_NAME, HEAD_NAME = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True)
class Place:
    """One tensor of the folder and where it is in our tree.

    Attributes:
        path: the keys of our weight in the tree.
        index: where the tensor is along the weight's stacking axes.
        inputs: how many axes it reads from; None is stored as it is.
        shape: ours, without the stacking axes.
    """

    tensor: str
    path: tuple[str, ...]
    index: tuple[int, ...]
    inputs: int | None
    shape: tuple[int, ...]

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The tensor's shape in the folder."""
        if self.inputs is None:
            return self.shape
        return math.prod(self.shape[self.inputs :]), math.prod(self.shape[: self.inputs])

    def to_stored(self, weight: np.ndarray) -> np.ndarray:
        """Their layout of our weight."""
        return np.ascontiguousarray(weight.reshape(self.stored_shape[::-1]).T) if self.inputs else np.ascontiguousarray(weight)

    def from_stored(self, tensor: np.ndarray) -> np.ndarray:
        """Our layout of their tensor, without a copy."""
        return tensor.T.reshape(self.shape) if self.inputs else tensor


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


def places(config: ModelConfig) -> list[Place]:
    """Every tensor of such a model, in their order: the embedding, layer by layer, the last norm, the head."""
    layered: dict[int, list[Place]] = {layer: [] for layer in range(config.num_layers)}
    outside: list[Place] = []
    for path, spec in _named_specs(param_specs(config)):
        for place, layer in _places_of(path, spec):
            (outside if layer is None else layered[layer]).append(place)
    embedding, *rest = outside
    return [embedding, *itertools.chain.from_iterable(layered.values()), *rest]


def _named_specs(specs: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], ParamSpec]]:
    for name, spec in specs.items():
        if isinstance(spec, dict):
            yield from _named_specs(spec, (*path, name))
        else:
            yield (*path, name), spec


def _places_of(path: tuple[str, ...], spec: ParamSpec) -> Iterator[tuple[Place, int | None]]:
    stacking = spec.num_stacking_axes
    shape = spec.shape[stacking:]
    for index in itertools.product(*(range(size) for size in spec.shape[:stacking])):
        at = dict(zip(spec.axes, index, strict=False))
        layer = spec.layers[at[LAYER]] if spec.layers else None
        tensor = spec.tensor.format(layer=layer, expert=at.get(EXPERT))
        yield Place(tensor, path, index, spec.inputs, shape), layer


def to_tensors(params: Params, config: ModelConfig) -> Iterator[tuple[str, np.ndarray]]:
    """Each tensor with its name, float32, made when it is asked for."""
    for place in places(config):
        array: np.ndarray = np.asarray(_at(params, place.path))
        yield place.tensor, place.to_stored(array[place.index])


def from_tensors(read: Callable[[str], np.ndarray], config: ModelConfig) -> Params:
    """Our tree of float32 weights; `read` gives a tensor by its name, in its stored shape."""
    params = jax.tree.map(lambda spec: np.empty(spec.shape, np.float32), param_specs(config))
    for place in places(config):
        _at(params, place.path)[place.index] = place.from_stored(read(place.tensor))
    return jax.tree.map(jnp.asarray, params)


def _at(tree: dict[str, Any], path: tuple[str, ...]) -> Any:
    leaf: Any = tree
    for key in path:
        leaf = leaf[key]
    return leaf


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
        wanted = places(config)
        itemsize = jnp.dtype(dtype).itemsize
        shards: list[list[Place]] = [[]]
        room = MAX_SHARD_BYTES
        for place in wanted:
            size = itemsize * int(np.prod(place.shape))
            if shards[-1] and size > room:
                shards.append([])
                room = MAX_SHARD_BYTES
            shards[-1].append(place)
            room -= size
        names = (
            [SINGLE_NAME] if len(shards) == 1 else [f"model-{n:05d}-of-{len(shards):05d}.safetensors" for n in range(1, len(shards) + 1)]
        )
        tensors = to_tensors(params, config)
        for name, shard in zip(names, shards, strict=True):
            save_file({tensor: array.astype(dtype) for tensor, array in (next(tensors) for _ in shard)}, staged / name, {"format": "pt"})
        if len(shards) > 1:
            total = count_parameters(config) * jnp.dtype(dtype).itemsize
            where = {place.tensor: name for name, shard in zip(names, shards, strict=True) for place in shard}
            _write_json(staged / INDEX_NAME, {"metadata": {"total_size": total}, "weight_map": where})
        for path in staged.iterdir():
            with open(path, "rb") as file:
                os.fsync(file.fileno())


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
        wanted = {place.tensor: place for place in places(config)}
        unexpected = sorted(set(holders) - {place.tensor for place in places(config)})
        if config.tied_head and HEAD_NAME in unexpected and EMBEDDING_NAME in holders:
            head, embedding = (_tensor(holders[name], name) for name in (HEAD_NAME, EMBEDDING_NAME))
            if np.array_equal(head, embedding):
                unexpected.remove(HEAD_NAME)
        for what, names in (("misses", [name for name in wanted if name not in holders]), ("has unexpected", unexpected)):
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
                raise CheckpointError(
                    f"{name} in {folder} must be of the type {', '.join(sorted(FLOAT_TYPES))}, found {found.get_dtype()}."
                )
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
    staged = folder.parent / f".{folder.name}.{uuid.uuid4().hex}"
    try:
        staged.mkdir(parents=True)
        yield staged
        os.replace(staged, folder)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}. Choose another folder, or make room.") from None
    finally:
        shutil.rmtree(staged, ignore_errors=True)


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
