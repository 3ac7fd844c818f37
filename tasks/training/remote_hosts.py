"""The launcher's side of hosts without a shared file system: the first host commits, and the launcher downloads the committed files."""

import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress

from phasewise.tasks.progress import say
from phasewise.tasks.store.content import ARRIVING, bring_here, content_of, digest_of_pieces, is_list_of_checkpoint, kept_names
from phasewise.tasks.store.head import Files, read_version
from phasewise.tasks.store.publisher import Kept, Publisher, publish_seconds
from phasewise.tasks.training.hosts import OF_LAUNCHER, launches_folder, send_seconds
from phasewise.tasks.training.launchers import Attempt, ProcessGroup
from phasewise.trainer.base.errors import StorageError, TakenOver
from phasewise.trainer.base.run_folder import HEARTBEAT_NAME, RunFolder
from phasewise.trainer.base.storage import cleaning_up, file_system_of, write_atomically
from phasewise.trainer.checkpoints.files import committed_files, has_its_files
from phasewise.trainer.process.rendezvous import check_without_shared_folder

LOOK_SECONDS = 2.0
TRIES = 5


class RemoteFolder:
    """Follows the folder of a run whose hosts do not see it, from a thread."""

    def __init__(self, keeper: Publisher, attempt: Attempt) -> None:
        self._keeper, self._run = keeper, RunFolder(attempt.folder)
        self._heartbeat = launches_folder(keeper.kept) / attempt.name / HEARTBEAT_NAME
        self.send_seconds = send_seconds()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="follows the store", daemon=True)
        self._thread.start()

    def take_back(self, *, needs_weights: bool) -> None:
        """Have here what the hosts committed, after all of them have ended."""
        self._ended.set()
        self._thread.join()
        for number in range(TRIES):
            try:
                take_back(self._keeper, self._run, needs_weights=needs_weights)
                return
            except TakenOver:
                raise
            except Exception as error:  # stores have error types of their own
                if number == TRIES - 1:
                    raise StorageError(
                        f"the hosts have ended, and what they committed cannot be read: {error}. Look after the store, and start again: "
                        "it goes on from what is committed."
                    ) from error
                self._ended.wait(number)

    def _follow(self) -> None:
        beat, has_reported = None, False
        while not self._ended.wait(min(LOOK_SECONDS, publish_seconds())):
            try:
                if (files := self._keeper.committed_by_hosts()) is not None:
                    download(self._keeper.kept, self._run, files)
                if found := read_version(self._heartbeat, beat):
                    write_atomically(self._run.heartbeat, found.content)
                    beat = found.generation
                has_reported = False
            except TakenOver as lost:
                say(str(lost))
                return
            except Exception as error:  # stores have error types of their own
                if not has_reported:
                    say(f"what the hosts commit cannot be read at the moment: {error}")
                has_reported = True
                with suppress(OSError):  # the launcher can't know whether they are silent
                    os.utime(self._run.heartbeat)


def start_remote(keeper: Publisher, attempt: Attempt, begin: Callable[[Kept], ProcessGroup]) -> ProcessGroup:
    """Commit all that is here, and have `begin` start the hosts, the first of which commits from then on."""
    check_without_shared_folder(attempt.run)
    keeper.lend(attempt.name)
    try:
        hosts = begin(keeper.kept)
        hosts.remote = RemoteFolder(keeper, attempt)
        return hosts
    except BaseException:
        with suppress(TakenOver, StorageError):  # the reason of `begin` is raised
            take_back(keeper, RunFolder(attempt.folder), needs_weights=False)
        raise


def take_back(keeper: Publisher, run: RunFolder, *, needs_weights: bool) -> None:
    """Have here what the hosts committed, commit from here again, and delete the objects of launches."""
    keeper.take_back(lambda files: download(keeper.kept, run, files, needs_weights=needs_weights))
    folder = launches_folder(keeper.kept)
    store = file_system_of(folder)
    assert store is not None
    for name in store[0].find(store[1]):
        with cleaning_up(folder):
            store[0].rm_file(name)


def download(kept: Kept, run: RunFolder, files: Files, *, needs_weights: bool = False) -> None:
    """Make the run's folder what hosts committed, except for the files of the launcher; of checkpoints only lists, or weights, too."""
    folder = run.path.relative_to(kept.work).as_posix()
    wanted = {name: tuple(pieces) for name, pieces in files.items() if name.startswith(f"{folder}/") and not name.endswith(OF_LAUNCHER)}
    here = {name: digest_of_pieces(path) or () for name, path in kept_names(kept.work, (folder,)) if name.endswith(OF_LAUNCHER)}
    bring_here(kept.work, (folder,), wanted | here, kept.objects, weights_below=None)
    for name in filter(is_list_of_checkpoint, wanted):
        listed = kept.work / name
        if not listed.exists():
            write_atomically(listed, content_of(kept.work / ARRIVING, wanted[name], kept.objects))
        listed_files = committed_files(listed.parent)
        if needs_weights and not isinstance(listed_files, str) and not has_its_files(listed.parent):
            missing = {listed.parent / one: digest for one, (_, digest) in listed_files.items() if not (listed.parent / one).exists()}
            kept.objects.bring_all(missing)
    shutil.rmtree(kept.work / ARRIVING, ignore_errors=True)
