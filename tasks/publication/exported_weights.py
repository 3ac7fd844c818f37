"""Which weights of a phase are exported: the last, their moving average, or the mean of its last checkpoints; and what a folder holds."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from phasewise.trainer.base.errors import CheckpointError, ConfigError
from phasewise.trainer.checkpoints.average import average_of_last
from phasewise.trainer.checkpoints.checkpointer import read_params
from phasewise.trainer.config import ModelConfig, RunConfig
from phasewise.trainer.model.hugging_face import read_folder, read_settings
from phasewise.trainer.model.hugging_face.config import DTypeName, to_hugging_face
from phasewise.trainer.model.params import Params
from phasewise.trainer.state import params_digest

LAST, EMA, AVERAGE = "last", "ema", "average:"


def check_weights(weights: str) -> None:
    """Refuse a name of weights that is none.

    Raises:
        ConfigError: it is not `last`, `ema` or `average:N` with N of at least 2.
    """
    count = weights.removeprefix(AVERAGE)
    if weights in (LAST, EMA) or (weights.startswith(AVERAGE) and count.isdecimal() and int(count) > 1):
        return
    raise ConfigError(f"the weights must be last, ema or average:N with N of at least 2, found {weights!r}.")


def weights_of(run: RunConfig, checkpoint: Path, weights: str) -> tuple[Params, tuple[int, ...]]:
    """The weights, and the steps that they were made of.

    Raises:
        CheckpointError: the checkpoint is not whole, has no moving average, or there are fewer than N.
        ConfigError: as `check_weights`.
    """
    check_weights(weights)
    if weights.startswith(AVERAGE):
        return average_of_last(checkpoint.parent, run, int(weights.removeprefix(AVERAGE)))
    return read_params(checkpoint, run.model, ema=weights == EMA), (run.stop_step,)


def differing_weights(folder: Path, run: RunConfig, checkpoint: Path, origin: Mapping[str, Any]) -> str | None:
    """Why the tensors of an exported folder are not the weights that it says, in words; None where they are.

    Raises:
        PhasewiseError: the folder or a checkpoint does not read.
    """
    params, steps = weights_of(run, checkpoint, str(origin["weights"]))
    if (found := params_digest(params)) != origin["params_digest"]:
        return f"{origin['weights']} has the digest {found[:16]}, the folder says {str(origin['params_digest'])[:16]}"
    if list(steps) != list(origin["steps"]):
        return f"{origin['weights']} is of the steps {list(steps)}, the folder says {origin['steps']}"
    if differing := differing_fields(folder, run.model, _dtype_name(origin)):
        return f"config.json describes another model than the run's: {', '.join(differing)}"
    import jax

    exported, _config = read_folder(folder)
    rounded = jax.tree.map(lambda leaf: np.asarray(np.asarray(leaf).astype(jax.numpy.dtype(origin["dtype"])), np.float32), params)
    if params_digest(rounded) != params_digest(exported):
        return f"its tensors are not {origin['weights']} of the checkpoint as {origin['dtype']}"
    return None


def differing_fields(folder: Path, model: ModelConfig, dtype: DTypeName) -> list[str]:
    """The fields of an exported folder's `config.json` that are not as they would be written for this model."""
    expected = json.loads(json.dumps(to_hugging_face(model, dtype)))
    found = read_settings(folder / "config.json")
    return sorted(name for name, value in expected.items() if found.get(name) != value)


def _dtype_name(origin: Mapping[str, Any]) -> DTypeName:
    if origin["dtype"] not in ("float32", "bfloat16"):
        raise CheckpointError(f"an exported folder must be of float32 or bfloat16, found {origin['dtype']}.")
    return origin["dtype"]
