"""Queries of `phasewise trace`: the training data of an update, and the updates that train on a document."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from phasewise.flows.trace.trace_context import Traced, TracedPhase
from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.trainer.config import Component
from phasewise.trainer.data.cache import fetch
from phasewise.trainer.data.manifest import answers_of
from phasewise.trainer.data.packing import Located, Piece, counted_before
from phasewise.trainer.data.trace import Draws

MAX_TEXTS = 1000
"""Pieces with an excerpt. Further pieces have no text."""
EXCERPT_TOKENS, EXCERPT_CHARACTERS = 64, 200


@dataclass(frozen=True)
class Trained:
    """Tokens of one document in one row of one update.

    Attributes:
        step: number of applied updates after this update, as in metrics and verdicts.
        row: row of the batch, before micro-batches and hosts.
        epoch: completed passes over the component.
        cache_row: row of the component's cache. None for a row from a document buffer.
        buffer_row: row of the pass through the buffer. None for a row of the cache.
        offset: position of the first token in the document. The token that begins the document is number 0.
    """

    phase: str
    step: int
    row: int
    component: Component
    document: Located
    epoch: int
    cache_row: int | None
    buffer_row: int | None
    at: int
    offset: int
    tokens: int

    def as_json(self, text: str | None, predicted: int) -> dict[str, Any]:
        """The shape of `phasewise trace --json`. `predicted` is the number of tokens in the loss."""
        return {
            **{name: getattr(self, name) for name in ("phase", "step", "row", "component")},
            "document": self.document.id,
            "file": self.document.file,
            "offset": self.offset,
            "tokens": self.tokens,
            "predicted": predicted,
            "document_tokens": self.document.length,
            **{name: getattr(self, name) for name in ("at", "epoch", "cache_row", "buffer_row")},
            "text": text,
        }


class Asked(NamedTuple):
    """A document of a training cache, and the requested tokens `[first, stop)` of the cache."""

    document: Located
    first: int
    stop: int


def trained_at(traced: Traced, phase: TracedPhase, step: int, row: int | None) -> list[Trained]:
    """The training data of the update to `step`, row by row, or of one row. Empty for a skipped update."""
    first, last = phase.phase.start_step + 1, phase.stop_step
    if not first <= step <= last:
        recipe = traced.resolved.recipe
        others = [one.name for one in recipe.phases if one.start_step < step <= one.stop_step]
        hint = f". Step {step} is in {' and '.join(others)}" if others else ""
        raise ConfigError(f"{phase.phase.name} trains steps {first} to {last} at {recipe.scale} scale, found step {step}{hint}.")
    size = phase.order.batch.at(step - 1)
    if row is not None and row >= size:
        raise ConfigError(f"step {step} of {phase.phase.name} has rows 0 to {size - 1}, found row {row}.")
    if step - 1 in phase.trained.passed_over:
        return []
    draws = phase.order.of_update(step - 1, row)
    found: list[Trained] = []
    for number in np.unique(draws.component).tolist():
        mine = draws.chosen(draws.component == number)
        name = phase.order.names[number]
        runs = phase.runs_of(name, mine)
        for piece in traced.indices["train"][name].covering(runs.first, runs.stop):
            at = int(runs.at[piece.of]) + piece.first - int(runs.first[piece.of])
            found.append(_trained(phase, name, mine, int(runs.draw[piece.of]), piece, at=at))
    return sorted(found, key=lambda one: (one.step, one.row, one.at))


def trains_at(traced: Traced, component: Component, asked: Sequence[Asked]) -> Iterator[tuple[Asked, Trained]]:
    """The updates that train on documents of a component, phase by phase."""
    for phase in traced.phases:
        if not phase.order.drawn.get(component) or not asked:
            continue
        if not phase.order.from_caches:
            first, stop = (np.array([getattr(one, name) for one in asked], np.int64) for name in ("first", "stop"))
            which, draws, runs = phase.order.of_ranges(component, first, stop)
            for number in np.lexsort((draws.place, draws.update, which)).tolist():
                if int(draws.update[number]) not in phase.trained.passed_over:
                    one = asked[int(which[number])]
                    piece = Piece(0, one.document, int(runs.first[number]), int(runs.stop[number]))
                    yield one, _trained(phase, component, draws, number, piece, at=int(runs.at[number]))
            continue
        laid = phase.rows[component]
        spans = [laid.between(one.first, one.stop) for one in asked]
        wanted = np.unique(np.concatenate([np.arange(span.start, span.stop) for span in spans]))
        if not wanted.size:
            continue
        draws = phase.order.of_rows(component, wanted)
        by_row = np.argsort(draws.row, kind="stable")
        rows = draws.row[by_row]
        firsts = laid.firsts(draws.row)
        stops = firsts + laid.used(draws.row)
        for one, span in zip(asked, spans, strict=True):
            for number in by_row[np.searchsorted(rows, span.start) : np.searchsorted(rows, span.stop)].tolist():
                if int(draws.update[number]) not in phase.trained.passed_over:
                    begin = int(firsts[number])
                    piece = Piece(0, one.document, max(one.first, begin), min(one.stop, int(stops[number])))
                    yield one, _trained(phase, component, draws, number, piece, at=piece.first - begin)


def excerpts(traced: Traced, found: Sequence[Trained]) -> list[str | None]:
    """The text of the first tokens of the first `MAX_TEXTS` pieces. None without a tokenizer."""
    texts: list[str | None] = [None] * len(found)
    numbered = sorted(enumerate(found[:MAX_TEXTS]), key=lambda one: one[1].component)
    for component, group in groupby(numbered, key=lambda one: one[1].component):
        members = list(group)
        cache, text = traced.indices["train"][component].cache, traced.text_of(component)
        read = [np.empty(one.tokens, np.int32) for _, one in members]
        fetch(
            [part for (_, one), out in zip(members, read, strict=True) for part in cache.read_piece(one.document.first + one.offset, out)]
        )
        begin, end = cache.manifest.begin_of_text, cache.manifest.end_of_text
        for (number, one), tokens in zip(members, read, strict=True):
            token, place, is_there = begin, 0, one.offset == 0
            if begin is None:
                token, place, is_there = end, len(tokens) - 1, one.offset + len(tokens) == one.document.length
            found_at = np.flatnonzero(tokens == token).tolist()
            if found_at != ([place] if is_there else []):
                raise DataError(
                    f"{cache.folder}: document {one.document.id[:16]} must have token {token} only at its "
                    f"{'end' if begin is None else 'start'}, found it at {found_at or 'no place'} of its {len(tokens)} tokens from "
                    f"{one.offset} on: index and tokens don't match. Delete the folder and run `phasewise data prepare`."
                )
            if text:
                found_text = text.excerpt(tokens[:EXCERPT_TOKENS])
                is_whole = one.tokens <= EXCERPT_TOKENS and len(found_text) <= EXCERPT_CHARACTERS
                texts[number] = found_text if is_whole else f"{found_text[:EXCERPT_CHARACTERS]}…"
    return texts


def predicted(traced: Traced, found: Sequence[Trained]) -> list[int]:
    """The number of predicted tokens of each piece, as in `ComponentRows.targets`: without the first of a row or of a packed document."""
    phases = {one.phase.name: one.phase for one in traced.phases}
    counts = [one.tokens - int(one.at == 0 or (one.offset == 0 and phases[one.phase].packing != "chunk")) for one in found]
    of_answers = [number for number, one in enumerate(found) if phases[one.phase].loss_on == "answers"]
    for component in {found[number].component for number in of_answers}:
        cache = traced.indices["train"][component].cache
        members = [number for number in of_answers if found[number].component == component]
        stops = np.array([found[number].document.first + found[number].offset + found[number].tokens for number in members])
        spans = answers_of(cache.manifest, cache.spans())
        told = counted_before(spans, stops) - counted_before(spans, stops - [counts[number] for number in members])
        for number, count in zip(members, told.tolist(), strict=True):
            counts[number] = count
    return counts


def _trained(phase: TracedPhase, component: Component, draws: Draws, number: int, piece: Piece, *, at: int) -> Trained:
    row = int(draws.row[number])
    return Trained(
        phase=phase.phase.name,
        step=int(draws.update[number]) + 1,
        row=int(draws.place[number]),
        component=component,
        document=piece.document,
        epoch=int(draws.epoch[number]),
        cache_row=row if phase.order.from_caches else None,
        buffer_row=None if phase.order.from_caches else row,
        at=at,
        offset=piece.first - piece.document.first,
        tokens=piece.stop - piece.first,
    )
