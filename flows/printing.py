"""What a command found, as JSON or for people."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click


def print_result(value: Any, for_people: Callable[[Any], None], *, as_json: bool) -> None:
    """What came out, as one JSON object or for people."""
    if as_json:
        click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=_plain))
    else:
        for_people(value)


def _plain(value: Any) -> str:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not JSON")
