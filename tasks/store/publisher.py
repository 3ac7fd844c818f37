"""Commits of a recipe's work to its home on a store: new content is uploaded, and the head then names it."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from phasewise.tasks.progress import say
from phasewise.tasks.store import content as stored
from phasewise.trainer.base.errors import StorageError, TakenOver
from phasewise.trainer.base.run_folder import CHECKPOINTS_NAME, RunFolder, is_kept
from phasewise.trainer.base.storage import locked, parse_json, read_json, write_json
from phasewise.trainer.checkpoints.files import DIGESTS_NAME, has_its_files, remove_checkpoint
from phasewise.trainer.process.child_process import positive_seconds

PUBLISH_VARIABLE, PUBLISH_SECONDS = "PHASEWISE_PUBLISH_SECONDS", 30.0  # if a machine is lost, the work since its last commit is repeated
WORKED_ON = ("experiments", "reports", "runs", "stages", "verdicts")  # the folders of a home with mutable files
TRIES = 5
CHANGED = "{} changed all the time: what works there? Stop it, and start again on this machine."


def publish_seconds() -> float:
    """Return the time between commits."""
    return positive_seconds(os.environ, PUBLISH_VARIABLE, PUBLISH_SECONDS)


class Kept:
    """The paths of a recipe's work at one scale, on this machine and on the store."""

    def __init__(self, work: Path, store: Path, run_name: str) -> None:
        self.work, self.store, self.run_name = work, store, run_name  # the local working folder, and the home on the store
        self.folders = tuple(f"{kind}/{run_name}" for kind in WORKED_ON)  # the committed folders, below the home
        self.head = stored.HeadObject(store / "runs" / run_name / stored.HEAD_NAME)
        self.objects = stored.Objects(store / "runs" / run_name / stored.OBJECTS_NAME)
        # the last commits of this working folder: if the head is one of them, no other machine has committed since
        self.known = work / "known" / f"{run_name}.json"

    def look(self, *, weights_below: str | None = None) -> int:
        """Download the committed files for reading, with weights as in `bring_here`, and return the number of downloads."""
        with locked(self.known.with_suffix(".looking"), wait=True):  # one download at a time on this machine
            return self.bring(*stored.read_head(self.head, self.objects, self.known), weights_below=weights_below)

    def add(self, write: Callable[[], Path]) -> Path:
        """Download the committed files without weights, and commit one more file, which `write` writes. The caller holds the home."""
        with locked(self.known.with_suffix(".looking"), wait=True):
            head, generation = stored.read_head(self.head, self.objects, self.known)
            self.bring(head, generation, weights_below=None)
            path = write()
            pieces = stored.pieces_of(path.read_bytes())
            try:
                self.objects.send({piece.sha256: content for piece, content in pieces})
                files = {**head.files, path.relative_to(self.work).as_posix(): tuple(piece for piece, _ in pieces)}
                self.head.replace(head.taken().followed(files), generation)
            except BaseException:
                path.unlink()  # a file without a commit must not be read
                raise
        return path

    def bring(self, head: stored.Head, generation: str, *, weights_below: str | None = "") -> int:
        """Download the committed files, or before the first commit a person's uploaded files, and return their number."""
        came = stored.bring_here(self.work, self.folders, head.files, self.objects, weights_below=weights_below)
        for folder in self.folders if generation == stored.ABSENT else ():
            file_system, bucket, below = stored.bucket_and_name(self.store / folder)
            names = [str(name).removeprefix(f"{bucket}/{below}/") for name in file_system.find(f"{bucket}/{below}")]
            for name in sorted(names, key=lambda name: name.endswith(DIGESTS_NAME)):  # the list of its files commits a checkpoint
                parts = name.split("/")
                is_wanted = CHECKPOINTS_NAME not in parts or (weights_below is not None and f"{folder}/{name}".startswith(weights_below))
                if parts[0] not in (stored.HEAD_NAME, stored.OBJECTS_NAME) and all(map(is_kept, parts)) and is_wanted:
                    path = self.work / folder / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    file_system.get_file(f"{bucket}/{below}/{name}", str(path))
                    came += 1
        return came


class Publisher:
    """The process that commits a recipe's work. Use it as a context: leaving it always commits the rest."""

    def __init__(self, kept: Kept, *, every_seconds: float | None = None) -> None:
        self.kept, self._every = kept, publish_seconds() if every_seconds is None else every_seconds
        self._head, self._generation = stored.Head(), ""
        self._sent: set[str] = set()
        self._lost: TakenOver | None = None
        self._launch = ""
        self._one_at_a_time = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"keeps {kept.run_name}", daemon=True)

    def __enter__(self) -> "Publisher":
        """Fence off the previous holder, then download the committed files unless the last commit is from this working folder."""
        kept = self.kept
        before, generation = stored.read_head(kept.head, kept.objects, kept.known)
        self._head, known = before.taken(), list[str]()
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            known = read_json(kept.known)["commits"]
        is_ours = before.commit in known
        if is_ours:
            write_json(kept.known, {"commits": [before.commit, self._head.commit]})
        self._generation = kept.head.replace(self._head, generation)
        if is_ours:
            for name, listed in list(stored.kept_names(kept.work, kept.folders)):
                if not stored.is_list_of_checkpoint(name) or has_its_files(listed.parent):
                    continue
                pieces = self._head.files.get(name)  # other hosts wrote and uploaded the files of this checkpoint
                if pieces is not None and stored.digest_of_pieces(listed) == tuple(pieces):
                    stored.bring_or_leave(listed, tuple(pieces), kept.objects)
                else:
                    remove_checkpoint(listed.parent)
                    RunFolder(listed.parents[2]).result.unlink(missing_ok=True)  # it may depend on the checkpoint
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
            if kind is None:  # else the first error is raised
                raise

    def lend(self, launch: str) -> None:
        """Commit, and let the first host of a launch commit until `take_back`."""
        self._launch = launch
        try:
            if not self.publish(lends=True):
                raise StorageError(CHANGED.format(self.kept.work))
        except BaseException:
            self._launch = ""
            raise

    def committed_by_hosts(self) -> stored.Files | None:
        """Return the files of the head, if a host of the launch has replaced the head since the last call."""
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

    def take_back(self, bring: Callable[[stored.Files], None]) -> None:
        """Fence off the hosts of the launch, commit from here again, and delete content without a name in the head."""
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
        """Raise `TakenOver` if another process took the work over."""
        if self._lost:
            raise self._lost

    def publish(self, *, lends: bool = False) -> bool:
        """Commit changed files, unless the hosts of a launch commit. Return False if the files changed during each attempt.

        `lends`: commit for the launch that is about to start. Raises TakenOver if another process holds the work now, StorageError if the
        upload failed. Then nothing was committed, and the files remain in the working folder.
        """
        if self._launch and not lends:
            return True
        with self._one_at_a_time:
            self.check()
            for _ in range(TRIES):
                try:
                    self._commit()
                    return True
                except stored.Changing:  # a checkpoint was deleted or replaced while it was read or sent
                    continue
                except TakenOver as lost:
                    self._lost = lost
                    raise
                except Exception as error:  # stores have different error types
                    raise StorageError(
                        f"the work in {self.kept.work} is not yet committed to {self.kept.store}: {error}. Check the store, and start "
                        "again on this machine, which resumes from this folder."
                    ) from error
        return False

    def _commit(self) -> None:
        kept, objects = self.kept, self.kept.objects
        files, sources = stored.take_snapshot(kept.work, kept.folders)
        has_unneeded = not self._sent <= sources.keys()
        if not has_unneeded and (files, self._launch) == (self._head.files, self._head.launch):
            return
        objects.send({digest: source for digest, source in sources.items() if digest not in self._sent})
        for name, pieces in files.items():  # a file that was replaced during its upload has other bytes than its digest says
            if stored.is_list_of_checkpoint(name) and stored.digest_of_pieces(kept.work / name) != pieces:
                raise stored.Changing
        head = self._head.followed(files, self._launch)
        unnamed = objects.versions(self._sent - sources.keys())
        write_json(kept.known, {"commits": [self._head.commit, head.commit]})
        self._generation = kept.head.replace(head, self._generation)
        self._head, self._sent = head, set(sources)
        write_json(kept.known, {"commits": [head.commit]})
        objects.delete(unnamed)

    def _run(self) -> None:
        has_reported = False
        while not self._ended.wait(self._every):
            try:
                self.publish()
                has_reported = False
            except TakenOver as lost:
                say(str(lost))
                return
            except StorageError as error:
                if not has_reported:
                    say(str(error))
                has_reported = True


_at_work: dict[Path, Publisher] = {}  # `Kept.known` → the publisher of this process


@contextmanager
def keeping(kept: Kept) -> Iterator[None]:
    """Download the committed files, and commit the work within the context, also a nested context. Raises TakenOver or StorageError."""
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
    """Raise `TakenOver` if another process took over any work of this process."""
    for publisher in list(_at_work.values()):
        publisher.check()


def keeper_of(folder: Path) -> Publisher | None:
    """Return the publisher of a run's folder, or None if the home is local."""
    return next((publisher for publisher in _at_work.values() if folder.is_relative_to(publisher.kept.work)), None)


def named_digests(files: stored.Files, objects: stored.Objects) -> set[str]:
    """Return the digests of all content that a head with these files needs, including the files of checkpoints."""
    named = {piece.sha256 for pieces in files.values() for piece in pieces}
    for name in filter(stored.is_list_of_checkpoint, files):
        with suppress(StorageError, ValueError, KeyError, TypeError, AttributeError):  # damaged on the store: downloads leave it out
            listed = parse_json(objects.content(files[name]))
            named |= {str(said["sha256"]) for said in listed["files"].values()}
    return named
