"""A launch of two hosts without trainers: folders of their own, in which a test writes what trainers would."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from phasewise.tasks.store.publisher import Kept, Publisher
from phasewise.tasks.store.snapshot import digests_listed, is_list_of_checkpoint
from phasewise.tasks.training.hosts.gathering import Gathering
from phasewise.tasks.training.hosts.needs import Work
from phasewise.tasks.training.hosts.post import Post, Posts
from phasewise.tasks.training.hosts.sender import Sender
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.storage import write_atomically, write_json
from phasewise.trainer.checkpoints.files import digests_here, write_digests
from phasewise.trainer.checkpoints.shares import united

RUN_NAME, PHASE = "tiny-proxy", "kestrel"
HOUR = 3600.0


@dataclass
class Launch:
    """One launch: its launcher's publisher, and a sender for each host.

    Attributes:
        root: where the folders of all are.
        store: the home.
    """

    root: Path
    store: Path
    name: str = "launch-1"
    hosts: int = 2
    senders: list[Sender] = field(default_factory=list)

    @property
    def kept(self) -> Kept:
        return Kept(self.root / "launcher", self.store, RUN_NAME)

    @property
    def run(self) -> RunFolder:
        """The launcher's."""
        return RunFolder(self.kept.work / "runs" / RUN_NAME / PHASE)

    @property
    def posts(self) -> Posts:
        return Posts.of(self.store, RUN_NAME, self.name)

    def work(self, host: int) -> Work:
        return Work(Kept(self.root / f"host-{host}", self.store, RUN_NAME), PHASE, str(self.kept.work))

    def __enter__(self) -> "Launch":
        self.publisher = Publisher(self.kept, every_seconds=HOUR).__enter__()
        run: Any = SimpleNamespace(recovery=None)
        self.gathering = Gathering(self.publisher, self.name, self.run.path, self.hosts)
        self.gathering.begin(run)
        self.senders = [self.sender(host) for host in range(self.hosts)]
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.gathering.end()
        self.publisher.__exit__(kind)

    def sender(self, host: int) -> Sender:
        self.work(host).run.path.mkdir(parents=True, exist_ok=True)
        post = Post(launch=self.name, host=host, stage="ready")
        return Sender(self.work(host), self.posts, post, self.posts.put(post), every_seconds=HOUR, hosts=self.hosts)

    def train_to(self, step: int, *, same: str = "") -> None:
        """What the trainers write: rows, and each its share of a checkpoint, with the list of all.

        Args:
            same: content of the first host's share that other checkpoints have, too.
        """
        folders = [self.work(host).run for host in range(self.hosts)]
        rows = b"".join(json.dumps({"step": number, "loss": 1 / number}).encode() + b"\n" for number in range(1, step + 1))
        write_atomically(folders[0].metrics, rows)
        for host, folder in enumerate(folders):
            text = same if host == 0 and same else f"weights {step} of host {host}"
            write_atomically(folder.checkpoint(step) / "state" / "weights" / str(host), text.encode() * 1000)
            write_atomically(folder.checkpoint(step) / "about" / "metadata", f"{{}} {host}".encode())
        shares = [digests_here(folder.checkpoint(step)) for folder in folders]
        for folder in folders:
            write_digests(folder.checkpoint(step), united(folder.checkpoint(step), shares))
        write_json(folders[0].heartbeat, {"step": step})

    def send(self, *hosts: int) -> None:
        """What the hosts send of it, all of them where none is named."""
        for host in hosts or range(self.hosts):
            self.senders[host].send_checkpoints()
            self.senders[host].post()

    def commit(self) -> list[int]:
        """Gather and commit; the steps that the head names then."""
        self.gathering.gather()
        self.publisher.publish()
        return self.committed()

    def committed(self) -> list[int]:
        head, _ = self.kept.head.read()
        return sorted(int(name.split("/")[-2]) for name in head.files if "/checkpoints/" in name)

    def content(self) -> tuple[set[str], set[str]]:
        """The digests that the head needs, and those of the objects that are on the store."""
        objects, (head, _) = self.kept.objects, self.kept.head.read()
        needed = {piece.sha256 for pieces in head.files.values() for piece in pieces}
        for name, pieces in head.files.items():
            if is_list_of_checkpoint(name):
                needed |= digests_listed(b"".join(objects.content(piece.sha256) for piece in pieces))
        return needed, {path.name for path in objects.folder.iterdir()}
