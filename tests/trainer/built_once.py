"""The compiled update, built once for all runs that are alike: to trace and compile it takes seconds, to train a tiny run part of one."""

import jax

from phasewise.trainer.config import Execution, ModelConfig, Optimizer
from phasewise.trainer.step import TrainStep
from phasewise.trainer.step import build_train_step as build

Alike = tuple[str, str, str, jax.sharding.Mesh | None]
_built: dict[Alike, TrainStep] = {}


def build_train_step(
    model: ModelConfig, optimizer: Optimizer, execution: Execution | None = None, mesh: jax.sharding.Mesh | None = None
) -> TrainStep:
    """As `trainer.step` builds it. All that is built from is in the key."""
    execution = execution or Execution()
    key = (model.model_dump_json(), optimizer.model_dump_json(), execution.model_dump_json(), mesh)
    if key not in _built:
        _built[key] = build(model, optimizer, execution, mesh)
    return _built[key]
