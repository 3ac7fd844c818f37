"""What is wrong with a recipe, in words: every problem, each with its field."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from flows.recipes.phase import HAND_OFF, SCRATCH, Change
from trainer.config import StatePart

WORDS: Mapping[str, tuple[str, ...]] = {"declares": get_args(Change), "fresh": get_args(StatePart), "part": get_args(StatePart)}


def problems(error: ValidationError) -> str:
    """All of them in one line, with its stop."""
    found = "; ".join(dict.fromkeys(_problem(item) for item in error.errors()))
    return found if found.endswith("?") else f"{found}."


def near(name: str, known: "list[str] | tuple[str, ...]") -> str:
    """Which known names are like this one, else which there are; with its stop."""
    alike = get_close_matches(name, known, n=3)
    return f"did you mean {' or '.join(alike)}?" if alike else f"there are {', '.join(known)}."


def _problem(item: ErrorDetails) -> str:
    place = ".".join(str(part) for part in item["loc"] if part not in (HAND_OFF, SCRATCH)) or "recipe"
    return f"{place}: {_said(item)}"


def _said(item: ErrorDetails) -> str:
    value: Any = item["input"]
    names = [part for part in item["loc"] if isinstance(part, str)]
    known = WORDS.get(names[-1]) if names else None
    if item["type"] == "literal_error" and known and isinstance(value, str):
        return f"{value!r} is none of its words; {near(value, known).removesuffix('.')}"
    return item["msg"].removeprefix("Value error, ").replace("\n", " ")
