"""Weights & Biases: one run there for one run here, over all lives of the process."""

import json
import os
import uuid
from pathlib import Path
from typing import Any

import wandb

from phasewise.trainer.base.errors import TrainingError
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.config import RunConfig
from phasewise.trainer.metrics import Row
from phasewise.trainer.sinks import values_to_send

SENT_NAME = "sent.json"


def open_wandb(run: RunConfig) -> "WandbSink":
    """The run's counterpart, a new one or the one before; its files are in `wandb/` of the run's folder.

    Raises:
        TrainingError: Weights & Biases does not open it, as without a login.
    """
    folder = RunFolder.at(run.output).weights_and_biases
    folder.mkdir(parents=True, exist_ok=True)
    sent = Sent(folder / SENT_NAME)
    is_offline = run.instrumentation.wandb == "offline"
    try:
        opened = wandb.init(
            project=run.recipe,
            name=f"{run.recipe}/{run.scale}/{run.phase}",
            id=sent.id,
            # What is offline cannot be asked what it has: its files are put together by `wandb sync --append`.
            resume=None if is_offline else "allow",
            dir=run.output,
            mode="offline" if is_offline else "online",
            config=run.model_dump(mode="json"),
            settings=wandb.Settings(console="off", silent=True, x_disable_stats=True, disable_code=True, disable_git=True),
        )
    except wandb.Error as error:
        raise TrainingError(
            f"Weights & Biases could not be opened for phase {run.phase}: {error}. Log in with `wandb login`, or set instrumentation.wandb "
            'to "offline".'
        ) from error
    return WandbSink(opened, sent)


class Sent:
    """Which run it is there, and the last step that it was given. A kill loses at most the row that is being given."""

    def __init__(self, path: Path) -> None:
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"id": uuid.uuid4().hex[:12], "step": 0}
        self.id = str(found["id"])
        self.step = int(found["step"])
        self._file = open(path, "r+b" if path.exists() else "w+b", buffering=0)  # noqa: SIM115  # stays open for the run
        self.note(self.step)

    def note(self, step: int) -> None:
        """One write call of always the same length: the file is never half old, half new."""
        self.step = step
        os.pwrite(self._file.fileno(), f'{{"id": "{self.id}", "step": {step:>15}}}\n'.encode(), 0)

    def close(self) -> None:
        """No more steps."""
        self._file.close()


class WandbSink:
    """Rows as the history of a run there, by step."""

    def __init__(self, run: Any, sent: Sent) -> None:
        self._run, self._sent = run, sent

    @property
    def last_step(self) -> int:
        """The last step that was given."""
        return self._sent.step

    def write(self, row: Row) -> None:
        """One row of the history."""
        self._sent.note(row["step"])
        self._run.log(values_to_send(row), step=row["step"])

    def close(self) -> None:
        """No more rows; what was given is in its file, or uploaded, when this returns."""
        self._run.finish()
        self._sent.close()
