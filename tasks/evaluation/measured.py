"""What is asked of an evaluation."""

from collections.abc import Iterable

from phasewise.tasks.evaluation.renderings import Renderings
from phasewise.trainer.base.frozen import Frozen
from phasewise.validations.evidence.comparable import is_needle

MADE_BENCHMARKS = ("word_order", "next_word")
"""Made from a recipe's own held-out text (`tasks.evaluation.benchmarks`)."""


class Measured(Frozen):
    """Benchmarks by name, bits per byte on so many held-out tokens of each component (None is all there are), and test items under two
    renderings (None reads none)."""

    benchmarks: tuple[str, ...]
    held_out_tokens: int | None
    renderings: Renderings | None = None


def made_of(names: Iterable[str]) -> tuple[str, ...]:
    """Of these benchmarks those that are made here."""
    return tuple(name for name in names if name in MADE_BENCHMARKS)


def real_of(names: Iterable[str]) -> tuple[str, ...]:
    """Of these benchmarks those that lm-eval has, each with its number of examples: `arc_easy:10`."""
    return tuple(name for name in names if name not in MADE_BENCHMARKS and not is_needle(name))


def needles_of(names: Iterable[str]) -> tuple[str, ...]:
    """Of these benchmarks those that hide needles in held-out text, each with its length in tokens: `niah:4096`."""
    return tuple(name for name in names if is_needle(name))


def needle_length(name: str) -> int | None:
    """The tokens that a benchmark of needles says; None where it says no number."""
    _, _, length = name.partition(":")
    return int(length) if length.isascii() and length.isdigit() and str(int(length)) == length else None
