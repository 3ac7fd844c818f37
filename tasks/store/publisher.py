"""Keeps the work on a recipe on the store while it goes on here: what is new is sent, and the head then names it."""

import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from phasewise.tasks.progress import say
from phasewise.tasks.store.content import (
    HEAD_NAME,
    OBJECTS_NAME,
    Changing,
    Objects,
    Snapshot,
    Source,
    bring_here,
    bring_uploaded,
    digest_of_pieces,
    digests_listed,
    is_list_of_checkpoint,
    pieces_of,
    read_head,
    settle_checkpoints,
    take_snapshot,
)
from phasewise.tasks.store.head import ABSENT, Files, Head, HeadObject
from phasewise.trainer.base.errors import ConfigError, StorageError, TakenOver
from phasewise.trainer.base.storage import locked, read_json, write_json

PUBLISH_SECONDS = 30.0
"""What a machine that is lost had done since the last time is done again."""
PUBLISH_VARIABLE = "PHASEWISE_PUBLISH_SECONDS"
WORKED_ON = ("reports", "runs", "verdicts")
"""What of a home is worked on here, and kept."""
TRIES = 5


def check_not_taken_over() -> None:
    """Go on only if all that this process keeps is still its own.

    Raises:
        TakenOver: it is not.
    """
    for publisher in list(_at_work.values()):
        publisher.check()


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


@dataclass(frozen=True)
class Kept:
    """Where the work on one recipe at one scale is, here and on the store.

    Attributes:
        work: root of the working folder here.
        store: the home on the store.
    """

    work: Path
    store: Path
    run_name: str

    @property
    def folders(self) -> tuple[str, ...]:
        """What is kept, below the home."""
        return tuple(f"{kind}/{self.run_name}" for kind in WORKED_ON)

    @property
    def head(self) -> HeadObject:
        """What is committed."""
        return HeadObject.at(self.store / "runs" / self.run_name / HEAD_NAME)

    @property
    def objects(self) -> Objects:
        """The content."""
        return Objects(self.store / "runs" / self.run_name / OBJECTS_NAME)

    @property
    def known(self) -> Path:
        """The last commits that were made from the working folder: as long as the head is one of them, nobody else went on."""
        return self.work / "known" / f"{self.run_name}.json"

    def look(self, *, checkpoints: bool = False, weights_of: str | None = None) -> int:
        """Bring here what is committed, to look at it. Nothing is taken over. Of several processes that look, one comes after the other.

        Args:
            checkpoints: whether all checkpoints are wanted, too.
            weights_of: a phase whose checkpoints are.

        Raises:
            StorageError: something that is committed is missing.
        """
        with self.looking() as (head, generation):
            return self._bring_seen(head, generation, checkpoints=checkpoints, weights_of=weights_of)

    @contextmanager
    def looking(self) -> Iterator[tuple[Head, str]]:
        """Nobody else of this machine brings anything here meanwhile; gives the head and its generation."""
        with locked(self.known.with_suffix(".looking"), wait=True):
            yield read_head(self.head, self.objects, self.known)

    def add(self, write: Callable[[], Path]) -> Path:
        """Commit one more file beside what is committed: what is there is brought here first but for the weights, and `write` writes it.

        Whoever calls this holds the home. Content that the new file takes the place of stays on the store.

        Raises:
            TakenOver: somebody committed meanwhile; nothing was added.
            StorageError: something that is committed is missing.
        """
        with self.looking() as (head, generation):
            self._bring_seen(head, generation)
            path = write()
            pieces = pieces_of(path.read_bytes())
            try:
                self.objects.send({piece.sha256: Source(content, None) for piece, content in pieces})
                files = {**head.files, path.relative_to(self.work).as_posix(): tuple(piece for piece, _ in pieces)}
                self.head.replace(head.taken().followed(files), generation)
            except BaseException:
                path.unlink()  # it is not there until it is committed
                raise
        return path

    def _bring_seen(self, head: Head, generation: str, *, checkpoints: bool = False, weights_of: str | None = None) -> int:
        only = f"runs/{self.run_name}/{weights_of}/" if weights_of else "" if checkpoints else None
        return self.bring(head, generation, weights_below=only)

    def bring(self, head: Head, generation: str, *, weights_below: str | None = "") -> int:
        """Make the working folder what was committed; where nothing ever was, what somebody uploaded as files. Gives how many came.

        Args:
            weights_below: of checkpoints those whose names begin so are wanted; None is none.

        Raises:
            StorageError: something that is committed is missing.
        """
        came = bring_here(self.work, self.folders, head.files, self.objects, weights_below=weights_below)
        if generation == ABSENT:
            came += bring_uploaded(self.work, self.folders, self.store, weights_below=weights_below)
        return came


@contextmanager
def keeping(kept: Kept) -> Iterator[None]:
    """Bring here what is committed, and commit what is done within; within another of the same it changes nothing.

    Raises:
        TakenOver: another process went on with it; what was done here since is not committed.
        StorageError: the store did not take it, or lost something.
    """
    if kept in _at_work:
        yield
        return
    with Publisher(kept) as publisher:
        _at_work[kept] = publisher
        try:
            yield
        finally:
            del _at_work[kept]


class Publisher:
    """The one that commits. Use it as a context: leaving it commits what is there, whatever happened."""

    def __init__(self, kept: Kept, *, every_seconds: float | None = None) -> None:
        self._kept, self._every = kept, publish_seconds() if every_seconds is None else every_seconds
        self._head, self._generation = Head(), ""
        self._sent: set[str] = set()
        self._lost: TakenOver | None = None
        self._is_said = False
        self._launch = ""
        self._one_at_a_time = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"keeps {kept.run_name}", daemon=True)

    def __enter__(self) -> "Publisher":
        # Shut out who was at work before, then bring here what is committed, unless it was committed from here and nobody went on
        before, generation = read_head(self._kept.head, self._kept.objects, self._kept.known)
        self._head = before.taken()
        is_ours = before.commit in self._known()
        if is_ours:
            self._note(before.commit, self._head.commit)
        self._generation = self._kept.head.replace(self._head, generation)
        if is_ours:
            settle_checkpoints(self._kept.work, self._kept.folders, self._head.files, self._kept.objects)
        else:
            came = self._kept.bring(self._head, generation)
            if came:
                say(f"{self._kept.run_name}: {came:,} files came from {self._kept.store}")
            self._note(self._head.commit)
        self._sent = self._named()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if kind is None:
            if not self.publish():
                raise StorageError(f"{self._kept.work} changed all the time: what works there? Stop it, and start again on this machine.")
            return
        with suppress(TakenOver, StorageError):  # why it ended is said already
            self.publish()

    @property
    def kept(self) -> Kept:
        """What it keeps."""
        return self._kept

    def lend(self, launch: str) -> None:
        """Commit what is here, and let the first host of a launch commit from now on, until `take_back`.

        Raises:
            TakenOver, StorageError: as `publish`.
        """
        self._launch = launch
        try:
            if not self._publish_here():
                raise StorageError(f"{self._kept.work} changed all the time: what works there? Stop it, and start again on this machine.")
        except BaseException:
            self._launch = ""
            raise

    def committed_by_hosts(self) -> Files | None:
        """The files of the head, if a host of the launch has replaced it since the last call.

        Raises:
            TakenOver: another process has the work now.
        """
        with self._one_at_a_time:
            self.check()
            if (found := self._kept.head.read_changed(self._generation)) is None:
                return None
            head, generation = found
            if (head.holder, head.launch) != (self._head.holder, self._launch):
                self._lost = TakenOver(f"{self._kept.head.place} is another's (number {head.number}): this process stops following it.")
                raise self._lost
            self._head, self._generation = head, generation
            return head.files

    def take_back(self, bring: Callable[[Files], None]) -> None:
        """Commit from here again: the hosts of the launch are shut out, and content that no head names is deleted.

        Args:
            bring: has the files of the head here; called again if a host commits meanwhile.

        Raises:
            TakenOver: another process has the work now.
        """
        while True:
            bring(self.committed_by_hosts() or self._head.files)
            with self._one_at_a_time:
                head = self._head.followed(self._head.files)
                try:
                    self._generation = self._kept.head.replace(head, self._generation)
                except TakenOver:
                    continue
                self._note(head.commit)
                self._head, self._launch = head, ""
                self._sent = self._named()
                self._kept.objects.delete_others(self._sent)
                return

    def check(self) -> None:
        """Go on only if nobody else took the work over.

        Raises:
            TakenOver: somebody did.
        """
        if self._lost:
            raise self._lost

    def publish(self) -> bool:
        """Commit what is here, if it is not committed yet; False where it changed all the time. While hosts commit, do nothing.

        Raises:
            TakenOver: somebody else has the work now; nothing was committed.
            StorageError: the store did not take it. The working folder has it.
        """
        return bool(self._launch) or self._publish_here()

    def _publish_here(self) -> bool:
        with self._one_at_a_time:
            self.check()
            try:
                return self._publish()
            except TakenOver as lost:
                self._lost = lost
                raise
            except Exception as error:  # stores have error types of their own
                raise StorageError(
                    f"what was done in {self._kept.work} is not kept on {self._kept.store} yet: {error}. Look after the store, and start "
                    "again on this machine: it goes on from what is here."
                ) from error

    def _publish(self) -> bool:
        for _ in range(TRIES):
            try:
                snapshot = take_snapshot(self._kept.work, self._kept.folders)
                is_left = not self._sent <= snapshot.sources.keys()  # sent for nothing
                if is_left or (snapshot.files, self._launch) != (self._head.files, self._head.launch):
                    new: Mapping[str, Source] = {digest: source for digest, source in snapshot.sources.items() if digest not in self._sent}
                    objects = self._kept.objects
                    objects.send(new)
                    self._check_sent_as_listed(snapshot)
                    head = self._head.followed(snapshot.files, self._launch)
                    unnamed = objects.versions(self._sent - snapshot.sources.keys())
                    self._note(self._head.commit, head.commit)
                    self._generation = self._kept.head.replace(head, self._generation)
                    self._head, self._sent = head, set(snapshot.sources)
                    self._note(head.commit)
                    objects.delete(unnamed)
                return True
            except Changing:  # a checkpoint was deleted or replaced while it was read or sent
                continue
        return False

    def _named(self) -> set[str]:
        return named_digests(self._head.files, self._kept.objects)

    def _check_sent_as_listed(self, snapshot: Snapshot) -> None:
        """A checkpoint that was replaced while it was sent would have other bytes under the name of its digest."""
        for name, pieces in snapshot.files.items():
            if is_list_of_checkpoint(name) and digest_of_pieces(self._kept.work / name) != pieces:
                raise Changing

    def _run(self) -> None:
        while not self._ended.wait(self._every):
            try:
                self.publish()
                self._is_said = False
            except TakenOver as lost:
                say(str(lost))
                return
            except StorageError as error:
                if not self._is_said:
                    say(str(error))
                self._is_said = True

    def _known(self) -> tuple[str, ...]:
        try:
            return tuple(read_json(self._kept.known)["commits"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return ()

    def _note(self, *commits: str) -> None:
        write_json(self._kept.known, {"commits": commits})


_at_work: dict[Kept, Publisher] = {}


def keeper_of(folder: Path) -> Publisher | None:
    """What keeps the folder of a run on a store; None where it is in a home that is a folder."""
    return next((publisher for kept, publisher in _at_work.items() if folder.is_relative_to(kept.work)), None)


def named_digests(files: Files, objects: Objects) -> set[str]:
    """The digests of all content that a head with these files needs, those of its checkpoints too."""
    named = {piece.sha256 for pieces in files.values() for piece in pieces}
    for name, pieces in files.items():
        if is_list_of_checkpoint(name):
            with suppress(StorageError):  # damaged there: it was named when it was to come here
                named |= digests_listed(b"".join(objects.content(piece.sha256) for piece in pieces))
    return named
