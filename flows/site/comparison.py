"""What two phases are planned to do differently, field by field."""

from typing import Any

from phasewise.flows.show.difference import ABSENT, aligned, fields_of
from phasewise.trainer.base.wording import in_words

NOT_A_PLAN = ("tokenizer", "recipe", "scale", "phase", "caches", "held_out", "output", "verdict", "checkpoint")
MAX_ROWS = 400


def differences_of(left: dict[str, Any], right: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Field, and the value in each. Values that change at steps are compared stage by stage."""
    plans = [{name: value for name, value in plan.items() if name not in NOT_A_PLAN} for plan in (left, right)]
    for plan in plans:
        if isinstance(start := plan.get("start"), dict):
            plan["start"] = {name: value for name, value in start.items() if name not in NOT_A_PLAN}
    first, second = (fields_of(one) for one in aligned(*plans))
    names = [name for name in {**first, **second} if first.get(name, ABSENT) != second.get(name, ABSENT)]
    return [(_plain(name), _value(name, first), _value(name, second)) for name in names[:MAX_ROWS]]


def _plain(name: str) -> str:
    return name.replace("_", " ").replace(".", ": ", 1)


def _value(name: str, fields: dict[str, Any]) -> str:
    if name not in fields:
        return "–"
    value = fields[name]
    if value is None and (name.startswith("mixture") or name.endswith("from step")):
        return "–"
    if name.startswith("mixture") and isinstance(value, float):
        return f"{value:.2f} %"
    return in_words(value)
