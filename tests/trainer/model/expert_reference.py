"""Routing, balance and experts again, slowly: NumPy in float64, a loop over tokens, written from the formulas of the report."""

from typing import NamedTuple

import numpy as np


class Decision(NamedTuple):
    """Experts of each token, best first, their gates, and the scores of all experts."""

    chosen: np.ndarray
    gates: np.ndarray
    scores: np.ndarray


def route(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, num_active: int, route_scale: float) -> Decision:
    """Eqs 16–18; a tie goes to the lower number."""
    scores = 1 / (1 + np.exp(-(x.astype(np.float64) @ weight.astype(np.float64))))
    chosen = np.argsort(-(scores + bias), axis=1, kind="stable")[:, :num_active]
    own = np.take_along_axis(scores, chosen, axis=1)
    return Decision(chosen, route_scale * own / own.sum(1, keepdims=True), scores)


def apply_experts(x: np.ndarray, decision: Decision, gate: np.ndarray, up: np.ndarray, down: np.ndarray) -> np.ndarray:
    """Eq. 15 without the shared expert."""
    result = np.zeros(x.shape)
    for token, (experts, gates) in enumerate(zip(decision.chosen, decision.gates, strict=True)):
        for expert, weight in zip(experts, gates, strict=True):
            hidden = x[token] @ gate[expert].astype(np.float64)
            hidden = hidden / (1 + np.exp(-hidden)) * (x[token] @ up[expert])
            result[token] += weight * (hidden @ down[expert])
    return result


def sequence_loss(decision: Decision, rows: int) -> list[float]:
    """Eqs 29–32 of each row, without the weight."""
    num_experts = decision.scores.shape[1]
    losses: list[float] = []
    for scores, chosen in zip(np.split(decision.scores, rows), np.split(decision.chosen, rows), strict=True):
        share = np.bincount(chosen.ravel(), minlength=num_experts) * num_experts / chosen.size
        losses.append(float(share @ (scores / scores.sum(1, keepdims=True)).mean(0)))
    return losses
