"""The data order in both directions: the rows of an update, and the updates that draw a row of a cache. No loop runs over steps.

Backward, the inverse of each pass's permutation, or the document buffer's plan, gives the position in the component. Stage and block give
the sequence, and the batch schedule the update. Updates are counted from 0: update u is step u + 1 of the metrics.
"""

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from phasewise.trainer.config import Component, Steps
from phasewise.trainer.data.document_buffer import BufferedComponent, BufferedMixture, Pieces
from phasewise.trainer.data.loader import Order
from phasewise.trainer.data.mixture import MixtureSchedule
from phasewise.trainer.data.permutation import Permutation, derive_key

EMPTY = np.empty(0, np.int64)


class Draws(NamedTuple):
    """Drawn sequences: arrays with an entry each."""

    update: Int[np.ndarray, " n"]  # the update that trains on it, from 0
    place: Int[np.ndarray, " n"]  # its row in the batch, before the batch is divided among micro-batches and hosts
    component: Int[np.ndarray, " n"]  # the number of its component in `TracedOrder.names`
    epoch: Int[np.ndarray, " n"]  # number of earlier passes over the component
    row: Int[np.ndarray, " n"]  # the row of the component's cache, or of the pass if a document buffer fills the rows

    def chosen(self, which: np.ndarray) -> "Draws":
        """Return some of them, by a mask or by numbers."""
        return Draws(*(column[which] for column in self))


class Runs(NamedTuple):
    """Runs of tokens of a component's cache in rows: arrays with an entry each."""

    draw: Int[np.ndarray, " p"]  # the number of the row among the given draws
    at: Int[np.ndarray, " p"]  # offset of the run in the row
    first: Int[np.ndarray, " p"]  # its tokens, counted over the whole cache
    stop: Int[np.ndarray, " p"]


class TracedOrder:
    """The updates `[start_update, stop_update)` of a lineage.

    Args:
        rows: component → rows of its cache, for every component that these updates draw from.
        buffered: component → its rows in the order of training, if the order has a document buffer per component.
        mixed: the rows of the phase, if the order has a document buffer over the mixture.
    """

    def __init__(
        self,
        schedule: MixtureSchedule,
        batch: Steps[int],
        start_update: int,
        stop_update: int,
        rows: Mapping[Component, int],
        buffered: Mapping[Component, BufferedComponent] = MappingProxyType({}),
        mixed: BufferedMixture | None = None,
    ):
        self.schedule, self.batch, self.rows, self.buffered, self.mixed = schedule, batch, rows, buffered, mixed
        self.start_update, self.stop_update = start_update, stop_update
        self.from_caches = schedule.order.buffer_documents is None  # else rows are of a document buffer
        self.names = schedule.components()  # of the lineage, sorted
        # component → number of its sequences in these updates, or for a buffer over the mixture, which reads ahead, the number of all
        self.drawn = schedule.realised(start_update, stop_update)
        if mixed:
            self.drawn = dict.fromkeys(schedule.components_from(start_update), mixed.num_rows)
        self._order = Order(schedule, rows)

    def of_update(self, update: int, place: int | None = None) -> Draws:
        """Return the draws of an update in the order of its batch, or the draw at one place of it.

        A row of a buffer over the mixture has a draw for each of its components and their passes, the largest part first.
        """
        places = np.arange(self.batch.at(update)) if place is None else np.array([place])
        first = self.schedule.sequences_before(update) + int(places[0])
        if self.mixed:
            found: list[tuple[int, int, int, int]] = []
            for place, row in zip(places.tolist(), (first - self.mixed.first + np.arange(len(places))).tolist(), strict=True):
                components, epochs, pieces = self.mixed.split(self.mixed.row(row))
                lengths = Counter[tuple[int, int]]()
                for component, epoch, length in zip(components.tolist(), epochs.tolist(), pieces.length.tolist(), strict=True):
                    lengths[component, epoch] += length
                found += [(place, *part, row) for part, _ in lengths.most_common()]
            return Draws(np.full(len(found), update), *np.array(found).T)
        components, positions = self.schedule.draw(first, first + len(places))
        _, rows = self._order.between(first, first + len(places))
        epochs, within = np.divmod(positions, np.array([self.rows.get(name, 1) for name in self.names])[components])
        return Draws(np.full(len(places), update), places, components, epochs, rows if self.from_caches else within)

    def runs_of(self, component: Component, draws: Draws) -> Runs:
        """Return the tokens of these draws of one component, row by row, if a document buffer fills the rows."""
        found: list[Pieces] = []
        for epoch, row in zip(draws.epoch.tolist(), draws.row.tolist(), strict=True):
            if self.mixed:
                components, epochs, pieces = self.mixed.split(self.mixed.row(row))
                mine = (components == self.names.index(component)) & (epochs == epoch)
                found.append(Pieces(*np.array(pieces)[:, mine]))
            else:
                found.append(self.buffered[component].of_pass(epoch).row(row))
        draw = np.repeat(np.arange(len(found)), np.array([len(pieces.row) for pieces in found], np.int64))
        at = np.concatenate([EMPTY, *(pieces.start for pieces in found)])
        first = np.concatenate([EMPTY, *(pieces.first for pieces in found)])
        length = np.concatenate([EMPTY, *(pieces.length for pieces in found)])
        return Runs(draw, at, first, first + length)

    def components_of(self, update: int) -> Int[np.ndarray, " n"]:
        """Return the number of each row's component in an update, the largest part for a buffer over the mixture."""
        draws = self.of_update(update)
        return draws.component[np.unique(draws.place, return_index=True)[1]]

    def of_ranges(
        self, component: Component, first: Int[np.ndarray, " n"], stop: Int[np.ndarray, " n"]
    ) -> tuple[Int[np.ndarray, " p"], Draws, Runs]:
        """Return every draw of a row that a document buffer filled with tokens of these ranges `[first, stop)` of the cache.

        Returns the number of the range, the draw, and the tokens of the range in its row, with an entry for each piece.
        """
        begin, end, passes = (0, self.mixed.num_rows, range(1)) if self.mixed else self._positions_drawn(component)
        which, positions, found, of_pass = [EMPTY], [EMPTY], [np.empty((3, 0), np.int64)], [EMPTY]
        for epoch in passes:
            if self.mixed:
                ranges, epochs, pieces = self.mixed.pieces_in(self.names.index(component), first, stop)
            else:
                ranges, pieces = self.buffered[component].of_pass(epoch).pieces_of(first, stop)
                epochs = np.full(len(ranges), epoch)
            at = epoch * self.rows.get(component, 0) + pieces.row
            inside = (at >= begin) & (at < end)
            ranges, start, piece_first = ranges[inside], pieces.start[inside], pieces.first[inside]
            low = np.maximum(piece_first, first[ranges])
            high = np.minimum(piece_first + pieces.length[inside], stop[ranges])
            which.append(ranges)
            positions.append(at[inside])
            of_pass.append(epochs[inside])
            found.append(np.stack([start + low - piece_first, low, high]))
        draws = self._draws_at(component, np.concatenate(positions))._replace(epoch=np.concatenate(of_pass))
        return np.concatenate(which), draws, Runs(np.arange(len(draws.row)), *np.concatenate(found, axis=1))

    def of_rows(self, component: Component, rows: Int[np.ndarray, " n"]) -> Draws:
        """Return every draw of these different rows of a component's cache, ordered by update and place."""
        first, stop, passes = self._positions_drawn(component)
        order, length = self.schedule.order, self.rows[component]
        found, drawn_rows = [EMPTY], [EMPTY]
        for epoch in passes:
            key = derive_key("component", order.seed, component, epoch)
            positions = epoch * length + Permutation(order.permutation, length=length, key=key).inverse(rows)
            inside = (positions >= first) & (positions < stop)
            found.append(positions[inside])
            drawn_rows.append(np.asarray(rows, np.int64)[inside])
        draws = self._draws_at(component, np.concatenate(found))._replace(row=np.concatenate(drawn_rows))
        return draws.chosen(np.lexsort((draws.place, draws.update)))

    def _positions_drawn(self, component: Component) -> tuple[int, int, range]:
        """Return the first drawn position of a component, the position after the last, and their passes."""
        first = self.schedule.realised(self.schedule.order.first_step, self.start_update).get(component, 0)
        stop, rows = first + self.drawn.get(component, 0), self.rows[component]
        return first, stop, range(first // rows, -(-stop // rows)) if stop > first else range(0)

    def _draws_at(self, component: Component, positions: np.ndarray) -> Draws:
        """Return the draws of these positions in a component, with `row` the position's row of its pass."""
        if not len(positions):
            return Draws(EMPTY, EMPTY, EMPTY, EMPTY, EMPTY)
        sequences = positions + self.mixed.first if self.mixed else np.full(len(positions), -1, np.int64)
        number, size = self.names.index(component), self.schedule.order.block_sequences
        for stage in () if self.mixed else self.schedule.stages:
            per_block = dict(zip(stage.names, stage.counts, strict=True)).get(component, 0)
            if not per_block:
                continue
            after = self.schedule.stages[stage.number + 1 : stage.number + 2]
            used = stage.used.get(component, 0)
            inside = positions >= used
            for following in after:
                inside &= positions < following.used.get(component, 0)
            mine = np.flatnonzero(inside)
            mine = mine[np.argsort(positions[mine], kind="stable")]
            blocks = (positions[mine] - used) // per_block
            for of_block in np.split(mine, np.flatnonzero(np.diff(blocks)) + 1) if mine.size else ():
                first = stage.first_sequence + int(positions[of_block[0]] - used) // per_block * size
                stop = min([first + size, *(following.first_sequence for following in after)])
                components, drawn = self.schedule.draw(first, stop)
                in_block = np.flatnonzero(components == number)
                at = in_block[np.searchsorted(drawn[in_block], positions[of_block])]  # a component's positions ascend in a block
                assert (drawn[at] == positions[of_block]).all(), f"the block from sequence {first} does not draw {component} by its counts"
                sequences[of_block] = first + at
        assert (sequences >= 0).all(), f"positions of {component} that no stage of the mixture draws"

        segments = self.batch.within(self.schedule.order.first_step, self.stop_update)
        starts, sizes = np.array([start for start, _ in segments]), np.array([size for _, size in segments])
        firsts = np.array([self.schedule.sequences_before(int(start)) for start in starts])
        segment = np.searchsorted(firsts, sequences, side="right") - 1
        updates, places = np.divmod(sequences - firsts[segment], sizes[segment])
        epochs, rows = (np.zeros_like(positions), positions) if self.mixed else np.divmod(positions, self.rows[component])
        return Draws(starts[segment] + updates, places, np.full(len(positions), number), epochs, rows)
