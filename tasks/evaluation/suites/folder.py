"""The folder of real benchmarks that the environment names: the scan searches for its items, and gates ask them."""

import os
from pathlib import Path

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.storage import as_path

BENCHMARKS_VARIABLE = "PHASEWISE_BENCHMARKS"


def real_benchmarks() -> Path | None:
    """The folder that `PHASEWISE_BENCHMARKS` names, if it names one.

    Raises:
        ConfigError: it is not there.
    """
    if not (named := os.environ.get(BENCHMARKS_VARIABLE)):
        return None
    path = as_path(named)
    if not path.exists():
        raise ConfigError(f"{BENCHMARKS_VARIABLE} names {named}, which is not there: correct it, or leave it unset.")
    return path
