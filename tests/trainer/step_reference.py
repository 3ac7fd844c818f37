"""A whole update in float64 NumPy, with every intervention, written from their descriptions; gradients are given to it."""

import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from phasewise.trainer.config import Optimizer
from phasewise.trainer.interventions import Limit, Scheduled
from tests.trainer.optimizer_reference import Reference, Weights

NOT_STACKED = {"embedding", "final_norm", "head"}


def norm(weights: Weights) -> float:
    return math.sqrt(sum(float(np.sum(weight**2)) for weight in weights.values()))


def limit_from(window: "deque[float]", limit: Limit) -> float:
    if len(window) < limit.min_samples or limit.sigmas == math.inf:
        return math.inf
    return float(np.mean(window) + limit.sigmas * max(float(np.std(window)), 1e-6))


@dataclass
class StepReference:
    """The state after some updates. `measured` is of the last one, under the names of `StepMetrics`."""

    optimizer_config: Optimizer
    params: Weights
    window: int
    optimizer: Reference = field(init=False)
    ema: Weights = field(init=False)
    losses: "deque[float]" = field(init=False)
    grad_norms: "deque[float]" = field(init=False)
    update_norms: "deque[float]" = field(init=False)
    measured: dict[str, float] = field(default_factory=dict[str, float])

    def __post_init__(self) -> None:
        self.optimizer = Reference(self.optimizer_config, self.params)
        self.ema = dict(self.params)
        self.losses, self.grad_norms, self.update_norms = (deque(maxlen=self.window) for _ in range(3))

    def update(self, loss: float, grads: Weights, scheduled: Scheduled) -> None:
        grad_norm = norm(grads)
        max_loss = limit_from(self.losses, scheduled.skip_step)
        max_skip_grad_norm = limit_from(self.grad_norms, scheduled.skip_step)
        finite = math.isfinite(loss) and math.isfinite(grad_norm)
        is_on = scheduled.skip_step.sigmas < math.inf
        skipped = is_on and not (finite and loss <= max_loss and grad_norm <= max_skip_grad_norm)
        self.measured = {"max_loss": max_loss, "max_skip_grad_norm": max_skip_grad_norm, "skipped": skipped, "grad_norm": grad_norm}
        if skipped:
            self.measured["update_norm"] = 0.0
        else:
            self.apply(grads, grad_norm, scheduled)
        if math.isfinite(loss):
            self.losses.append(loss)
        if math.isfinite(grad_norm):
            self.grad_norms.append(grad_norm)
        self.measured["param_norm"] = norm(self.params)

    def apply(self, grads: Weights, grad_norm: float, scheduled: Scheduled) -> None:
        factor = min(1.0, scheduled.max_grad_norm / grad_norm)
        direction = self.optimizer.update({name: factor * grad for name, grad in grads.items()}, self.params, scheduled.decay_scale)
        direction, rms_factor = clip_rms(direction, scheduled.max_update_rms or math.inf)
        direction_norm = norm(direction)
        max_norm = limit_from(self.update_norms, scheduled.max_update_norm)
        update_factor = min(1.0, max_norm / direction_norm)
        self.update_norms.append(direction_norm)
        rate = scheduled.learning_rate * update_factor
        self.params = {name: weight - rate * direction[name] for name, weight in self.params.items()}
        decay = scheduled.ema_decay
        self.ema = {name: decay * self.ema[name] + (1 - decay) * weight for name, weight in self.params.items()}
        self.measured |= {
            "grad_clip_factor": factor, "rms_clip_factor": rms_factor, "direction_norm": direction_norm, "max_update_norm": max_norm,
            "update_clip_factor": update_factor, "update_norm": rate * direction_norm,
        }  # fmt: skip


def clip_rms(direction: Weights, max_rms: float) -> tuple[Weights, float]:
    clipped: Weights = {}
    factors: list[float] = []
    for name, update in direction.items():
        layers = [update] if name in NOT_STACKED else list(update)
        of_layers = [min(1.0, max_rms / max(math.sqrt(float(np.mean(layer**2))), 1e-30)) for layer in layers]
        scaled = [factor * layer for factor, layer in zip(of_layers, layers, strict=True)]
        clipped[name] = scaled[0] if name in NOT_STACKED else np.stack(scaled)
        factors = factors + of_layers
    return clipped, min(factors)
