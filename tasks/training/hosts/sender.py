"""Sends what the trainer of a host writes: its share of each checkpoint as content, small files and signs of life with the host's post.

Two threads. One posts every few seconds. The other sends checkpoints, which takes as long as it takes; it has posted before what it is
about to send, so that nobody deletes content of the same digest meanwhile.
"""

import json
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from phasewise.tasks.store.head import Piece
from phasewise.tasks.store.snapshot import Changing, Snapshot, Source, is_list_of_checkpoint, take_snapshot
from phasewise.tasks.training.hosts.needs import Work
from phasewise.tasks.training.hosts.post import Post, Posts
from phasewise.trainer.base.errors import StorageError, TakenOver
from phasewise.trainer.base.identity import digest_of_file
from phasewise.trainer.base.storage import write_json
from phasewise.trainer.checkpoints.files import committed_files
from phasewise.trainer.process.heartbeat import read_heartbeat
from phasewise.trainer.process.roll_call import read_presence

ROLL_CALL_SECONDS = 0.2
TRIES = 3
Pieces = tuple[Piece, ...]


class Sender:
    """Of one host. Use it from when the host is ready until its trainer has ended; `finish` sends the rest.

    Args:
        post: the one that is on the store now, with its generation.
        every_seconds: how often it posts.
        hosts: how many the launch has.
    """

    def __init__(self, work: Work, posts: Posts, post: Post, generation: str, *, every_seconds: float, hosts: int) -> None:
        self._work, self._posts, self._post, self._generation = work, posts, post, generation
        self._every, self._hosts = every_seconds, hosts
        self._before: Mapping[str, Pieces] = take_snapshot(work.kept.work, (work.folder,)).files
        self._named = self._before
        self._changed: set[str] = set()
        self._sent_pieces: dict[tuple[str, int], str] = {}
        self._sent: dict[str, tuple[str, ...]] = {}
        self._seen = ""
        self._sending: tuple[str, ...] = ()
        self._present: set[int] = set()
        self._one_at_a_time = threading.Lock()
        self._trained, self._ended = threading.Event(), threading.Event()
        self._lost: TakenOver | None = None
        self._said = ""
        self._posting = threading.Thread(target=self._run, args=(self.post, self._ended), name="posts", daemon=True)
        self._sends = threading.Thread(target=self._run, args=(self.send_checkpoints, self._trained), name="sends", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._posting.start()
        self._sends.start()

    @property
    def lost(self) -> TakenOver | None:
        """Why this host must end, where the launch is over or another program has its place."""
        return self._lost

    def finish(self) -> None:
        """Send what is left, and say that this is all.

        Raises:
            TakenOver: the launch is over.
            StorageError: the store does not take it.
        """
        self._trained.set()
        if self._sends.is_alive():
            self._sends.join()
        try:
            self._finish()
        finally:
            self._ended.set()

    def _finish(self) -> None:
        for number in range(TRIES):
            try:
                self.send_checkpoints()
                self._ended.set()
                if self._posting.is_alive():
                    self._posting.join()
                self.post(ended=True)
                return
            except (TakenOver, StorageError):
                raise
            except Exception as error:  # stores have error types of their own
                if number == TRIES - 1:
                    raise StorageError(f"what host {self._post.host} wrote is not on {self._posts.folder} yet: {error}") from error

    def post(self, *, ended: bool = False) -> None:
        """Say what there is now.

        Raises:
            TakenOver: the launch is over.
        """
        with self._one_at_a_time:
            self.check_launch()
            if self._post.host == 0 and (found := self._look()):
                self._send_changed(found)
                self._named = found.files
            post = self._post.but(
                number=self._post.number + 1,
                stage="ended" if ended else "at work",
                presence=self._post.presence or self._presence(),
                heartbeat=self._heartbeat(),
                files={name: pieces for name, pieces in self._named.items() if name in self._changed},
                gone=tuple(sorted((self._before.keys() | self._changed) - self._named.keys())),
                sending=self._sending,
                sent=tuple(digest for digests in self._sent.values() for digest in digests),
            )
            if post.but(number=self._post.number) != self._post:
                self._generation = self._posts.put(post, self._generation)
                self._post = post
            self._pass_presences_on()

    def send_checkpoints(self) -> None:
        """This host's share of each checkpoint that its trainer has committed since it began.

        Raises:
            TakenOver: the launch is over.
        """
        found = self._look()
        if found is None:
            return
        lists = {name for name, pieces in found.files.items() if is_list_of_checkpoint(name) and self._before.get(name) != pieces}
        for name in self._sent.keys() - lists:
            del self._sent[name]
        for name in sorted(lists - self._sent.keys(), key=lambda name: int(name.split("/")[-2])):
            share = self._share(name)
            self._sending = tuple(share)
            self.post()
            with suppress(Changing):  # the trainer has deleted it meanwhile
                self._work.kept.objects.send(share)
                self._sent[name] = tuple(share)
            self._sending = ()
            self.post()

    def check_launch(self) -> None:
        """Go on only where the launch still has the work.

        Raises:
            TakenOver: it has not.
        """
        if self._lost is None and (found := self._work.kept.head.read_changed(self._seen)):
            head, self._seen = found
            if head.launch != self._post.launch:
                now = f"the launch {head.launch} has it" if head.launch else "no hosts are to work on it"
                self._lost = TakenOver(
                    f"host {self._post.host} of the launch {self._post.launch} may not go on with {self._work.folder}: {now} (number "
                    f"{head.number}). Nothing more of this one is kept."
                )
        if self._lost:
            raise self._lost

    def _run(self, what: Callable[[], Any], ended: threading.Event) -> None:
        while not ended.wait(self._every if self._hosts == 1 or len(self._present) == self._hosts else ROLL_CALL_SECONDS):
            try:
                what()
                self._said = ""
            except TakenOver as lost:
                self._lost = lost
                return
            except Exception as error:  # the store is away: what is here is sent later
                if str(error) != self._said:
                    print(f"the store does not answer: {error}", flush=True)
                self._said = str(error)

    def _look(self) -> Snapshot | None:
        """The files that belong on the store; None where they were never still."""
        with suppress(Changing):
            return take_snapshot(self._work.kept.work, (self._work.folder,))
        return None

    def _send_changed(self, found: Snapshot) -> None:
        """The pieces that changed since they were last sent, of the files that ever did."""
        self._changed |= {name for name, pieces in found.files.items() if self._before.get(name) != pieces}
        for name in self._changed & found.files.keys():
            for index, piece in enumerate(found.files[name]):
                content = found.sources[piece.sha256].content
                if self._sent_pieces.get((name, index)) != piece.sha256 and content is not None:
                    self._posts.send_piece(self._post.host, name, index, content)
                    self._sent_pieces[name, index] = piece.sha256

    def _share(self, name: str) -> dict[str, Source]:
        """The files of a checkpoint that this host has as the list names them, by digest."""
        folder = (self._work.kept.work / name).parent
        wanted = committed_files(folder)
        if isinstance(wanted, str):
            return {}
        found: dict[str, Source] = {}
        for one, (size, digest) in wanted.items():
            path = folder / one
            if path.is_file() and path.stat().st_size == size and digest_of_file(path) == digest:
                found[digest] = Source(None, path)
        return found

    def _heartbeat(self) -> str:
        """The trainer's, and while what it left is sent one of ours: who sends is not silent."""
        if self._trained.is_set():
            said = read_heartbeat(self._work.run.path)
            return json.dumps({**said, "beat": f"{said.get('beat', 0)} and {self._post.number} while sending", "work": "send"})
        with suppress(OSError):
            return self._work.run.heartbeat.read_text()
        return ""

    def _presence(self) -> dict[str, Any]:
        said = read_presence(self._roll_call, self._post.host)
        return said.model_dump() if said else {}

    @property
    def _roll_call(self) -> Path:
        return self._work.run.roll_calls / self._post.launch

    def _pass_presences_on(self) -> None:
        """What the trainers of the others say of themselves, to ours, which compares."""
        if self._post.presence:
            self._present.add(self._post.host)
        for host in set(range(self._hosts)) - self._present:
            found = self._posts.read(host)
            if found and found[0].presence:
                write_json(self._roll_call / f"{host}.json", found[0].presence)
                self._present.add(host)


def digests_of(posts: Collection[Post]) -> set[str]:
    """All content that these hosts sent, are sending, or are about to send."""
    return {digest for post in posts for digest in (*post.sent, *post.sending)}
