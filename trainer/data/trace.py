"""The data order both ways: what an update draws, and at which updates a row of a cache is drawn. No step is iterated over.

Forward it asks what the loader asks, `MixtureSchedule` and `Order`. Backward it solves the same for the sequence: the inverse of each
pass's permutation gives the position within the component, the stage's counts give the block, the block's order gives the place in it, and
the segments of the batch schedule give update and place in the batch. Where rows come from a document buffer, its plan is asked for the
positions, and a row has pieces of several documents.

Updates are counted from 0 here, as the loader counts them. Update u makes step u + 1 of the metrics.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.config import Component, Steps
from phasewise.trainer.data.document_buffer import BufferedComponent
from phasewise.trainer.data.loader import SPAN_SEQUENCES, Order
from phasewise.trainer.data.mixture import MixtureSchedule, block_counts
from phasewise.trainer.data.permutation import Permutation, derive_key


class Draws(NamedTuple):
    """Sequences as they are drawn: arrays with an entry each.

    Attributes:
        update: the update that trains on it, from 0.
        place: its row in the batch, before the batch is cut into parts and shared by hosts.
        component: the number of its component in `TracedOrder.names`.
        epoch: how many passes over the component were completed before.
        row: the row of the component's cache; where a document buffer fills the rows, the row of its pass.
    """

    update: Int[np.ndarray, " n"]
    place: Int[np.ndarray, " n"]
    component: Int[np.ndarray, " n"]
    epoch: Int[np.ndarray, " n"]
    row: Int[np.ndarray, " n"]

    def chosen(self, which: np.ndarray) -> "Draws":
        """Some of them, by a mask or by numbers."""
        return Draws(*(column[which] for column in self))


class Runs(NamedTuple):
    """Runs of tokens of a component's cache that rows hold: arrays with an entry each.

    Attributes:
        draw: the number of the row among the draws that they are asked of.
        at: where in the row the run begins.
        first, stop: its tokens, counted over the whole cache.
    """

    draw: Int[np.ndarray, " p"]
    at: Int[np.ndarray, " p"]
    first: Int[np.ndarray, " p"]
    stop: Int[np.ndarray, " p"]


class _Stretch(NamedTuple):
    """Where one mixture gives sequences of a component.

    Attributes:
        first: the lineage's first sequence with this mixture.
        stop: the first one after it; None for the last mixture.
        used: sequences of the component that were drawn before.
        per_block: sequences of the component in a block.
    """

    first: int
    stop: int | None
    used: int
    per_block: int


@dataclass(frozen=True)
class TracedOrder:
    """The updates `[start_update, stop_update)` of a lineage.

    Attributes:
        rows: component → rows of its cache, for every component that these updates draw from.
        buffered: component → the plans of its document buffer; of each of them, where the order has one.

    Raises:
        ConfigError: the order has a document buffer, and a component's plans are not given.
    """

    schedule: MixtureSchedule
    batch: Steps[int]
    start_update: int
    stop_update: int
    rows: Mapping[Component, int]
    buffered: Mapping[Component, BufferedComponent] = field(default_factory=dict)

    def __post_init__(self) -> None:
        documents = self.schedule.order.buffer_documents
        if documents is None:
            return
        if missing := sorted(set(self.rows) - set(self.buffered)):
            raise ConfigError(
                f"rows from buffers of {documents} documents are traced by the buffers' plans, and none is given of {', '.join(missing)}."
            )

    @property
    def from_caches(self) -> bool:
        """Whether rows are rows of the caches; else a document buffer fills them."""
        return self.schedule.order.buffer_documents is None

    @cached_property
    def names(self) -> tuple[Component, ...]:
        """Every component of the lineage, sorted."""
        return self.schedule.components()

    @cached_property
    def drawn(self) -> dict[Component, int]:
        """Sequences that each component gives over these updates."""
        return self.schedule.realised(self.start_update, self.stop_update)

    def of_update(self, update: int, place: int | None = None) -> Draws:
        """What an update draws, in the order of its batch; only one place of it, where that is given."""
        places = np.arange(self.batch.at(update)) if place is None else np.array([place])
        sequences = self.schedule.sequences_before(update) + places
        first, stop = int(sequences[0]), int(sequences[-1]) + 1
        components, positions = self.schedule.draw(first, stop)
        order = Order(self.schedule, dict(self.rows))
        spans = range(first // SPAN_SEQUENCES, -(-stop // SPAN_SEQUENCES))
        rows = np.concatenate([order.span(number)[1] for number in spans])[first % SPAN_SEQUENCES :][: stop - first]
        epochs, within = np.divmod(positions, np.array([self.rows.get(name, 1) for name in self.names])[components])
        return Draws(np.full(len(places), update), places, components, epochs, rows if self.from_caches else within)

    def runs_of(self, component: Component, draws: Draws) -> Runs:
        """The tokens of these draws of one component, row by row, where a document buffer fills them."""
        found = [self.buffered[component].of_pass(epoch).row(row) for epoch, row in zip(*map(np.ndarray.tolist, draws[3:5]), strict=True)]
        draw = np.repeat(np.arange(len(found)), np.array([len(pieces.row) for pieces in found], np.int64))
        empty = np.empty(0, np.int64)
        at, first, length = (np.concatenate([empty, *(pieces[column] for pieces in found)]) for column in (1, 2, 3))
        return Runs(draw, at, first, first + length)

    def of_ranges(
        self, component: Component, first: Int[np.ndarray, " n"], stop: Int[np.ndarray, " n"]
    ) -> tuple[Int[np.ndarray, " p"], Draws, Runs]:
        """Every draw of a row that a document buffer filled with tokens of these ranges `[first, stop)` of the cache.

        Returns the number of the range, the draw, and the tokens of the range that it has; an entry each, and each draw its own row.
        """
        drawn = self._positions_drawn(component)
        which, positions, found = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty((3, 0), np.int64)]
        for epoch in self._passes(component, *drawn):
            ranges, pieces = self.buffered[component].of_pass(epoch).pieces_of(first, stop)
            at = epoch * self.rows[component] + pieces.row
            inside = (at >= drawn[0]) & (at < drawn[1])
            ranges, at, pieces = ranges[inside], at[inside], [column[inside] for column in pieces]
            begin, end = np.maximum(pieces[2], first[ranges]), np.minimum(pieces[2] + pieces[3], stop[ranges])
            which.append(ranges)
            positions.append(at)
            found.append(np.stack([pieces[1] + begin - pieces[2], begin, end]))
        at = np.concatenate(positions)
        updates, places = self._updates_of(self._sequences_of(component, at))
        epochs, rows = np.divmod(at, self.rows[component])
        number = self.names.index(component) if component in self.names else 0
        draws = Draws(updates, places, np.full(len(at), number), epochs, rows)
        return np.concatenate(which), draws, Runs(np.arange(len(at)), *np.concatenate(found, axis=1))

    def of_rows(self, component: Component, rows: Int[np.ndarray, " n"]) -> Draws:
        """Every draw of these rows of a component's cache, ordered by update and place. Rows must be different from each other."""
        first, stop = self._positions_drawn(component)
        found = [self._of_pass(component, epoch, rows, (first, stop)) for epoch in self._passes(component, first, stop)]
        number = self.names.index(component) if component in self.names else 0
        if not found:
            empty = np.empty(0, np.int64)
            return Draws(empty, empty, empty, empty, empty)
        epochs, positions, drawn_rows = np.concatenate(found, axis=1)
        updates, places = self._updates_of(self._sequences_of(component, positions))
        draws = Draws(updates, places, np.full(len(updates), number), epochs, drawn_rows)
        return draws.chosen(np.lexsort((places, updates)))

    def _positions_drawn(self, component: Component) -> tuple[int, int]:
        first = self.schedule.realised(self.schedule.order.first_step, self.start_update).get(component, 0)
        return first, first + self.drawn.get(component, 0)

    def _passes(self, component: Component, first: int, stop: int) -> range:
        return range(first // self.rows[component], -(-stop // self.rows[component])) if stop > first else range(0)

    def _of_pass(self, component: Component, epoch: int, rows: np.ndarray, drawn: tuple[int, int]) -> np.ndarray:
        order, length = self.schedule.order, self.rows[component]
        key = derive_key("component", order.seed, component, epoch)
        positions = epoch * length + Permutation.build(order.permutation, length=length, key=key).inverse(rows)
        inside = (positions >= drawn[0]) & (positions < drawn[1])
        return np.stack([np.full(int(inside.sum()), epoch), positions[inside], np.asarray(rows, np.int64)[inside]])

    def _sequences_of(self, component: Component, positions: np.ndarray) -> np.ndarray:
        sequences = np.full(len(positions), -1, np.int64)
        order, mixture = self.schedule.order, self.schedule.mixture
        entries = mixture.within(max(order.first_step, mixture.root[0][0]), 1 + mixture.root[-1][0])
        steps = [order.first_step, *(step for step, _ in entries[1:])]
        firsts: list[int | None] = [*map(self.schedule.sequences_before, steps), None]
        found: list[_Stretch] = []
        for number, (_, shares) in enumerate(entries):
            count = block_counts(shares, order).get(component, 0)
            if count:
                used = self.schedule.realised(order.first_step, steps[number]).get(component, 0)
                found.append(_Stretch(firsts[number] or 0, firsts[number + 1], used, count))
        stretches = found
        for number, stretch in enumerate(stretches):
            inside = positions >= stretch.used
            if number + 1 < len(stretches):
                inside &= positions < stretches[number + 1].used
            mine = np.flatnonzero(inside)
            mine = mine[np.argsort(positions[mine], kind="stable")]
            blocks = (positions[mine] - stretch.used) // stretch.per_block
            for of_block in np.split(mine, np.flatnonzero(np.diff(blocks)) + 1) if mine.size else ():
                block = int(positions[of_block[0]] - stretch.used) // stretch.per_block
                sequences[of_block] = self._in_block(component, stretch, block, positions[of_block])
        assert (sequences >= 0).all(), f"positions of {component} that no stage of the mixture draws"
        return sequences

    def _in_block(self, component: Component, stretch: _Stretch, block: int, positions: np.ndarray) -> np.ndarray:
        size = self.schedule.order.block_sequences
        first = stretch.first + block * size
        stop = first + size if stretch.stop is None else min(first + size, stretch.stop)
        components, drawn = self.schedule.draw(first, stop)
        mine = np.flatnonzero(components == self.names.index(component))
        at = mine[np.searchsorted(drawn[mine], positions)]  # within a block a component's positions ascend
        assert (drawn[at] == positions).all(), f"the block from sequence {first} does not draw {component} as its counts say"
        return first + at

    def _updates_of(self, sequences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        segments = self.batch.within(self.schedule.order.first_step, self.stop_update)
        starts, sizes = np.array([start for start, _ in segments]), np.array([size for _, size in segments])
        firsts = np.array([self.schedule.sequences_before(int(start)) for start in starts])
        segment = np.searchsorted(firsts, sequences, side="right") - 1
        updates, places = np.divmod(sequences - firsts[segment], sizes[segment])
        return starts[segment] + updates, places
