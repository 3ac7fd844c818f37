"""`phasewise evaluate`: what is measured, by the options that are given."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from phasewise.flows.recipes import scale_of
from phasewise.flows.recipes.recipe import Scale

WAYS = {
    "suite": {"suite", "benchmarks", "limit", "weights", "allow_code", "tokenizer", "context"},
    "text": {"text", "text_key", "tokenizer"},
    "held_out": {"held_out"},
}
"""Way to measure → the options that it has."""


@dataclass(frozen=True)
class Found:
    """What was measured, how it is printed for people, and whether all that was asked for is there."""

    measured: dict[str, Any]
    print: Callable[[dict[str, Any]], None]
    is_complete: bool = True


def evaluate_by(target: str, scale: Scale | None, home: str | None, options: dict[str, Any]) -> Found:
    """By a suite, by a text, or, where neither is asked for, as the phase's gate does.

    Raises:
        UsageError: two ways are asked for, or an option of another way.
        PhasewiseError: as the ways themselves.
    """
    given = {name: value for name, value in options.items() if value not in (None, False)}
    ways = [way for way in WAYS if way in given]
    if len(ways) > 1:
        raise click.UsageError(f"one measurement at a time: {_named(ways)} were given.")
    _refuse_idle(given, ways[0] if ways else None)
    match ways:
        case ["suite"]:
            from phasewise.flows.commands.evaluate_suite import SuiteOptions, evaluate_suite, is_complete, print_table

            measured = evaluate_suite(target, scale, home, SuiteOptions(**given))
            return Found(measured, print_table, is_complete(measured))
        case ["text"] | ["held_out"]:
            from phasewise.flows.commands.fit import FitOptions, fit_target, print_fit

            given.pop("held_out", None)
            return Found(fit_target(target, scale, home, FitOptions(**given)), print_fit)
        case _:
            from phasewise.flows.commands.evaluate import evaluate_target, print_evaluation

            return Found(evaluate_target(target, scale_of(target, scale), home), print_evaluation)


def _refuse_idle(given: dict[str, Any], way: str | None) -> None:
    """Options that would change nothing."""
    idle = set(given) - (WAYS[way] if way else set[str]())
    if idle:
        needed = [other for other in WAYS if idle <= WAYS[other]]
        raise click.UsageError(f"{_named(sorted(idle))} needs {' or '.join(map(_option, needed)) or 'another measurement'}.")


def _named(names: list[str]) -> str:
    return ", ".join(map(_option, names))


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
