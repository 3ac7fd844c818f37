"""The loss on held-out text while a phase trains. It reads the weights and changes nothing: the run's bits are those without it."""

from collections.abc import Callable, Mapping
from typing import cast

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from phasewise.trainer.base.errors import DataError
from phasewise.trainer.config import Component, Execution, LossEvaluation, ModelConfig
from phasewise.trainer.data.cache import TokenCache
from phasewise.trainer.data.loader import Batch
from phasewise.trainer.data.rows import PLAIN, ComponentRows, RowRule
from phasewise.trainer.data.shards import fetch
from phasewise.trainer.gradients import Targets
from phasewise.trainer.metrics import Row
from phasewise.trainer.model.params import Params
from phasewise.trainer.sharding import on_mesh
from phasewise.trainer.step import build_objective

MIN_TOKENS = 2
MeanLoss = Callable[..., Float[Array, ""]]
"""Weights, tokens, the documents that they belong to, and which tokens are predicted, where not all are → nats a token."""
Evaluate = Callable[[Params, Params | None], Row]


def is_due(evaluation: LossEvaluation | None, step: int, stop_step: int) -> bool:
    """Whether the weights after `step` updates are evaluated."""
    return evaluation is not None and (step % evaluation.every_steps == 0 or step == stop_step)


def read_held_out(evaluation: LossEvaluation, model: ModelConfig, rule: RowRule = PLAIN) -> dict[Component, Batch]:
    """Each component's first rows, as many as there are up to `evaluation.sequences`; of less than one row's text, all of it as one.

    Args:
        rule: how documents become rows, and which tokens are predicted, as in training.

    Raises:
        DataError: a cache is missing or damaged, is not of the held-out split, or has fewer than two tokens, or no answer to be predicted.
    """
    return {name: _first_rows(name, folder, evaluation, model, rule) for name, folder in sorted(evaluation.caches.items())}


def _first_rows(name: Component, folder: str, evaluation: LossEvaluation, model: ModelConfig, rule: RowRule) -> Batch:
    cache = TokenCache.open(folder)
    if cache.manifest.split != "held_out":
        raise DataError(f"{folder} must be a held-out cache of {name}, found the split '{cache.manifest.split}': name another folder.")
    if cache.manifest.tokens < MIN_TOKENS:
        raise DataError(
            f"{folder} must have at least {MIN_TOKENS} tokens to predict one, found {cache.manifest.tokens}: give it more text."
        )
    whole = 1 if cache.num_rows(model.seq_len) or rule.packing != "chunk" else 0
    laid = ComponentRows(cache, rule, model.seq_len if whole else cache.manifest.tokens)
    rows = np.arange(min(laid.num_rows, evaluation.sequences))
    tokens = np.empty((len(rows), laid.seq_len), np.int32)
    fetch(laid.read(rows, tokens, rows))
    targets = laid.targets(rows) if rule.chooses_targets else None
    if targets is not None and not targets.any():
        raise DataError(
            f"the held-out text of {name} must have tokens that are predicted in its first {len(rows)} rows, found none in {folder} with "
            f"packing {rule.packing} and loss_on {rule.loss_on}: give it more conversations, or raise evaluation.loss_sequences."
        )
    return Batch(tokens, cache.manifest.begin_of_text, packed=laid.segment_ids(rows), targets=targets)


def build_evaluate(
    evaluation: LossEvaluation,
    model: ModelConfig,
    execution: Execution,
    mesh: jax.sharding.Mesh | None = None,
    *,
    rule: RowRule = PLAIN,
) -> Evaluate:
    """Evaluates weights, and their moving average where there is one, on text that is read now.

    Args:
        rule: as in `read_held_out`.

    Raises:
        DataError: as `read_held_out`.
    """
    held_out = read_held_out(evaluation, model, rule)
    mean_loss = build_mean_loss(model, execution, mesh)

    def losses(params: Params) -> dict[Component, Float[Array, ""]]:
        return {name: mean_loss(params, batch.tokens, batch.segment_ids, batch.targets) for name, batch in held_out.items()}

    def evaluate(params: Params, ema: Params | None) -> Row:
        found = losses(params), None if ema is None else losses(ema)
        of_weights, of_average = cast(tuple[dict[str, float], dict[str, float] | None], jax.device_get(found))
        row = as_row("eval_loss", of_weights)
        if of_average is not None:
            row |= as_row("ema_eval_loss", of_average)
            row["ema_gap"] = row["eval_loss"] - row["ema_eval_loss"]
        return row

    return evaluate


def build_mean_loss(model: ModelConfig, execution: Execution, mesh: jax.sharding.Mesh | None = None) -> MeanLoss:
    """Mean cross-entropy in nats a token, without z-loss; compiled once for a shape."""
    objective = build_objective(model, execution)

    def mean_loss(
        params: Params, tokens: Int[Array, "b t"], segment_ids: Int[Array, "b t"], targets: Targets | None = None
    ) -> Float[Array, ""]:
        _, sums = objective(params, tokens, segment_ids, 0.0, targets)
        return sums.cross_entropy / sums.tokens

    return jax.jit(on_mesh(mean_loss, mesh))


def as_row(name: str, losses: Mapping[Component, float]) -> Row:
    """The mean over components, each counting the same, and each by its name."""
    return {name: float(np.mean(list(losses.values()))), **{f"{name}/{component}": float(loss) for component, loss in losses.items()}}
