"""Checkpoints with Orbax: saved in the background, committed atomically, and carrying what they were trained on.

A checkpoint named N is the state after N updates. Beside the state stands `about`: the data order contract, whether an EMA is in it, and
the weights' shapes.
"""

from pathlib import Path
from types import TracebackType
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from trainer.config import CheckpointPolicy, ModelConfig, RunConfig
from trainer.errors import CheckpointError
from trainer.model.params import Params, abstract_params
from trainer.state import TrainState, abstract_state, init_state, params_digest


class Checkpoints:
    """The checkpoints of one run, in `folder`. Use it as a context: leaving it waits for the last save."""

    def __init__(self, folder: Path, policy: CheckpointPolicy):
        self.folder = folder.resolve()
        options = ocp.CheckpointManagerOptions(
            max_to_keep=1, keep_period=policy.every_steps if policy.keep_all else None, cleanup_tmp_directories=True
        )
        self._manager = ocp.CheckpointManager(self.folder, options=options)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._manager.close()

    def latest_step(self) -> int | None:
        """The newest committed checkpoint; one that was being written when the process died does not count."""
        return self._manager.latest_step()

    def save(self, step: int, state: TrainState, contract: dict[str, Any]) -> None:
        """Copy the state out and write it in the background. Saving a step twice does nothing."""
        if step in self._manager.all_steps():
            return
        about = {"contract": contract, "has_ema": state.ema is not None, "shapes": _shapes(state.params)}
        self._manager.save(step, args=ocp.args.Composite(state=ocp.args.StandardSave(state), about=ocp.args.JsonSave(about)))

    def restore(self, step: int, run: RunConfig, contract: dict[str, Any]) -> TrainState:
        """The state of this run at `step`.

        Raises:
            CheckpointError: the data order has changed since; going on would train on other batches than the run declared.
        """
        path = self.folder / str(step)
        found = read_about(path)["contract"]
        if found != contract:
            changed = ", ".join(sorted(name for name in {*found, *contract} if found.get(name) != contract.get(name)))
            raise CheckpointError(
                f"{path} was trained on another data order: {changed} changed since. "
                f"Restore what it was, or remove {self.folder} to start anew."
            )
        return _read_state(path, run)


def read_about(path: Path) -> dict[str, Any]:
    """What stands beside the state: `contract` and `has_ema`.

    Raises:
        CheckpointError: there is no checkpoint.
    """
    if not (path / "about").exists():
        raise CheckpointError(f"no checkpoint at {path}. Train the phase that ends there first.")
    with ocp.Checkpointer(ocp.JsonCheckpointHandler()) as reader:
        return reader.restore(path / "about")


def read_params(path: Path, config: ModelConfig, *, ema: bool = False) -> Params:
    """The weights alone, or their moving average, from a checkpoint.

    Raises:
        CheckpointError: there is no checkpoint, or no moving average in it.
    """
    about = read_about(path)
    _check_shapes(path, about, config)
    if ema and not about["has_ema"]:
        raise CheckpointError(f"{path} has no moving average of the weights.")
    wanted = _on_this_device({"ema" if ema else "params": abstract_params(config)})
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        restored = reader.restore(
            path.resolve() / "state",
            args=ocp.args.PyTreeRestore(
                item=wanted, restore_args=ocp.checkpoint_utils.construct_restore_args(wanted), partial_restore=True
            ),
        )
    return restored["ema" if ema else "params"]


def state_to_start_from(run: RunConfig) -> TrainState:
    """The first state of a phase: fresh weights, or the parent's state with the declared parts made anew.

    Raises:
        CheckpointError: a part of the state is neither carried nor declared fresh.
    """
    if run.start is None:
        return init_state(run)
    path, wants_ema = Path(run.start.checkpoint), run.keeps_average
    has_ema = bool(read_about(path)["has_ema"])
    if wants_ema and not has_ema and "ema" not in run.start.fresh:
        raise CheckpointError(
            f"{path} has no moving average, and phase {run.phase} does not declare it fresh: add 'ema' to its hand-off's `fresh`."
        )
    state = _read_state(path, run)
    found = params_digest(state.params)
    if found != run.start.params_digest:
        raise CheckpointError(
            f"{path} holds other weights than phase {run.phase} was planned from: expected {run.start.params_digest[:12]}, "
            f"found {found[:12]}. Run the recipe again."
        )
    if "optimizer" in run.start.fresh:
        state = state._replace(optimizer=init_state(run).optimizer)
    if not wants_ema:
        return state._replace(ema=None)
    if state.ema is None or "ema" in run.start.fresh:
        return state._replace(ema=jax.tree.map(jnp.copy, state.params))
    return state


def _read_state(path: Path, run: RunConfig) -> TrainState:
    """A whole state, as it was saved.

    Raises:
        CheckpointError: its weights have other shapes than the run's model.
    """
    about = read_about(path)
    _check_shapes(path, about, run.model)
    wanted = _on_this_device(abstract_state(run, with_ema=bool(about["has_ema"])))
    with ocp.StandardCheckpointer() as reader:
        return reader.restore(path.resolve() / "state", wanted)


def _shapes(params: Params) -> dict[str, list[int]]:
    """Each weight's path and shape."""
    return {jax.tree_util.keystr(path): list(leaf.shape) for path, leaf in jax.tree_util.tree_leaves_with_path(params)}


def _check_shapes(path: Path, about: dict[str, Any], config: ModelConfig) -> None:
    found, wanted = about["shapes"], _shapes(abstract_params(config))
    differing = [f"{name} is {found.get(name)}, not {wanted.get(name)}" for name in wanted | found if found.get(name) != wanted.get(name)]
    if differing:
        raise CheckpointError(f"{path} does not fit the model: {'; '.join(differing[:3])}{' …' if len(differing) > 3 else ''}.")


def _on_this_device(tree: Any) -> Any:
    """Say where the arrays shall be, so that nothing depends on where they were."""
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here), tree)
