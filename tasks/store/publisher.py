"""Keeps the work on a recipe on the store while it goes on here: what is new is uploaded, and the head then names it."""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from phasewise.tasks.progress import say
from phasewise.tasks.store.content import (
    HEAD_NAME,
    OBJECTS_NAME,
    Changing,
    Objects,
    Source,
    bring_here,
    bring_or_leave,
    digest_of_pieces,
    is_list_of_checkpoint,
    kept_names,
    pieces_of,
    read_head,
    take_snapshot,
)
from phasewise.tasks.store.head import ABSENT, Files, Head, HeadObject, bucket_and_name
from phasewise.trainer.base.errors import StorageError, TakenOver
from phasewise.trainer.base.run_folder import CHECKPOINTS_NAME, RunFolder, is_kept
from phasewise.trainer.base.storage import locked, parse_json, read_json, write_json
from phasewise.trainer.checkpoints.files import DIGESTS_NAME, has_its_files, remove_checkpoint
from phasewise.trainer.process.signals import positive_seconds

PUBLISH_VARIABLE, PUBLISH_SECONDS = "PHASEWISE_PUBLISH_SECONDS", 30.0
"""What a machine that is lost had done since the last commit is done again."""
WORKED_ON = ("reports", "runs", "verdicts")
"""What of a home is worked on here, and kept."""
TRIES = 5
CHANGED = "{} changed all the time: what works there? Stop it, and start again on this machine."


def publish_seconds(environment: Mapping[str, str] = os.environ) -> float:
    """Return how often to look whether there is something to commit."""
    return positive_seconds(environment, PUBLISH_VARIABLE, PUBLISH_SECONDS)


class Kept:
    """Where the work on one recipe at one scale is, here and on the store.

    Attributes:
        work: root of the working folder here.
        store: the home on the store.
        folders: what is kept, below the home.
        head: what is committed.
        objects: the content.
        known: the last commits that were made from the working folder: as long as the head is one of them, no other machine went on.
    """

    def __init__(self, work: Path, store: Path, run_name: str) -> None:
        self.work, self.store, self.run_name = work, store, run_name
        self.folders = tuple(f"{kind}/{run_name}" for kind in WORKED_ON)
        self.head = HeadObject(store / "runs" / run_name / HEAD_NAME)
        self.objects = Objects(store / "runs" / run_name / OBJECTS_NAME)
        self.known = work / "known" / f"{run_name}.json"

    def look(self, *, checkpoints: bool = False, weights_of: str | None = None) -> int:
        """Download what is committed, to look at it, and return how many files came. Nothing is taken over."""
        only = f"runs/{self.run_name}/{weights_of}/" if weights_of else "" if checkpoints else None
        with self.looking() as (head, generation):
            return self.bring(head, generation, weights_below=only)

    @contextmanager
    def looking(self) -> Iterator[tuple[Head, str]]:
        """Give the head and its generation; no other process of this machine downloads anything meanwhile."""
        with locked(self.known.with_suffix(".looking"), wait=True):
            yield read_head(self.head, self.objects, self.known)

    def add(self, write: Callable[[], Path]) -> Path:
        """Commit one more file beside what is committed, which is downloaded first but for the weights; `write` writes the file.

        Whoever calls this holds the home. Content that the new file takes the place of stays on the store.
        """
        with self.looking() as (head, generation):
            self.bring(head, generation, weights_below=None)
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

    def bring(self, head: Head, generation: str, *, weights_below: str | None = "") -> int:
        """Make the working folder what was committed, or, before any commit, what somebody uploaded as files. Return how many came.

        Args:
            weights_below: of checkpoints those whose names begin so are wanted; None is none.
        """
        came = bring_here(self.work, self.folders, head.files, self.objects, weights_below=weights_below)
        for folder in self.folders if generation == ABSENT else ():
            file_system, bucket, below = bucket_and_name(self.store / folder)
            names = [str(name).removeprefix(f"{bucket}/{below}/") for name in file_system.find(f"{bucket}/{below}")]
            for name in sorted(names, key=lambda name: name.endswith(DIGESTS_NAME)):  # a list of files commits a checkpoint
                parts = name.split("/")
                is_wanted = CHECKPOINTS_NAME not in parts or (weights_below is not None and f"{folder}/{name}".startswith(weights_below))
                if parts[0] not in (HEAD_NAME, OBJECTS_NAME) and all(map(is_kept, parts)) and is_wanted:
                    path = self.work / folder / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    file_system.get_file(f"{bucket}/{below}/{name}", str(path))
                    came += 1
        return came


class Publisher:
    """The one that commits. Use it as a context: leaving it commits what is there, whatever happened.

    Attributes:
        kept: what it keeps.
    """

    def __init__(self, kept: Kept, *, every_seconds: float | None = None) -> None:
        self.kept, self._every = kept, publish_seconds() if every_seconds is None else every_seconds
        self._head, self._generation = Head(), ""
        self._sent: set[str] = set()
        self._lost: TakenOver | None = None
        self._launch = ""
        self._one_at_a_time = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"keeps {kept.run_name}", daemon=True)

    def __enter__(self) -> "Publisher":
        """Shut out who was at work before. Then download what is committed, unless it was committed from here and no other went on."""
        kept = self.kept
        before, generation = read_head(kept.head, kept.objects, kept.known)
        self._head, known = before.taken(), list[str]()
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            known = read_json(kept.known)["commits"]
        is_ours = before.commit in known
        if is_ours:
            write_json(kept.known, {"commits": [before.commit, self._head.commit]})
        self._generation = kept.head.replace(self._head, generation)
        if is_ours:
            for name, listed in list(kept_names(kept.work, kept.folders)):
                if not is_list_of_checkpoint(name) or has_its_files(listed.parent):
                    continue
                pieces = self._head.files.get(name)  # other hosts wrote and uploaded the files of this checkpoint
                if pieces is not None and digest_of_pieces(listed) == tuple(pieces):
                    bring_or_leave(listed, tuple(pieces), kept.objects)
                else:
                    remove_checkpoint(listed.parent)
                    RunFolder.of_checkpoint(listed.parent).result.unlink(missing_ok=True)  # it may rest on it
        else:
            if came := kept.bring(self._head, generation):
                say(f"{kept.run_name}: {came:,} files came from {kept.store}")
            write_json(kept.known, {"commits": [self._head.commit]})
        self._sent = named_digests(self._head.files, kept.objects)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        try:
            if not self.publish() and kind is None:
                raise StorageError(CHANGED.format(self.kept.work))
        except (TakenOver, StorageError):
            if kind is None:  # else why it ended is said already
                raise

    def lend(self, launch: str) -> None:
        """Commit what is here, and let the first host of a launch commit from now on, until `take_back`."""
        self._launch = launch
        try:
            if not self._publish():
                raise StorageError(CHANGED.format(self.kept.work))
        except BaseException:
            self._launch = ""
            raise

    def committed_by_hosts(self) -> Files | None:
        """Return the files of the head, if a host of the launch has replaced it since the last call."""
        with self._one_at_a_time:
            self.check()
            if (found := self.kept.head.read_changed(self._generation)) is None:
                return None
            head, generation = found
            if (head.holder, head.launch) != (self._head.holder, self._launch):
                self._lost = TakenOver(f"{self.kept.head.place} is another's (number {head.number}): this process stops following it.")
                raise self._lost
            self._head, self._generation = head, generation
            return head.files

    def take_back(self, bring: Callable[[Files], None]) -> None:
        """Commit from here again: the hosts of the launch are shut out, and content that no head names is deleted."""
        while True:
            bring(self.committed_by_hosts() or self._head.files)
            with self._one_at_a_time:
                head = self._head.followed(self._head.files)
                with suppress(TakenOver):
                    self._generation = self.kept.head.replace(head, self._generation)
                    write_json(self.kept.known, {"commits": [head.commit]})
                    self._head, self._launch = head, ""
                    self._sent = named_digests(head.files, self.kept.objects)
                    self.kept.objects.delete_others(self._sent)
                    return

    def check(self) -> None:
        """Go on only if no other process took the work over."""
        if self._lost:
            raise self._lost

    def publish(self) -> bool:
        """Commit what is here, if it is not committed yet; False if it changed all the time. While hosts commit, do nothing.

        Raises:
            TakenOver: another process has the work now; nothing was committed.
            StorageError: the store did not take it. The working folder has it.
        """
        return bool(self._launch) or self._publish()

    def _publish(self) -> bool:
        with self._one_at_a_time:
            self.check()
            for _ in range(TRIES):
                try:
                    self._commit()
                    return True
                except Changing:  # a checkpoint was deleted or replaced while it was read or sent
                    continue
                except TakenOver as lost:
                    self._lost = lost
                    raise
                except Exception as error:  # stores have error types of their own
                    raise StorageError(
                        f"what was done in {self.kept.work} is not kept on {self.kept.store} yet: {error}. Look after the store, and start "
                        "again on this machine: it goes on from what is here."
                    ) from error
        return False

    def _commit(self) -> None:
        kept, objects = self.kept, self.kept.objects
        files, sources = take_snapshot(kept.work, kept.folders)
        is_left = not self._sent <= sources.keys()  # sent for nothing
        if not is_left and (files, self._launch) == (self._head.files, self._head.launch):
            return
        objects.send({digest: source for digest, source in sources.items() if digest not in self._sent})
        for name, pieces in files.items():  # one that was replaced while it was sent would have other bytes under the name of its digest
            if is_list_of_checkpoint(name) and digest_of_pieces(kept.work / name) != pieces:
                raise Changing
        head = self._head.followed(files, self._launch)
        unnamed = objects.versions(self._sent - sources.keys())
        write_json(kept.known, {"commits": [self._head.commit, head.commit]})
        self._generation = kept.head.replace(head, self._generation)
        self._head, self._sent = head, set(sources)
        write_json(kept.known, {"commits": [head.commit]})
        objects.delete(unnamed)

    def _run(self) -> None:
        is_said = False
        while not self._ended.wait(self._every):
            try:
                self.publish()
                is_said = False
            except TakenOver as lost:
                say(str(lost))
                return
            except StorageError as error:
                if not is_said:
                    say(str(error))
                is_said = True


_at_work: dict[Path, Publisher] = {}
"""By the file of the commits that were made from a working folder."""


@contextmanager
def keeping(kept: Kept) -> Iterator[None]:
    """Download what is committed, and commit what is done within; within another of the same it changes nothing.

    Raises:
        TakenOver: another process went on with it; what was done here since is not committed.
        StorageError: the store did not take it, or lost something.
    """
    if kept.known in _at_work:
        yield
        return
    with Publisher(kept) as publisher:
        _at_work[kept.known] = publisher
        try:
            yield
        finally:
            del _at_work[kept.known]


def check_not_taken_over() -> None:
    """Go on only if all that this process keeps is still its own."""
    for publisher in list(_at_work.values()):
        publisher.check()


def keeper_of(folder: Path) -> Publisher | None:
    """Return what keeps the folder of a run on a store; None if it is in a home that is a folder."""
    return next((publisher for publisher in _at_work.values() if folder.is_relative_to(publisher.kept.work)), None)


def named_digests(files: Files, objects: Objects) -> set[str]:
    """Return the digests of all content that a head with these files needs, those of its checkpoints too."""
    named = {piece.sha256 for pieces in files.values() for piece in pieces}
    for name in filter(is_list_of_checkpoint, files):
        with suppress(StorageError, ValueError, KeyError, TypeError, AttributeError):  # damaged there: it is left out here
            content = b"".join(objects.content(piece.sha256) for piece in files[name])
            named |= {str(said["sha256"]) for said in parse_json(content)["files"].values()}
    return named
