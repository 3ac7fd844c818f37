"""Hosts that have a folder each: the run's folder is at a place of its own on every host, and none sees what the others write there.

| variable | what it says |
|---|---|
| `PHASEWISE_APART` | 1: it is so. Not set: all processes of the run see one folder |

Each host then writes its share of a checkpoint into its own folder, and all tell one another the digests of what they wrote. To go on,
every host must find the whole checkpoint in its folder: whoever started it has brought it there.
"""

import os
from collections.abc import Mapping
from typing import Any

import jax

from phasewise.trainer.base.errors import ConfigError, TrainingError
from phasewise.trainer.config import RunConfig

APART_VARIABLE = "PHASEWISE_APART"
TELL_SECONDS = 300
"""How long a host waits for the words of the others: the slowest has read all that it wrote."""


def are_apart(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether every host has a folder of its own.

    Raises:
        ConfigError: the variable says something else than 1.
    """
    value = environment.get(APART_VARIABLE, "")
    if value not in ("", "1"):
        raise ConfigError(f"{APART_VARIABLE} must be 1 or not be set, found '{value}'. Correct it, or leave it unset.")
    return bool(value)


def check_goes_apart(run: RunConfig) -> None:
    """Refuse what hosts with folders of their own cannot do yet.

    Raises:
        ConfigError: the phase rolls back. For that every host would need checkpoints whole that it has only a share of.
    """
    if run.recovery is not None:
        raise ConfigError(
            f"{run.phase} rolls back where its loss jumps (recovery), and hosts without a common folder cannot: a host has its own share "
            "of a checkpoint alone. Set recovery to null, or take a home in a folder that all hosts see."
        )


class Exchange:
    """What all processes of a run tell one another, by the coordinator's store of keys. No device waits."""

    def __init__(self, client: Any, index: int, count: int) -> None:
        self._client, self._index, self._count = client, index, count
        self._number = 0

    def tell(self, what: str, said: str) -> list[str]:
        """What each process says of the same, in their order. All must ask, equally often.

        Raises:
            JaxRuntimeError: one says nothing: it is gone.
            TrainingError: one is at something else.
        """
        self._number += 1
        key = f"phasewise/apart/{self._number}"
        self._client.key_value_set(f"{key}/{self._index}", f"{what}\n{said}")
        found = [self._client.blocking_key_value_get(f"{key}/{number}", 1000 * TELL_SECONDS) for number in range(self._count)]
        if self._number > 1:  # whoever says something has read what was said before
            self._client.key_value_delete(f"phasewise/apart/{self._number - 1}/{self._index}")
        heads = {one.partition("\n")[0] for one in found}
        if heads != {what}:
            raise TrainingError(f"all hosts must be at the same, found {' and '.join(sorted(heads))}: start the run again.")
        return [one.partition("\n")[2] for one in found]


def exchange_here() -> Exchange | None:
    """Of this process; None where all processes see one folder, or there is only one."""
    if not are_apart() or jax.process_count() == 1:
        return None
    from jax._src.distributed import global_state  # jax has no public way to the key-value store of its coordinator

    return Exchange(global_state.client, jax.process_index(), jax.process_count())
