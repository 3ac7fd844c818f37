"""How often what is done here is kept on the store."""

import math
import os
from collections.abc import Mapping
from contextlib import suppress

from phasewise.trainer.base.errors import ConfigError

PUBLISH_SECONDS = 30.0
"""What a machine that is lost had done since the last time is done again."""
PUBLISH_VARIABLE = "PHASEWISE_PUBLISH_SECONDS"


def publish_seconds(environment: Mapping[str, str] = os.environ) -> float:
    """How often it is looked whether there is something to commit.

    Raises:
        ConfigError: `PHASEWISE_PUBLISH_SECONDS` is no number above 0.
    """
    value = environment.get(PUBLISH_VARIABLE) or str(PUBLISH_SECONDS)
    with suppress(ValueError):
        if 0 < (seconds := float(value)) < math.inf:
            return seconds
    raise ConfigError(f"{PUBLISH_VARIABLE} must be a number of seconds above 0, found '{value}'. Correct it, or leave it unset.")
