"""The component and the position of every sequence of a run: exact counts in each block, by random access.

Blocks are counted from the first sequence of a *stage*, a stretch with one mixture. Within a block the components have exact counts and are
spread evenly from keyed random starts: any stretch of it has every component's share to within about a sequence. A component's position
continues through stages and phases. docs/decisions/0001-configuration.md has the rules for schedules.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.config import Component, DataOrder, MixtureShares, RunConfig, Steps, sequences_between
from phasewise.trainer.data.permutation import derive_key

ROUNDING_ERROR = 1e-9  # the largest error of floating point in a whole count


def block_counts(shares: MixtureShares, order: DataOrder) -> dict[Component, int]:
    """Return sequences of each component in one block: rounded down, and up for the largest remainders (on a tie, for the first name).

    If the order rounds by `floor`, the component with the largest share gets the whole rest.
    """
    total, block = sum(shares.values()), order.block_sequences
    exact = {name: share * block / total for name, share in shares.items()}
    counts = {name: int(value + ROUNDING_ERROR) for name, value in exact.items()}
    rest = block - sum(counts.values())
    if order.rounding == "floor":
        counts[min(exact, key=lambda name: (-exact[name], name))] += rest
        return counts
    by_remainder = sorted(exact, key=lambda name: (counts[name] - exact[name], name))
    for name in by_remainder[:rest]:
        counts[name] += 1
    return counts


def check_shares(
    shares: MixtureShares, order: DataOrder, *, step: int, max_error_points: float, max_error_percent: float | None = None
) -> None:
    """Raise ConfigError if counts in a block differ more from the shares than the recipe allows.

    Args:
        max_error_points: in percentage points of the mixture.
        max_error_percent: in percent of the component's share. None is no limit.
    """
    limits = {"percentage points": max_error_points, "% of its share": max_error_percent}
    counts, total, block = block_counts(shares, order), sum(shares.values()), order.block_sequences
    for unit, errors in _share_errors(shares, order).items():
        worst, limit = max(errors, key=lambda name: errors[name]), limits[unit]
        if limit is None or errors[worst] <= limit:
            continue
        found = 100 * counts[worst] / block
        remedies = [f"a share of {found:.4g} %"]
        by_remainder = order.but(rounding="largest_remainder")
        if order.rounding == "floor" and max(_share_errors(shares, by_remainder)[unit].values()) <= limit:
            remedies.append("rounding by largest_remainder")
        elif limit:
            rounded = ", rounded by largest_remainder" if order.rounding == "floor" else ""
            part = 1 if unit == "percentage points" else shares[worst] / total
            remedies.append(f"blocks of {math.ceil(100 / limit / part)} sequences{rounded}")
        would_do = ", or ".join(remedies) + ("," if len(remedies) > 1 else "")
        raise ConfigError(
            f"component {worst} is {shares[worst]:.4g} % of the mixture from step {step} and {found:.4g} % of a block of {block} sequences "
            f"({counts[worst]} of them), {errors[worst]:.2g} {unit} off where the recipe allows {limit:g}: {would_do} would do."
        )


def _share_errors(shares: MixtureShares, order: DataOrder) -> dict[str, dict[Component, float]]:
    total, counts = sum(shares.values()), block_counts(shares, order)
    points = {name: abs(100 * counts[name] / order.block_sequences - 100 * share / total) for name, share in shares.items()}
    percents = {name: points[name] / (share / total) for name, share in shares.items() if share}
    return {"percentage points": points, "% of its share": percents}


@dataclass(frozen=True)
class Stage:
    """One mixture from `first_step` on."""

    number: int
    first_step: int
    first_sequence: int
    names: tuple[Component, ...]
    counts: tuple[int, ...]  # sequences of each of `names` in a block
    used: dict[Component, int] = field(hash=False)  # sequences of each component in all earlier stages
    cut_sequences: int  # sequences in the block that this stage's start cuts short. 0 if it starts on the grid of blocks


class MixtureSchedule:
    """The order of all sequences of a lineage. Raises ConfigError for a component without a sequence in a block, or an undeclared cut."""

    def __init__(self, *, batch: Steps[int], mixture: Steps[MixtureShares], order: DataOrder):
        self.mixture, self.order, self._batch = mixture, order, batch
        self.stages: list[Stage] = []
        self._first_sequences: list[int] = []
        entries = mixture.within(max(order.first_step, mixture.root[0][0]), 1 + mixture.root[-1][0])
        for number, (step, shares) in enumerate(entries):
            counts, block = block_counts(shares, order), order.block_sequences
            if lost := {name: share for name, share in shares.items() if share > 0 and not counts[name]}:
                named, each = ", ".join(f"{name} ({share:.3g} %)" for name, share in lost.items()), "it" if len(lost) == 1 else "each"
                share, larger = math.ceil(1e6 / block) / 1e4, math.ceil(sum(shares.values()) / min(lost.values()) - 1e-9)
                raise ConfigError(
                    f"the mixture from step {step} must have a sequence of every component in every block, and a block of {block} has "
                    f"none of {named}: give {each} {share:g} %, or take blocks of {larger} sequences."
                )
            first = self.sequences_before(step) if self.stages else 0
            used = self._used_before(first) if self.stages else {}
            cut = (first - self.stages[-1].first_sequence) % block if self.stages else 0
            first_step = step if self.stages else order.first_step
            self.stages.append(Stage(number, first_step, first, tuple(counts), tuple(counts.values()), used, cut))
            self._first_sequences.append(first)
        for before, stage in zip(self.stages, self.stages[1:], strict=False):
            if stage.cut_sequences and not order.cut_blocks:
                raise ConfigError(
                    f"the mixture from step {stage.first_step} must start where a block of {order.block_sequences} sequences ends, found "
                    f"{stage.cut_sequences} sequences in the block before it: {self._advise(before, stage)}let the recipe's order declare "
                    "cut_blocks."
                )

    @classmethod
    def of_run(cls, run: RunConfig) -> "MixtureSchedule":
        """Build the schedule of a run's lineage."""
        return cls(batch=run.batch, mixture=run.mixture, order=run.order)

    def sequences_before(self, step: int) -> int:
        """Return how many sequences the updates before `step` use, from the first step of the order on."""
        return sequences_between(self._batch, self.order.first_step, step) if step > self.order.first_step else 0

    def draw(self, first: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return numbers in `components()`, and positions in the component, of sequences `[first, stop)` from the lineage's first."""
        numbers = {name: number for number, name in enumerate(self.components())}
        components, positions = np.empty(stop - first, np.int64), np.empty(stop - first, np.int64)
        at = first
        while at < stop:
            stage = self.stages[bisect_right(self._first_sequences, at) - 1]
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
        """Return the components of all stages in the order of their names."""
        return tuple(sorted({name for stage in self.stages for name in stage.names}))

    def components_from(self, step: int) -> tuple[Component, ...]:
        """Return the components with sequences at `step` or later, in the order of their names."""
        stages = [
            stage
            for stage, end in zip(self.stages, [*(later.first_step for later in self.stages[1:]), math.inf], strict=True)
            if end > step
        ]
        return tuple(sorted({name for stage in stages for name, count in zip(stage.names, stage.counts, strict=True) if count}))

    def realised(self, start_step: int, stop_step: int) -> dict[Component, int]:
        """Return how many sequences of each component the updates `[start_step, stop_step)` use."""
        before, after = self._used_before(self.sequences_before(start_step)), self._used_before(self.sequences_before(stop_step))
        return {name: after[name] - before.get(name, 0) for name in sorted(after) if after[name] > before.get(name, 0)}

    def cut_at(self, step: int) -> int:
        """Return how many sequences the block has that a stage from `step` on cuts short, or 0."""
        return next((stage.cut_sequences for stage in self.stages if stage.first_step == step), 0)

    def _used_before(self, sequence: int) -> dict[Component, int]:
        stage = self.stages[bisect_right(self._first_sequences, sequence) - 1]
        blocks, rest = divmod(sequence - stage.first_sequence, self.order.block_sequences)
        totals = blocks * np.array(stage.counts, np.int64)
        if rest:
            order, _ = _block_order(stage, blocks, self.order.seed)
            totals = totals + np.bincount(order[:rest], minlength=len(stage.names))
        drawn = {name: int(total) for name, total in zip(stage.names, totals, strict=True) if total}
        return {name: stage.used.get(name, 0) + drawn.get(name, 0) for name in {*stage.used, *drawn}}

    def _advise(self, before: Stage, stage: Stage) -> str:
        """Name the nearest steps with this batch size at which the stage could start on the grid. Both stages must keep a step."""
        block, first = self.order.block_sequences, stage.first_step
        changes = [step for step, _ in self._batch.root[1:]]
        start = max([first - block, before.first_step + 1, *(step for step in changes if step < first)])
        ends = [step for step in changes if step >= first] + [following.first_step - 1 for following in self.stages[stage.number + 1 :]]
        steps = range(start, min([first + block, *ends]) + 1)
        good = [step for step in steps if (self.sequences_before(step) - before.first_sequence) % block == 0]
        near = [*[step for step in good if step < first][-1:], *[step for step in good if step > first][:1]]
        return f"start it at step {' or '.join(map(str, near))}, or " if near else ""


@lru_cache(maxsize=16)
def _block_order(stage: Stage, block: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the components of a block's sequences in order, and each sequence's rank among its component's in the block.

    The place of sequence j of a component with n of them is (j + u) / n of the block, with u in [0, 1) from the key.
    """
    starts = np.array([derive_key("block", seed, stage.number, block, name) / 2**64 for name in stage.names])
    components = np.repeat(np.arange(len(stage.names)), stage.counts)
    ranks = np.arange(len(components)) - np.repeat(np.cumsum([0, *stage.counts[:-1]]), stage.counts)
    places = (ranks + starts[components]) / np.array(stage.counts)[components]
    order = np.argsort(places, kind="stable")
    return components[order], ranks[order]
