"""The data order both ways: what an update draws, and at which updates a row of a cache is drawn. No step is iterated over.

Forward it asks what the loader asks, `MixtureSchedule` and `Order`. Backward it solves the same for the sequence: the inverse of each
pass's permutation gives the position within the component, the stage's counts give the block, the block's order gives the place in it, and
the segments of the batch schedule give update and place in the batch.

Updates are counted from 0 here, as the loader counts them. Update u makes step u + 1 of the metrics.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from trainer.base.errors import ConfigError
from trainer.config import Component, Steps
from trainer.data.loader import SPAN_SEQUENCES, Order
from trainer.data.mixture import MixtureSchedule, block_counts
from trainer.data.permutation import Permutation, derive_key


class Draws(NamedTuple):
    """Sequences as they are drawn: arrays with an entry each.

    Attributes:
        update: the update that trains on it, from 0.
        place: its row in the batch, before the batch is cut into parts and shared by hosts.
        component: the number of its component in `TracedOrder.names`.
        epoch: how many passes over the component were completed before.
        row: the row of the component's cache.
    """

    update: Int[np.ndarray, " n"]
    place: Int[np.ndarray, " n"]
    component: Int[np.ndarray, " n"]
    epoch: Int[np.ndarray, " n"]
    row: Int[np.ndarray, " n"]

    def chosen(self, which: np.ndarray) -> "Draws":
        """Some of them, by a mask or by numbers."""
        return Draws(*(column[which] for column in self))


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

    Raises:
        ConfigError: the order has a document buffer, whose rows are no rows of the cache.
    """

    schedule: MixtureSchedule
    batch: Steps[int]
    start_update: int
    stop_update: int
    rows: Mapping[Component, int]

    def __post_init__(self) -> None:
        documents = self.schedule.order.buffer_documents
        if documents is not None:
            raise ConfigError(
                f"an order that can be traced must draw rows of the caches, found order.buffer_documents {documents} in the phase that "
                f"ends at step {self.stop_update}: trace a phase without a document buffer."
            )

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
        lengths = np.array([self.rows.get(name, 1) for name in self.names])
        return Draws(np.full(len(places), update), places, components, positions // lengths[components], rows)

    def of_rows(self, component: Component, rows: Int[np.ndarray, " n"]) -> Draws:
        """Every draw of these rows of a component's cache, ordered by update and place. Rows must be different from each other."""
        first = self.schedule.realised(self.schedule.order.first_step, self.start_update).get(component, 0)
        stop = first + self.drawn.get(component, 0)
        found = [self._of_pass(component, epoch, rows, (first, stop)) for epoch in self._passes(component, first, stop)]
        number = self.names.index(component) if component in self.names else 0
        if not found:
            empty = np.empty(0, np.int64)
            return Draws(empty, empty, empty, empty, empty)
        epochs, positions, drawn_rows = np.concatenate(found, axis=1)
        updates, places = self._updates_of(self._sequences_of(component, positions))
        draws = Draws(updates, places, np.full(len(updates), number), epochs, drawn_rows)
        return draws.chosen(np.lexsort((places, updates)))

    def _passes(self, component: Component, first: int, stop: int) -> range:
        return range(first // self.rows[component], -(-stop // self.rows[component])) if stop > first else range(0)

    def _of_pass(self, component: Component, epoch: int, rows: np.ndarray, drawn: tuple[int, int]) -> np.ndarray:
        """Pass, position within the component, and row, of those rows that are drawn in a pass."""
        order, length = self.schedule.order, self.rows[component]
        key = derive_key("component", order.seed, component, epoch)
        positions = epoch * length + Permutation.build(order.permutation, length=length, key=key).inverse(rows)
        inside = (positions >= drawn[0]) & (positions < drawn[1])
        return np.stack([np.full(int(inside.sum()), epoch), positions[inside], np.asarray(rows, np.int64)[inside]])

    def _sequences_of(self, component: Component, positions: np.ndarray) -> np.ndarray:
        """The lineage's sequence at which the component gives each of its positions."""
        sequences = np.full(len(positions), -1, np.int64)
        stretches = self._stretches(component)
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

    def _stretches(self, component: Component) -> list[_Stretch]:
        """The mixtures that have the component, in order."""
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
        return found

    def _updates_of(self, sequences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The update that has each of these sequences, and its place in the batch."""
        segments = self.batch.within(self.schedule.order.first_step, self.stop_update)
        starts, sizes = np.array([start for start, _ in segments]), np.array([size for _, size in segments])
        firsts = np.array([self.schedule.sequences_before(int(start)) for start in starts])
        segment = np.searchsorted(firsts, sequences, side="right") - 1
        updates, places = np.divmod(sequences - firsts[segment], sizes[segment])
        return starts[segment] + updates, places
