"""How long each kind of work may go on without a sign of progress, before the process counts as stalled.

The limits are fields of `execution`: nothing is trained again for another limit. `PHASEWISE_STALL_SECONDS` replaces some of them, for those
who start a run by `phasewise run`: `step=60,save=900`, and `off` is no limit.
"""

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Literal, NoReturn, get_args

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.config import Execution

STALL_VARIABLE = "PHASEWISE_STALL_SECONDS"
Work = Literal["start", "restore", "data", "compile", "first step", "step", "evaluation", "barrier", "save", "finish"]
"""`compile` is of each new batch shape. `barrier` is where several processes wait for one another."""

FIELD_OF: Mapping[Work, str] = {
    "start": "stall_seconds",
    "compile": "stall_seconds",
    "first step": "stall_seconds",
    "evaluation": "stall_seconds",
    "finish": "stall_seconds",
    "restore": "restore_stall_seconds",
    "save": "save_stall_seconds",
    "step": "step_stall_seconds",
    "data": "step_stall_seconds",
    "barrier": "step_stall_seconds",
}
"""Which field of `execution` is the limit of which work."""
NAMED: Mapping[str, str] = {
    "compile": "stall_seconds",
    "restore": "restore_stall_seconds",
    "save": "save_stall_seconds",
    "step": "step_stall_seconds",
}
"""What the variable calls them."""


def stall_limits(execution: Execution, environment: Mapping[str, str] = os.environ) -> dict[Work, float | None]:
    """The limit in seconds of every work; None is none.

    Raises:
        ConfigError: the variable does not read.
    """
    fields: dict[str, float | None] = {field: getattr(execution, field) for field in NAMED.values()}
    text = environment.get(STALL_VARIABLE, "")
    for part in filter(None, map(str.strip, text.split(","))):
        name, _, value = map(str.strip, part.partition("="))
        fields[NAMED.get(name) or _refuse(text)] = _seconds(value, text)
    return {work: fields[FIELD_OF[work]] for work in get_args(Work)}


def _seconds(value: str, text: str) -> float | None:
    if value == "off":
        return None
    with suppress(ValueError):
        if 0 < (seconds := float(value)) < math.inf:
            return seconds
    return _refuse(text)


def _refuse(text: str) -> NoReturn:
    raise ConfigError(
        f"{STALL_VARIABLE} must be limits such as step=60,save=900 (names: {', '.join(NAMED)}; seconds above 0, or off), "
        f"found '{text}'. Correct it, or leave it unset."
    )
