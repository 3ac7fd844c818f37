"""Which component each sequence of a run comes from, and which of its sequences: exact counts a block, by random access.

A *stage* is a stretch with one mixture. Blocks are counted from the stage's first sequence; within a block the components have exact
counts (largest remainder) and are spread evenly, each from a keyed random start: any stretch of a block, and so the last block of a
stage, which may be cut short, has every component's share to within about a sequence. Nothing is kept but the number of a sequence: a
component's position goes on from stage to stage and from phase to phase. What a schedule must keep to is in
docs/decisions/0001-configuration.md.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.config import Component, DataOrder, MixtureShares, Steps, sequences_between
from phasewise.trainer.data.permutation import derive_key

ROUNDING_ERROR = 1e-9
"""What floating point may take from a count that is whole."""


def block_counts(shares: MixtureShares, order: DataOrder) -> dict[Component, int]:
    """Sequences of each component in one block: floors, and the largest remainders take what is left (ties by name).

    Where the order rounds by `floor`, the component with the largest share takes all that is left.
    """
    total, block = sum(shares.values()), order.block_sequences
    exact = {name: share * block / total for name, share in shares.items()}
    counts = {name: int(value + ROUNDING_ERROR) for name, value in exact.items()}
    left = block - sum(counts.values())
    if order.rounding == "floor":
        counts[min(exact, key=lambda name: (-exact[name], name))] += left
        return counts
    by_remainder = sorted(exact, key=lambda name: (counts[name] - exact[name], name))
    for name in by_remainder[:left]:
        counts[name] += 1
    return counts


def check_shares(
    shares: MixtureShares, order: DataOrder, *, step: int, max_error_points: float, max_error_percent: float | None = None
) -> None:
    """Refuse a mixture whose counts in a block are further from its shares than the recipe allows.

    Args:
        max_error_points: in percentage points of the mixture.
        max_error_percent: in percent of the component's own share; None is any.

    Raises:
        ConfigError: the component that is furthest off.
    """
    limits = {"percentage points": max_error_points, "% of its share": max_error_percent}
    counts, total, block = block_counts(shares, order), sum(shares.values()), order.block_sequences
    for unit, errors in _errors(shares, order).items():
        worst, limit = max(errors, key=lambda name: errors[name]), limits[unit]
        if limit is None or errors[worst] <= limit:
            continue
        found = 100 * counts[worst] / block
        remedies = [f"a share of {found:.4g} %"]
        carried = order.but(rounding="largest_remainder")
        if order.rounding == "floor" and max(_errors(shares, carried)[unit].values()) <= limit:
            remedies.append("rounding by largest_remainder")
        elif limit:
            by_remainder = ", rounded by largest_remainder" if order.rounding == "floor" else ""
            part = 1 if unit == "percentage points" else shares[worst] / total
            remedies.append(f"blocks of {math.ceil(100 / limit / part)} sequences{by_remainder}")
        would_do = ", or ".join(remedies) + ("," if len(remedies) > 1 else "")
        raise ConfigError(
            f"component {worst} is {shares[worst]:.4g} % of the mixture from step {step} and {found:.4g} % of a block of {block} sequences "
            f"({counts[worst]} of them), {errors[worst]:.2g} {unit} off where the recipe allows {limit:g}: {would_do} would do."
        )


def _errors(shares: MixtureShares, order: DataOrder) -> dict[str, dict[Component, float]]:
    total, counts = sum(shares.values()), block_counts(shares, order)
    points = {name: abs(100 * counts[name] / order.block_sequences - 100 * share / total) for name, share in shares.items()}
    percents = {name: points[name] / (share / total) for name, share in shares.items() if share}
    return {"percentage points": points, "% of its share": percents}


@dataclass(frozen=True)
class Stage:
    """One mixture from `first_step` on.

    Attributes:
        counts: sequences of each of `names` in a block.
        used: sequences that each component gave before it.
        cut_sequences: how many sequences the block has that this stage's start cuts short; 0 where it starts on the grid.
    """

    number: int
    first_step: int
    first_sequence: int
    names: tuple[Component, ...]
    counts: tuple[int, ...]
    used: dict[Component, int] = field(hash=False)
    cut_sequences: int


class MixtureSchedule:
    """The order of all sequences of a lineage, from its batch and mixture schedules.

    Raises:
        ConfigError: a component with a share has no sequence in a block, or a stage cuts a block and the order does not declare it.
    """

    def __init__(self, *, batch: Steps[int], mixture: Steps[MixtureShares], order: DataOrder):
        self.mixture, self.order, self._batch = mixture, order, batch
        self._stages: list[Stage] = []
        entries = mixture.within(max(order.first_step, mixture.root[0][0]), 1 + mixture.root[-1][0])
        for number, (step, shares) in enumerate(entries):
            counts = block_counts(shares, order)
            _check_counts(step, shares, counts)
            self._stages.append(self._stage(number, step, counts))
        self._first_sequences = [stage.first_sequence for stage in self._stages]
        for number in range(1, len(self._stages)):
            self._check_boundary(number)

    def sequences_before(self, step: int) -> int:
        """Sequences that the updates before `step` consume, counted from where the order begins."""
        return sequences_between(self._batch, self.order.first_step, step) if step > self.order.first_step else 0

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """For each sequence of update `step`: its component's number in `components()`, and its position within the component."""
        first = self.sequences_before(step)
        return self.draw(first, first + self._batch.at(step))

    def draw(self, first: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """The same for the sequences `[first, stop)`, counted from the lineage's first."""
        numbers = {name: number for number, name in enumerate(self.components())}
        components, positions = np.empty(stop - first, np.int64), np.empty(stop - first, np.int64)
        at = first
        while at < stop:
            stage = self._stage_of(at)
            following = self._first_sequences[stage.number + 1 : stage.number + 2]
            block, within = divmod(at - stage.first_sequence, self.order.block_sequences)
            count = min([stop - at, self.order.block_sequences - within, *(later - at for later in following)])
            order, ranks = _block_order(stage, block, self.order.seed)
            chosen = order[within : within + count]
            used = np.array([stage.used.get(name, 0) for name in stage.names])
            out = slice(at - first, at - first + count)
            components[out] = np.array([numbers[name] for name in stage.names])[chosen]
            positions[out] = used[chosen] + block * np.array(stage.counts)[chosen] + ranks[within : within + count]
            at += count
        return components, positions

    def components(self) -> tuple[Component, ...]:
        """Every component of every stage, sorted by name."""
        return tuple(sorted({name for stage in self._stages for name in stage.names}))

    def realised(self, start_step: int, stop_step: int) -> dict[Component, int]:
        """Sequences that each component gives over `[start_step, stop_step)`."""
        before, after = self._used_at(self.sequences_before(start_step)), self._used_at(self.sequences_before(stop_step))
        return {name: after[name] - before.get(name, 0) for name in sorted(after) if after[name] > before.get(name, 0)}

    def cut_at(self, step: int) -> int:
        """Sequences in the block that a stage which starts at `step` cuts short; 0 where none does."""
        return next((stage.cut_sequences for stage in self._stages if stage.first_step == step), 0)

    def _stage(self, number: int, step: int, counts: dict[Component, int]) -> Stage:
        if not self._stages:
            return Stage(number, self.order.first_step, 0, tuple(counts), tuple(counts.values()), {}, 0)
        first, last = self.sequences_before(step), self._stages[-1]
        drawn = self._drawn_in(last, first - last.first_sequence)
        used = {name: last.used.get(name, 0) + drawn.get(name, 0) for name in {*last.used, *drawn}}
        cut = (first - last.first_sequence) % self.order.block_sequences
        return Stage(number, step, first, tuple(counts), tuple(counts.values()), used, cut)

    def _check_boundary(self, number: int) -> None:
        stage = self._stages[number]
        if not stage.cut_sequences or self.order.cut_blocks:
            return
        good = self._steps_on_grid(number)
        advice = f"start it at step {' or '.join(map(str, good))}, or " if good else self._what_moved_the_grid(number)
        raise ConfigError(
            f"the mixture from step {stage.first_step} must start where a block of {self.order.block_sequences} sequences ends, found "
            f"{stage.cut_sequences} sequences in the block before it: {advice}let the recipe's order declare cut_blocks."
        )

    def _steps_on_grid(self, number: int) -> tuple[int, ...]:
        """The nearest steps before and after a stage's first that end a block, while the batch size is the one that leads to it.

        The stage before it must keep a step, and so must this one.
        """
        before, stage = self._stages[number - 1], self._stages[number]
        changes = [step for step, _ in self._batch.root[1:]]
        start = max(before.first_step, *(step for step in (0, *changes) if step < stage.first_step))
        last = min(
            [*(step for step in changes if step >= stage.first_step), *(s.first_step - 1 for s in self._stages[number + 1 :])], default=None
        )
        around = self._ends_of_blocks(before, start, stage.first_step)
        return tuple(step for step in around if max(start - 1, before.first_step) < step and (last is None or step <= last))

    def _what_moved_the_grid(self, number: int) -> str:
        before, stage, block = self._stages[number - 1], self._stages[number], self.order.block_sequences
        edges = [*self._batch.within(before.first_step, stage.first_step), (stage.first_step, 0)]
        for (start, size), (end, following), (after, _) in reversed(list(zip(edges, edges[1:], edges[2:], strict=False))):
            rest = sequences_between(self._batch, after, stage.first_step) if after < stage.first_step else 0
            around = self._ends_of_blocks(before, start, end) if size % block else ()
            good = [step for step in around if start < step < after and (following * (after - step) + rest) % block == 0]
            if good:
                ended = " or ".join(map(str, good))
                return f"the batches of {size} sequences in steps {start} to {end} put it out; end them at step {ended}, or "
        return ""

    def _ends_of_blocks(self, stage: Stage, start: int, near: int) -> tuple[int, ...]:
        """The last step before `near` and the first one from it on that end a block of `stage`, by the batches of step `start`.

        They solve offset + size · k ≡ 0 modulo the block.
        """
        block, size = self.order.block_sequences, self._batch.at(start)
        offset = (self.sequences_before(start) - stage.first_sequence) % block
        divisor = math.gcd(size, block)
        if offset % divisor:
            return ()
        period = block // divisor
        first = start + (-offset // divisor * pow(size // divisor, -1, period)) % period
        later = first + max(0, -(-(near - first) // period)) * period
        return later - period, later

    def _used_at(self, sequence: int) -> dict[Component, int]:
        stage = self._stage_of(sequence)
        drawn = self._drawn_in(stage, sequence - stage.first_sequence)
        return {name: stage.used.get(name, 0) + drawn.get(name, 0) for name in {*stage.used, *drawn}}

    def _stage_of(self, sequence: int) -> Stage:
        return self._stages[bisect_right(self._first_sequences, sequence) - 1]

    def _drawn_in(self, stage: Stage, sequences: int) -> dict[Component, int]:
        blocks, rest = divmod(sequences, self.order.block_sequences)
        totals = blocks * np.array(stage.counts, np.int64)
        if rest:
            order, _ = _block_order(stage, blocks, self.order.seed)
            totals = totals + np.bincount(order[:rest], minlength=len(stage.names))
        return {name: int(total) for name, total in zip(stage.names, totals, strict=True) if total}


def _check_counts(step: int, shares: MixtureShares, counts: dict[Component, int]) -> None:
    lost = {name: share for name, share in shares.items() if share > 0 and not counts[name]}
    if lost:
        block = sum(counts.values())
        named, each = ", ".join(f"{name} ({share:.3g} %)" for name, share in lost.items()), "it" if len(lost) == 1 else "each"
        share, larger = math.ceil(1e6 / block) / 1e4, math.ceil(sum(shares.values()) / min(lost.values()) - 1e-9)
        raise ConfigError(
            f"the mixture from step {step} must have a sequence of every component in every block, and a block of {block} has none of "
            f"{named}: give {each} {share:g} %, or take blocks of {larger} sequences."
        )


@lru_cache(maxsize=16)
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
