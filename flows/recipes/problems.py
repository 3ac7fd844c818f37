"""The problems of a recipe as text, each with its field."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from phasewise.flows.recipes.phase import HAND_OFF, PRETRAINED, SCRATCH, Change
from phasewise.trainer.base.frozen import join_problems, state_problem
from phasewise.trainer.base.wording import near
from phasewise.trainer.config import StatePart

WORDS: Mapping[str, tuple[str, ...]] = {"declares": get_args(Change), "fresh": get_args(StatePart), "part": get_args(StatePart)}


def problems(error: ValidationError, raw: Any = None) -> str:
    """All problems in one line, which ends with a stop. `raw`: the recipe as JSON, for the names of its phases."""

    def described(item: ErrorDetails) -> str:
        value: Any = item["input"]
        names = [part for part in item["loc"] if isinstance(part, str)]
        known = WORDS.get(names[-1]) if names else None
        if item["type"] == "literal_error" and known and isinstance(value, str):
            return f"{_path(item, raw)}: {value!r} is unknown, {near(value, known).removesuffix('.')}"
        return f"{_path(item, raw)}: {state_problem(item)}"

    found = join_problems(error, of_field=described)
    return found if found.endswith("?") else f"{found}."


def _path(item: ErrorDetails, raw: Any) -> str:
    """The field's dotted path for `--set`, without the kind of a start and the only entry of a value by steps."""
    parts: list[str] = []
    at = raw
    for number, part in enumerate(item["loc"]):
        if part in (HAND_OFF, PRETRAINED, SCRATCH):
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
