"""Commands of `phasewise` in a process of tests."""

import json
from collections.abc import Callable
from typing import Any

from click.testing import Result

Run = Callable[..., Result]
PHASES = ["kestrel", "ocelot", "jellyfish", "phoenix", "starling", "deeper-starling"]


def assert_refused(result: Result, code: int, *said: str) -> None:
    assert isinstance(result.exception, SystemExit), result.exception
    assert (result.exit_code, result.stdout) == (code, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("phasewise: ")
    assert all(part in line for part in said), line


def read(result: Result) -> dict[str, Any]:
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)
