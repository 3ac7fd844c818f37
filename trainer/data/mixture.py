"""Which component each sequence of a run comes from, and which of its sequences: exact counts a block, by random access.

A *stage* is a stretch with one mixture. Blocks are counted from the stage's first sequence; within a block the components have exact
counts (largest remainder) and are spread evenly, each from a keyed random start: any stretch of a block, and so the last block of a
stage, which may be cut short, has every component's share to within about a sequence. Nothing is kept but the number of a sequence: a
component's position goes on from stage to stage and from phase to phase.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from trainer.config import Component, DataOrder, MixtureShares, Steps, sequences_between
from trainer.data.permutation import derive_key


def block_counts(shares: MixtureShares, block_sequences: int) -> dict[Component, int]:
    """Sequences of each component in one block: floors, and the largest remainders take what is left (ties by name)."""
    total = sum(shares.values())
    exact = {name: share * block_sequences / total for name, share in shares.items()}
    counts = {name: int(value) for name, value in exact.items()}
    by_remainder = sorted(exact, key=lambda name: (counts[name] - exact[name], name))
    for name in by_remainder[: block_sequences - sum(counts.values())]:
        counts[name] += 1
    return counts


@dataclass(frozen=True)
class Stage:
    """One mixture from `first_sequence` on. `used` says how many sequences each component gave before it."""

    number: int
    first_sequence: int
    names: tuple[Component, ...]
    counts: tuple[int, ...]
    used: dict[Component, int] = field(hash=False)


class MixtureSchedule:
    """The order of all sequences of a lineage, from its batch and mixture schedules."""

    def __init__(self, *, batch: Steps[int], mixture: Steps[MixtureShares], order: DataOrder):
        self._batch = batch
        self._order = order
        self._stages: list[Stage] = []
        for step, shares in mixture.root:
            counts = block_counts(shares, order.block_sequences)
            first, used = self.sequences_before(step), {}
            if self._stages:
                last = self._stages[-1]
                drawn = self._drawn_in(last, first - last.first_sequence)
                used = {name: last.used.get(name, 0) + drawn.get(name, 0) for name in {*last.used, *drawn}}
            self._stages.append(Stage(len(self._stages), first, tuple(counts), tuple(counts.values()), used))

    def sequences_before(self, step: int) -> int:
        """Sequences that the first `step` updates consume."""
        return sequences_between(self._batch, 0, step)

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """For each sequence of update `step`: its component's number in `components()`, and its position within the component."""
        first = self.sequences_before(step)
        return self._draw(first, first + self._batch.at(step))

    def components(self) -> tuple[Component, ...]:
        """Every component of every stage, sorted by name."""
        return tuple(sorted({name for stage in self._stages for name in stage.names}))

    def realised(self, start_step: int, stop_step: int) -> dict[Component, int]:
        """Sequences that each component gives over `[start_step, stop_step)`."""
        before, after = self._used_at(self.sequences_before(start_step)), self._used_at(self.sequences_before(stop_step))
        return {name: after[name] - before.get(name, 0) for name in sorted(after) if after[name] > before.get(name, 0)}

    def _used_at(self, sequence: int) -> dict[Component, int]:
        stage = self._stage_of(sequence)
        drawn = self._drawn_in(stage, sequence - stage.first_sequence)
        return {name: stage.used.get(name, 0) + drawn.get(name, 0) for name in {*stage.used, *drawn}}

    def _stage_of(self, sequence: int) -> Stage:
        return self._stages[max(0, bisect_right([stage.first_sequence for stage in self._stages], sequence) - 1)]

    def _draw(self, first: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Sequences `[first, stop)`, block by block."""
        numbers = {name: number for number, name in enumerate(self.components())}
        components, positions = np.empty(stop - first, np.int64), np.empty(stop - first, np.int64)
        at = first
        while at < stop:
            stage = self._stage_of(at)
            following = [s.first_sequence for s in self._stages if s.first_sequence > at]
            block, within = divmod(at - stage.first_sequence, self._order.block_sequences)
            count = min([stop - at, self._order.block_sequences - within, *(later - at for later in following)])
            order, ranks = _block_order(stage, block, self._order.seed)
            chosen = order[within : within + count]
            used = np.array([stage.used.get(name, 0) for name in stage.names])
            out = slice(at - first, at - first + count)
            components[out] = np.array([numbers[name] for name in stage.names])[chosen]
            positions[out] = used[chosen] + block * np.array(stage.counts)[chosen] + ranks[within : within + count]
            at += count
        return components, positions

    def _drawn_in(self, stage: Stage, sequences: int) -> dict[Component, int]:
        """What the first `sequences` of a stage draw from each component."""
        blocks, rest = divmod(sequences, self._order.block_sequences)
        totals = blocks * np.array(stage.counts, np.int64)
        if rest:
            order, _ = _block_order(stage, blocks, self._order.seed)
            totals = totals + np.bincount(order[:rest], minlength=len(stage.names))
        return {name: int(total) for name, total in zip(stage.names, totals, strict=True) if total}


@lru_cache(maxsize=64)
def _block_order(stage: Stage, block: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A block's components in order, and for each entry how many of its component came before it in the block.

    The j-th of a component's n entries belongs at (j + u) / n of the block, with u in [0, 1) from the key.
    """
    starts = np.array([derive_key("block", seed, stage.number, block, name) / 2**64 for name in stage.names])
    components = np.repeat(np.arange(len(stage.names)), stage.counts)
    ranks = np.arange(len(components)) - np.repeat(np.cumsum([0, *stage.counts[:-1]]), stage.counts)
    places = (ranks + starts[components]) / np.array(stage.counts)[components]
    order = np.argsort(places, kind="stable")
    return components[order], ranks[order]
