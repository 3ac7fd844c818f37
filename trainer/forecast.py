"""The forecast of a phase in its run's folder, and the check of the training's losses against its band."""

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from phasewise.trainer.base.decision import read_decisions, ruling_of
from phasewise.trainer.base.errors import CheckpointError
from phasewise.trainer.base.identity import NotAsWritten, digest_of_json, read_sealed
from phasewise.trainer.base.run_folder import RunFolder, read_events
from phasewise.trainer.config import RunConfig
from phasewise.trainer.process.rendezvous import CHECKPOINT_STORE_VARIABLE

FORECAST = "forecast"  # the suite of its question to a person


class LossBand(NamedTuple):
    """The band of a forecast: its low and high end at each update of the phase, in nats per token, and the digest of the forecast."""

    digest: str
    patience: int
    low: np.ndarray
    high: np.ndarray

    def finding(self, losses: Sequence[float], update: int) -> str | None:
        """Say that the mean of the last `patience` losses is outside the band. `update` counts from 1 in the phase."""
        if len(losses) < self.patience or not self.patience <= update <= len(self.low):
            return None
        of_window = slice(update - self.patience, update)
        mean, low, high = (float(np.mean(one)) for one in (losses[-self.patience :], self.low[of_window], self.high[of_window]))
        if low <= mean <= high:
            return None
        return f"the mean loss of {self.patience} updates is {mean:.4g}, and the forecast is {low:.4g} to {high:.4g}"


def band_of(run: RunConfig) -> LossBand | None:
    """Return the band of the run's forecast. None without a forecast, on hosts without a common folder, and after a person's approval.

    Raises CheckpointError if the forecast was changed, or is not the one that the run's events name.
    """
    folder = RunFolder(run.output)
    if os.environ.get(CHECKPOINT_STORE_VARIABLE):
        return None  # all hosts must stop at the same update
    try:
        found: dict[str, Any] = read_sealed(folder.forecast)
    except FileNotFoundError:
        return None
    except (NotAsWritten, ValueError) as error:
        raise CheckpointError(f"{folder.forecast}: expected a forecast, found a changed file ({error}). Delete the file.") from None
    digest = digest_of_json(found)
    if not any(event.get("kind") == "forecast" and digest in str(event.get("text")) for event in read_events(folder.path)):
        raise CheckpointError(f"{folder.forecast}: expected the forecast that the run's events name, found another one. Delete the file.")
    try:
        question = read_sealed(folder.question)
    except (FileNotFoundError, ValueError):
        question = {}
    if question.get("suite") == FORECAST and ruling_of(question, read_decisions(folder.question)).lets_go_on:
        return None
    return LossBand(digest, found["patience_updates"], np.array(found["low"]), np.array(found["high"]))
