"""What the steps say while they work: ordinary log records, which a terminal may draw as lines and bars.

`say` is for people, a line an event. `advance` is for bars; nothing prints it unless it asks for it.
"""

import logging
from dataclasses import dataclass

LOGGER = logging.getLogger("phasewise")
PROGRESS_LOGGER = logging.getLogger("phasewise-progress")
PROGRESS_LOGGER.propagate = False
PROGRESS_LOGGER.setLevel(logging.INFO)


@dataclass(frozen=True)
class Progress:
    """How far a stage is; `note` is what is worth seeing beside the bar."""

    stage: str
    done: int
    total: int
    note: str


def say(text: str) -> None:
    """One line about what is happening."""
    LOGGER.info(text)


def advance(stage: str, done: int, total: int, note: str = "") -> None:
    """A stage has come so far."""
    PROGRESS_LOGGER.info("%s: %d of %d %s", stage, done, total, note, extra={"progress": Progress(stage, done, total, note)})
