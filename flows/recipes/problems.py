"""What is wrong with a recipe, in words: every problem, each with its field."""

from collections.abc import Mapping
from contextlib import suppress
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from phasewise.flows.recipes.phase import HAND_OFF, SCRATCH, Change
from phasewise.trainer.base.frozen import join_problems, state_problem
from phasewise.trainer.config import StatePart

WORDS: Mapping[str, tuple[str, ...]] = {"declares": get_args(Change), "fresh": get_args(StatePart), "part": get_args(StatePart)}


def problems(error: ValidationError, raw: Any = None) -> str:
    """All of them in one line, with its stop.

    Args:
        raw: the recipe that was refused, as JSON has it: its phases are then called by their names.
    """
    found = join_problems(error, of_field=lambda item: f"{_place(item, raw)}: {_said(item)}")
    return found if found.endswith("?") else f"{found}."


def near(name: str, known: "list[str] | tuple[str, ...]") -> str:
    """Which known names are like this one, else which there are; with its stop."""
    alike = get_close_matches(name, known, n=3)
    return f"did you mean {' or '.join(alike)}?" if alike else f"there are {', '.join(known)}."


def _place(item: ErrorDetails, raw: Any) -> str:
    """The field's dotted path, as `--set` takes it: without the kind of a start, and without the only entry of a value by steps."""
    parts: list[str] = []
    at = raw
    for number, part in enumerate(item["loc"]):
        if part in (HAND_OFF, SCRATCH):
            continue
        inner: Any = None
        with suppress(KeyError, IndexError, TypeError):
            inner = at[part]
        named = inner.get("name") if number == 1 and item["loc"][0] == "phases" and isinstance(inner, dict) else None
        parts = [named] if isinstance(named, str) else [*parts, str(part)]
        at = inner
    if raw is not None and parts[-2:] == ["0", "1"] and len(parts) > 2:
        parts = parts[:-2]
    return ".".join(parts) or "recipe"


def _said(item: ErrorDetails) -> str:
    value: Any = item["input"]
    names = [part for part in item["loc"] if isinstance(part, str)]
    known = WORDS.get(names[-1]) if names else None
    if item["type"] == "literal_error" and known and isinstance(value, str):
        return f"{value!r} is none of its words; {near(value, known).removesuffix('.')}"
    return state_problem(item)
