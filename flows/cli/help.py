"""The texts of `--help` from `help.toml`: commands in groups, each with one line, examples, exit codes and details of commands."""

import tomllib
from pathlib import Path
from typing import Any

MAX_WIDTH = 100
_TEXT: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
GROUPS: dict[str, dict[str, str]] = _TEXT["groups"]
DETAILS: dict[str, str] = _TEXT["details"]
EXAMPLES: tuple[tuple[str, str], ...] = tuple(_TEXT["examples"].items())
EXIT_CODES: tuple[tuple[str, str], ...] = tuple(_TEXT["exit_codes"].items())
