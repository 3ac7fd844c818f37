"""A recipe's work in a folder, without a trainer: rows, a result and checkpoints as files; and its home on a store."""

import json
from pathlib import Path

from phasewise.tasks.store.publisher import Kept, Publisher
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.storage import write_atomically, write_json
from phasewise.trainer.checkpoints.files import write_digests
from tests.stores.emulator import BUCKET, the_emulator

RUN_NAME = "tiny-proxy"


class Machine:
    def __init__(self, folder: Path, store: Path) -> None:
        self.kept = Kept(folder, store, RUN_NAME)
        self.run = RunFolder(folder / "runs" / RUN_NAME / "kestrel")

    def publisher(self) -> Publisher:
        return Publisher(self.kept, every_seconds=3600.0)

    def commit(self, step: int) -> None:
        with self.publisher():
            self.train_to(step)

    def train_to(self, step: int, *, text: str = "") -> None:
        rows = b"".join(json.dumps({"step": number, "loss": 1 / number}).encode() + b"\n" for number in range(1, step + 1))
        write_atomically(self.run.metrics, rows)
        folder = self.run.checkpoint(step)
        write_atomically(folder / "state" / "weights", f"weights {step}{text}".encode() * 1000)
        write_atomically(folder / "about" / "metadata", b"{}")
        write_digests(folder)
        write_json(self.run.heartbeat, {"step": step})

    def files(self) -> dict[str, bytes]:
        own, root = (self.run.heartbeat, self.kept.known), self.kept.work
        files = [path for path in root.rglob("*") if path.is_file() and path not in own and path.parent != self.kept.known.parent]
        return {str(path.relative_to(root)): path.read_bytes() for path in files}

    def objects(self) -> set[str]:
        prefix = str(self.kept.objects.folder).removeprefix(f"gs://{BUCKET}/")
        return {name.rpartition("/")[2] for name in the_emulator().storage.objects[BUCKET] if name.startswith(prefix)}
