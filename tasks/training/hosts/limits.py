"""How long hosts without the launcher's folder may take to send, and go on without a launcher.

| variable | what it says |
|---|---|
| `PHASEWISE_SEND_SECONDS` | how long a host that was asked to stop may take to send, when it has saved; 120 if not set |
| `PHASEWISE_ALONE_SECONDS` | how long a host goes on without a sign of its launcher on the store; 300 if not set |
"""

import math
import os
from collections.abc import Mapping
from contextlib import suppress

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.process.stopping import stop_seconds

SEND_VARIABLE, ALONE_VARIABLE = "PHASEWISE_SEND_SECONDS", "PHASEWISE_ALONE_SECONDS"
SEND_SECONDS, ALONE_SECONDS = 120.0, 300.0


def send_seconds(environment: Mapping[str, str] = os.environ) -> float:
    """How long a host that was asked to stop may take to send.

    Raises:
        ConfigError: the variable is no number above 0.
    """
    return _seconds(environment, SEND_VARIABLE, SEND_SECONDS)


def alone_seconds(environment: Mapping[str, str] = os.environ) -> float:
    """After how long without a sign of its launcher a host ends.

    Raises:
        ConfigError: the variable is no number above 0.
    """
    return _seconds(environment, ALONE_VARIABLE, ALONE_SECONDS)


def save_and_send_seconds() -> float:
    """How long a host that was asked to stop may take in all.

    Raises:
        ConfigError: a variable is no number above 0.
    """
    return stop_seconds() + send_seconds()


def _seconds(environment: Mapping[str, str], name: str, default: float) -> float:
    value = environment.get(name) or str(default)
    with suppress(ValueError):
        if 0 < (seconds := float(value)) < math.inf:
            return seconds
    raise ConfigError(f"{name} must be a number of seconds above 0, found '{value}'. Correct it, or leave it unset.")
