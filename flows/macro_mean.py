"""Mean bits per byte over components, so that it may be read from phase to phase: over the same ones in all.

A phase of conversations is measured on these as well, and they are another kind of text. A mean over all that each phase was measured on
would rise there although nothing became worse.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from phasewise.trainer.config import Component


class MacroMean(NamedTuple):
    """Of one phase, and of its averaged weights; None where it was not measured."""

    trained: float | None
    averaged: float | None


def shared_components(evaluations: Sequence[Mapping[str, Any] | None]) -> tuple[Component, ...]:
    """The components on which all phases that were evaluated were measured, where some were measured on others as well; else none."""
    measured = [set(evaluation["bits_per_byte"]) for evaluation in evaluations if evaluation and evaluation.get("bits_per_byte")]
    if not measured or all(names == measured[0] for names in measured):
        return ()
    return tuple(sorted(set.intersection(*measured)))


def macro_mean(evaluation: Mapping[str, Any] | None, shared: Sequence[Component]) -> MacroMean:
    """Of one phase: over the shared components, or else over its own. Of averaged weights only the mean over all is kept."""
    if not evaluation:
        return MacroMean(None, None)
    values = evaluation.get("bits_per_byte", {})
    if not shared or set(shared) == set(values):
        return MacroMean(evaluation.get("macro_bits_per_byte"), evaluation.get("ema_macro_bits_per_byte"))
    return MacroMean(sum(values[name] for name in shared) / len(shared), None)
