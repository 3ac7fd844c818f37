"""How likely the answers of held-out conversations are to a phase's weights, and to those that it started from."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypedDict

import numpy as np

from phasewise.tasks.evaluation.measured import Measured
from phasewise.tasks.evaluation.rows import Window
from phasewise.tasks.evaluation.scoring import score_windows
from phasewise.trainer.base.errors import CheckpointError, DataError
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.config import Component, ModelConfig, RunConfig, StartFrom
from phasewise.trainer.data.cache import TokenCache
from phasewise.trainer.data.manifest import counted
from phasewise.trainer.model.params import Params


class AnswerItem(TypedDict):
    """One conversation: how many tokens its answers have, and minus the logarithm of their probability, of both models."""

    component: str
    id: str
    tokens: int
    nats: float
    parent_nats: float | None


class Answers(TypedDict):
    """Conversations of all components; `against` is the phase that this one starts from, None where it starts from scratch."""

    against: str | None
    items: list[AnswerItem]


class Conversation(NamedTuple):
    """The tokens of a held-out conversation, as many as a row has, and which of them are its answers'."""

    component: Component
    id: str
    tokens: np.ndarray
    is_answer: np.ndarray


def answers_beside_parent(run: RunConfig, params: Params, held_out: Mapping[str, Path], measured: Measured) -> Answers | None:
    """Of the conversations of the run's own components; None where the phase is not trained on answers.

    Raises:
        DataError: a component has no held-out conversation with an answer.
        CheckpointError: the weights that the phase started from are not there, or are others.
    """
    if run.loss_on != "answers":
        return None
    seq_len = run.model.seq_len
    conversations = [
        one for name in sorted(run.caches) for one in read_conversations(name, held_out[name], seq_len, max_tokens=measured.held_out_tokens)
    ]
    nats = answer_nats(params, run.model, conversations)
    before = None if run.start is None else answer_nats(*_parent_of(run.start, seq_len), conversations)
    items = [
        AnswerItem(
            component=one.component,
            id=one.id,
            tokens=int(one.is_answer.sum()),
            nats=nats[number],
            parent_nats=None if before is None else before[number],
        )
        for number, one in enumerate(conversations)
    ]
    return Answers(against=None if run.start is None else RunFolder.of_checkpoint(run.start.checkpoint).path.name, items=items)


def is_finite(answers: Answers) -> bool:
    """Whether every number that the model gave is one."""
    return all(math.isfinite(item["nats"]) for item in answers["items"])


def read_conversations(name: Component, folder: Path, seq_len: int, *, max_tokens: int | None) -> list[Conversation]:
    """The held-out conversations of a component in order, until they have `max_tokens`: those with an answer within a row's length.

    Raises:
        DataError: the cache is of plain text, or has no such conversation.
    """
    cache = TokenCache.open(folder)
    spans = cache.spans()
    if spans is None:
        raise DataError(f"answers are measured on conversations, and the held-out cache of {name} in {folder} is of plain text.")
    found = [one for one in _first(name, cache, spans, seq_len, max_tokens) if one.is_answer.any()]
    if not found:
        raise DataError(
            f"{name} must have a held-out conversation with an answer in its first {seq_len} tokens, found none in {folder}: give it more."
        )
    return found


def answer_nats(params: Params, config: ModelConfig, conversations: Sequence[Conversation]) -> list[float]:
    """Of each conversation, minus the sum of the log-likelihoods of its answers' tokens. Each is read alone, from its beginning."""
    windows = [Window(one.tokens[:-1].astype(np.int32), one.tokens[1:].astype(np.int32)) for one in conversations]
    scores = score_windows(params, config, windows)
    return [
        -float(scored.log_likelihoods[one.is_answer[1:]].sum(dtype=np.float64)) for one, scored in zip(conversations, scores, strict=True)
    ]


def _first(name: Component, cache: TokenCache, spans: np.ndarray, seq_len: int, max_tokens: int | None) -> Iterator[Conversation]:
    start = 0
    for document in cache.documents():
        tokens = document.tokens[:seq_len]
        is_answer = counted(spans, start, len(tokens))
        is_answer[:1] = False  # nothing comes before it
        last = int(np.flatnonzero(is_answer)[-1]) + 1 if is_answer.any() else 0
        yield Conversation(name, document.id, tokens[:last], is_answer[:last])
        start += len(document.tokens)
        if max_tokens is not None and start >= max_tokens:
            return


def _parent_of(start: StartFrom, seq_len: int) -> tuple[Params, ModelConfig]:
    """The weights that the phase started from, and the model that they are of, on rows as long as the phase's own."""
    from phasewise.trainer.checkpoints.checkpointer import read_about, read_params, saved_params_digest

    path = Path(start.checkpoint)
    if (found := saved_params_digest(path)) != start.params_digest:
        raise CheckpointError(
            f"{path} must have the weights {start.params_digest[:16]} that the phase started from, found {found[:16]}: train it again."
        )
    parent = ModelConfig.model_validate(read_about(path)["run"]["model"])
    return read_params(path, parent), parent.but(seq_len=seq_len)
