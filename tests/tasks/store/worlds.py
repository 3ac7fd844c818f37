"""A recipe's work in a folder, without a trainer: rows, a result and checkpoints as files."""

import json
from dataclasses import dataclass
from pathlib import Path

from phasewise.tasks.store.publisher import Kept
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.storage import write_atomically, write_json
from phasewise.trainer.checkpoints.files import write_digests

RUN_NAME = "tiny-proxy"


@dataclass(frozen=True)
class Machine:
    """One machine's working folder, and the home on the store."""

    kept: Kept

    @property
    def run(self) -> RunFolder:
        """The one phase's."""
        return RunFolder(self.kept.work / "runs" / RUN_NAME / "kestrel")

    def train_to(self, step: int, *, text: str = "") -> None:
        """Rows up to a step, and its checkpoint."""
        rows = b"".join(json.dumps({"step": number, "loss": 1 / number}).encode() + b"\n" for number in range(1, step + 1))
        write_atomically(self.run.metrics, rows)
        folder = self.run.checkpoint(step)
        write_atomically(folder / "state" / "weights", f"weights {step}{text}".encode() * 1000)
        write_atomically(folder / "about" / "metadata", b"{}")
        write_digests(folder)
        write_json(self.run.heartbeat, {"step": step})

    def files(self) -> dict[str, bytes]:
        """Everything that is here, but what is of one machine."""
        root = self.kept.work
        files = [
            path for path in root.rglob("*") if path.is_file() and path != self.run.heartbeat and path.parent != self.kept.known.parent
        ]
        return {str(path.relative_to(root)): path.read_bytes() for path in files}


def machine(folder: Path, store: Path) -> Machine:
    """A fresh one."""
    return Machine(Kept(folder, store, RUN_NAME))
