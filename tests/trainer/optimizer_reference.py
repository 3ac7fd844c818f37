"""Optimizers in float64 NumPy, weight by weight and layer by layer, written from the papers; nothing here reads the trainer's tables."""

from typing import Any

import jax
import numpy as np

from phasewise.trainer.config import AdamW, Muon, NAdamW, Optimizer

Weights = dict[str, np.ndarray]  # name → values; names are unique in the tree
DECAYING = {"query", "key", "value", "output", "gate", "up", "down", "head"}
COEFFICIENTS = {
    "jordan": 5 * [(3.4445, -4.7750, 2.0315)],
    "dion": [
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ],
}


def in_numpy(tree: Any) -> Weights:
    return {path[-1].key: np.array(leaf, np.float64) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


class Reference:
    """One optimizer's state. `update` gives each weight's direction, to be multiplied by minus the learning rate."""

    def __init__(self, config: Optimizer, params: Weights) -> None:
        self.config, self.count = config, 0
        self.m = {name: np.zeros_like(weight) for name, weight in params.items()}
        self.v = {name: np.zeros_like(weight) for name, weight in params.items()}

    def update(self, grads: Weights, params: Weights, decay_scale: float) -> Weights:
        self.count += 1
        if isinstance(self.config, Muon) and self.config.max_adam_grad_norm is not None:
            of_adam = [name for name in grads if name not in DECAYING - {"head"}]
            norm = np.sqrt(sum(np.sum(grads[name] ** 2) for name in of_adam))
            grads = grads | {name: grads[name] * min(1.0, self.config.max_adam_grad_norm / norm) for name in of_adam}
        return {name: self.direction(name, grads[name], params[name], decay_scale) for name in params}

    def direction(self, name: str, grad: np.ndarray, weight: np.ndarray, decay_scale: float) -> np.ndarray:
        config = self.config
        decays = name in DECAYING
        if not isinstance(config, Muon):
            return self.adam(name, grad, config) + decays * decay_scale * config.weight_decay * weight
        if name in DECAYING - {"head"}:
            return self.muon(name, grad, config) + decay_scale * config.weight_decay * weight
        direction = self.adam(name, grad, config.adam) + decays * decay_scale * config.adam.weight_decay * weight
        return config.adam_learning_rate_scale * direction

    def adam(self, name: str, grad: np.ndarray, config: Any) -> np.ndarray:
        """Kingma and Ba (2015), Algorithm 1; Dozat (2016), Algorithm 2, where the momentum of the next step is used."""
        assert isinstance(config, AdamW | NAdamW) or config.kind == "adamc"
        b1, b2, t = config.beta1, config.beta2, self.count
        self.m[name] = b1 * self.m[name] + (1 - b1) * grad
        self.v[name] = b2 * self.v[name] + (1 - b2) * grad**2
        if isinstance(config, NAdamW):
            m_hat = b1 * self.m[name] / (1 - b1 ** (t + 1)) + (1 - b1) * grad / (1 - b1**t)
        else:
            m_hat = self.m[name] / (1 - b1**t)
        return m_hat / (np.sqrt(self.v[name] / (1 - b2**t)) + config.epsilon)

    def muon(self, name: str, grad: np.ndarray, config: Muon) -> np.ndarray:
        """Jordan's Muon on one matrix after the other, each as [outputs, inputs]."""
        self.m[name] = config.momentum * self.m[name] + grad
        momentum = grad + config.momentum * self.m[name] if config.nesterov else self.m[name]
        layers: list[np.ndarray] = []
        for layer in momentum:
            matrix = (layer.reshape(-1, layer.shape[-1]) if name == "output" else layer.reshape(layer.shape[0], -1)).T
            scale = np.sqrt(max(1, matrix.shape[0] / matrix.shape[1]))
            layers.append((scale * newton_schulz(matrix, config)).T.reshape(layer.shape))
        return np.stack(layers)


def newton_schulz(matrix: np.ndarray, config: Muon) -> np.ndarray:
    """On the matrix as it is, whichever side is the longer."""
    x = matrix / (np.sqrt(np.sum(matrix**2)) + config.epsilon)
    for a, b, c in COEFFICIENTS[config.newton_schulz_coefficients][: config.newton_schulz_steps]:
        x = a * x + b * (x @ x.T @ x) + c * (x @ x.T @ x @ x.T @ x)
    return x
