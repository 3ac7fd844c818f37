"""Log-probabilities of two checkpoints, token by token: the subsets, tokens and passages in which the models differ most.

Marin found by such a comparison that a deep cooldown disliked the final spaces of some Paloma subsets (8B retrospective, phase 1).
"""

import heapq
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from tokenizers import Tokenizer

from phasewise.tasks.evaluation.corpus_fit import TokenizedText, batches_of, rolling_windows
from phasewise.tasks.evaluation.scoring import score_windows
from phasewise.trainer.base.errors import DataError, EvaluationError
from phasewise.trainer.config import ModelConfig
from phasewise.trainer.model.params import Params

MAX_TOKENS, MAX_PASSAGES = 15, 5
BEFORE, AFTER = 24, 8
"""Shown tokens before and after the token of a passage."""


class Model(NamedTuple):
    """Weights and architecture. Both models of a comparison have the same tokenizer."""

    params: Params
    config: ModelConfig


def compare_tokens(
    models: tuple[Model, Model],
    tokenizer: Tokenizer,
    begin: int,
    texts: Iterable[TokenizedText],
    *,
    text_bytes: Mapping[str, int] | None = None,
) -> dict[str, list[dict[str, Any]]]:
    """Score each text with both models, in rolling windows of each model's `seq_len`.

    Returns:
        `subsets`: bits per byte of both models, by size of the difference. `tokens`: vocabulary entries by their share of all differences,
        the last token of a text apart from the same token elsewhere. `passages`: the tokens with the largest single differences.

    Raises:
        DataError: no text. EvaluationError: a likelihood is not finite.
    """
    placed = tuple(model._replace(params=jax.device_put(model.params)) for model in models)
    entries = 2 * max(model.config.vocab_size for model in models)  # entry 2 · token, and 2 · token + 1 for the last token of a text
    counts, sums = np.zeros(entries, np.int64), np.zeros((2, entries))
    of_subset: dict[str, np.ndarray] = {}
    passages: list[tuple[float, int, dict[str, Any]]] = []
    number = 0
    for batch in batches_of(texts):
        scored: list[list[np.ndarray]] = []
        for model in placed:
            windows = [rolling_windows(text.tokens, model.config.seq_len, begin) for text in batch]
            scores = iter(score_windows(model.params, model.config, [window for of_text in windows for window in of_text]))
            found = [[next(scores).log_likelihoods for _ in of_text] for of_text in windows]
            scored.append([np.concatenate(parts).astype(np.float64) if parts else np.zeros(0) for parts in found])
        for text, ours, theirs in zip(batch, *scored, strict=True):
            if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
                raise EvaluationError(f"{text.where}: expected finite likelihoods of both models. The weights of one have diverged.")
            if not len(ours):
                continue
            entry = 2 * text.tokens.astype(np.int64)
            entry[-1] += 1
            np.add.at(counts, entry, 1)
            for side, values in enumerate((ours, theirs)):
                np.add.at(sums[side], entry, -values)
            totals = of_subset.setdefault(text.subset, np.zeros(4))
            totals += (-ours.sum(), -theirs.sum(), text.text_bytes, len(ours))
            at = int(np.argmax(np.abs(ours - theirs)))
            passage = {
                "subset": text.subset,
                "where": text.where,
                "before": tokenizer.decode(text.tokens[max(0, at - BEFORE) : at].tolist(), skip_special_tokens=False),
                "token": tokenizer.decode([int(text.tokens[at])], skip_special_tokens=False),
                "after": tokenizer.decode(text.tokens[at + 1 : at + 1 + AFTER].tolist(), skip_special_tokens=False),
                "nats": float(-ours[at]),
                "against_nats": float(-theirs[at]),
            }
            number += 1
            passages = heapq.nlargest(MAX_PASSAGES, [*passages, (abs(float(ours[at] - theirs[at])), -number, passage)])
    if not of_subset:
        raise DataError("a comparison of tokens needs at least one text, found none.")
    subsets: list[dict[str, Any]] = []
    for name, (ours, theirs, known_bytes, tokens) in of_subset.items():
        num_bytes = (text_bytes or {}).get(name, int(known_bytes))
        bits = {"bits_per_byte": ours / num_bytes / math.log(2), "against_bits_per_byte": theirs / num_bytes / math.log(2)}
        subsets.append({"name": name, "text_bytes": num_bytes, "tokens": int(tokens), **bits})
    subsets.sort(key=lambda row: -abs(row["bits_per_byte"] - row["against_bits_per_byte"]))
    differences = sums[0] - sums[1]
    order = np.argsort(-np.abs(differences), kind="stable")[:MAX_TOKENS]
    rows = [
        {
            "token": int(entry) // 2,
            "text": tokenizer.decode([int(entry) // 2], skip_special_tokens=False),
            "is_last": bool(entry % 2),
            "count": int(counts[entry]),
            "nats": float(sums[0, entry] / counts[entry]),
            "against_nats": float(sums[1, entry] / counts[entry]),
            "share": float(abs(differences[entry]) / np.abs(differences).sum()),
        }
        for entry in order
        if differences[entry]
    ]
    return {"subsets": subsets, "tokens": rows, "passages": [passage for _, _, passage in passages]}
