"""One update again from a checkpoint, with parts of the weights frozen: the part whose freezing removes a rise of the loss caused it.

The loss of step N is measured before its update, with the weights of step N - 1. The replay restores the newest checkpoint up to step
N - 2, or the start of the phase, and trains to N - 2 with the same batches. It takes the weights of N - 1 from their checkpoint, or trains
once more. Then it measures the batch of step N with each part at the values of N - 2 and all other weights at those of N - 1.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.checkpoints.checkpointer import Checkpoints
from phasewise.trainer.checkpoints.files import is_committed, saved_steps
from phasewise.trainer.checkpoints.state import state_to_start_from
from phasewise.trainer.config import RunConfig
from phasewise.trainer.config.execution import Mesh
from phasewise.trainer.data.loader import Loader
from phasewise.trainer.interventions import scheduled_at
from phasewise.trainer.loss import LossSums
from phasewise.trainer.model.params import Params, param_specs
from phasewise.trainer.skipped_steps import CONTRACT_NAME, read_skipped_steps
from phasewise.trainer.step import TrainState, build_objective, build_train_step


def replay(run: RunConfig, step: int, pieces: Sequence[tuple[int, int, int]] = ()) -> dict[str, Any]:
    """Train to step `step` - 1 on one device, and measure the batch of `step` with parts of the weights frozen.

    Args:
        pieces: row, first token and number of tokens of documents in the batch.

    Returns:
        from_step: the checkpoint. loss, loss_before: with all weights of `step` - 1, and of `step` - 2.
        parts: name and layer of each part, its loss when frozen, and the share of the rise that this removes, largest first.
        named: the first part if it removes at least half of the rise, otherwise None.
        pieces: loss of each piece.
    """
    run = run.but(execution=run.execution.but(mesh=Mesh(), remat="none", attention="auto"))
    loader, specs = Loader(run), param_specs(run.model)
    objective, batch = build_objective(run.model, run.execution), loader.batch(step - 1)
    before, after, from_step = _weights(run, loader, max(step - 2, run.start_step), step - 1)

    leaves = jax.tree_util.tree_leaves_with_path(specs)

    @jax.jit
    def sums_of(before: Params, after: Params, layer: int, leaf: int, *rows: Array) -> LossSums:
        numbers = iter(range(len(leaves)))

        def mixed(spec: Any, old: Array, new: Array) -> Array:
            is_leaf = next(numbers) == leaf
            is_frozen = (jnp.asarray(spec.layers) == layer).reshape(-1, *(1,) * (old.ndim - 1)) if spec.layers else is_leaf
            return jnp.where(is_frozen, old, new)

        tokens, segment_ids, *targets = rows
        return objective(jax.tree.map(mixed, specs, before, after), tokens, segment_ids, 0.0, *targets)[1]

    whole = batch.tokens, batch.segment_ids, *(() if batch.targets is None else (batch.targets,))

    def loss_with(before: Params, after: Params, layer: int = -1, leaf: int = -1) -> float:
        sums = sums_of(before, after, layer, leaf, *whole)
        return float(sums.cross_entropy / sums.tokens)

    loss, loss_before = loss_with(after, after), loss_with(before, before)
    parts: list[dict[str, Any]] = []
    for layer in sorted({layer for _, spec in leaves for layer in spec.layers}):
        parts.append({"name": f"layer {layer}", "layer": layer, "loss": loss_with(before, after, layer=layer)})
    for number, (path, spec) in enumerate(leaves):
        if not spec.layers:
            parts.append({"name": path[-1].key, "layer": None, "loss": loss_with(before, after, leaf=number)})
    rise = loss - loss_before
    parts = sorted(({**part, "removes": (loss - part["loss"]) / rise if rise else 0.0} for part in parts), key=lambda part: part["loss"])
    losses: list[float] = []
    if pieces:  # each piece is its row once more, with only the tokens of the piece predicted
        rows, first, count = np.array(pieces).T
        places = np.arange(batch.tokens.shape[1])
        targets = (
            (places >= first[:, None]) & (places < (first + count)[:, None]) & (True if batch.targets is None else batch.targets[rows])
        )
        of_rows = np.asarray(sums_of(after, after, -1, -1, batch.tokens[rows], batch.segment_ids[rows], targets).rows)
        losses = np.divide(of_rows[0], of_rows[1], out=np.full(len(rows), np.nan, np.float32), where=of_rows[1] > 0).tolist()
    named = parts[0]["name"] if rise > 0 and parts[0]["removes"] >= 0.5 else None
    return {"from_step": from_step, "loss": loss, "loss_before": loss_before, "parts": parts, "named": named, "pieces": losses}


def _weights(run: RunConfig, loader: Loader, first: int, last: int) -> tuple[Params, Params, int]:
    """Return the weights after `first` and after `last` updates, and the checkpoint from which the replay started."""
    folder, skipped = RunFolder(run.output), read_skipped_steps(Path(run.output))
    contract = {**loader.contract(), **({CONTRACT_NAME: skipped.as_json()} if skipped else {})}
    saved = [step for step in saved_steps(folder.checkpoints) if is_committed(folder.checkpoint(step))]
    with Checkpoints(folder.checkpoints, run) as checkpoints:
        start = max((step for step in saved if step <= first), default=run.start_step)
        state: TrainState = checkpoints.restore(start, contract) if start in saved else state_to_start_from(run, None)
        update, before = build_train_step(run.model, run.optimizer, run.execution), state.params
        for step in range(start, last):
            if step == first:
                before = jax.tree.map(jnp.copy, state.params)  # the update donates the state
                if last in saved:
                    return before, checkpoints.restore(last, contract).params, start
            if step not in skipped:
                batch = loader.batch(step)
                targets = () if batch.targets is None else (batch.targets,)
                state, _ = update(state, batch.tokens, batch.segment_ids, scheduled_at(run, step), *targets)
        return before, state.params, start
