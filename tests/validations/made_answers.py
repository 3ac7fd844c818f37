"""Benchmark results as an evaluation holds them, made up."""

from typing import Any

import numpy as np

NUM_CHOICES = 4


def guessed_result(*, right: int, first: int, items: int = 200, benchmark: str = "continuation") -> dict[str, Any]:
    """A benchmark of four choices: `right` items are right; in `first` the right choice is the likeliest, in the others the least likely.

    At the floor a quarter of the items is right, and here half of them are first: the two ends of the places balance.
    """
    answers: list[dict[str, Any]] = []
    for number in range(items):
        gold = number % NUM_CHOICES
        scores = [(-5.0 if number < first else -20.0) if at == gold else -10.0 - at for at in range(NUM_CHOICES)]
        answers.append(_answer(f"{benchmark}-{number}", number < right, gold, scores))
    return _result(benchmark, "acc", answers, baseline=0.25)


def scored_result(scores: np.ndarray, *, right: np.ndarray | None = None, benchmark: str = "continuation") -> dict[str, Any]:
    """A benchmark whose choices have these scores [items, choices], the first the right one: chosen where `right`, else where likeliest."""
    chosen = scores.argmax(axis=1) == 0 if right is None else right
    answers = [_answer(f"{benchmark}-{number}", bool(chosen[number]), 0, row.tolist()) for number, row in enumerate(scores)]
    return _result(benchmark, "acc", answers, baseline=1 / NUM_CHOICES)


def grouped_result(
    scores: np.ndarray, *, right: np.ndarray, baseline_right: np.ndarray, benchmark: str = "completion", seed: int = 0
) -> dict[str, Any]:
    """A benchmark of items in groups that share their answers, in an order that the seed draws.

    Args:
        scores: [groups, items, choices], the right choice of item i at i.
        right, baseline_right: [groups, items].
    """
    answers: list[dict[str, Any]] = []
    for group, item in np.random.default_rng(seed).permutation([*np.ndindex(right.shape)]).tolist():
        answer = _answer(f"{benchmark}-{group}-{item}", bool(right[group, item]), item, scores[group, item].tolist())
        answers.append(answer | {"baseline_right": bool(baseline_right[group, item]), "group": group})
    return _result(benchmark, "exact_match", answers, baseline=float(np.mean(baseline_right)))


def _answer(id: str, right: bool, gold: int, scores: list[float]) -> dict[str, Any]:
    return {"id": id, "right": right, "baseline_right": None, "group": None, "gold": gold, "log_likelihoods": scores}


def _result(benchmark: str, metric: str, answers: list[dict[str, Any]], baseline: float) -> dict[str, Any]:
    value = sum(answer["right"] for answer in answers) / len(answers)
    stderr = (value * (1 - value) / (len(answers) - 1)) ** 0.5
    head = {"benchmark": benchmark, "metric": metric, "value": value, "stderr": stderr, "items": len(answers), "baseline": baseline}
    return head | {"answers": answers, "setting": setting(benchmark, len(answers))}


def setting(benchmark: str, items: int, **changed: Any) -> dict[str, Any]:
    found = {"version": "1.0", "shots": 0, "filter": "none", "items": items, "asked": items, "precision": "float32"}
    return found | {"items_digest": f"items of {benchmark}", "prompts_digest": f"prompts of {benchmark}"} | changed
