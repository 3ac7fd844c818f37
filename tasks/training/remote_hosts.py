"""The launcher's side of hosts without a shared file system: the first host commits, and the launcher downloads the committed files."""

import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from phasewise.tasks.progress import say
from phasewise.tasks.store.content import ARRIVING, bring_here, content_of, digest_of_pieces, is_list_of_checkpoint, kept_names
from phasewise.tasks.store.head import Files, VersionedObject
from phasewise.tasks.store.publisher import Kept, Publisher, publish_seconds
from phasewise.tasks.training.hosts import OF_LAUNCHER, launches_folder, send_seconds
from phasewise.tasks.training.launchers import Attempt, Hosts
from phasewise.trainer.base.errors import ExitCode, StorageError, TakenOver
from phasewise.trainer.base.run_folder import HEARTBEAT_NAME, RunFolder
from phasewise.trainer.base.storage import cleaning_up, file_system_of, write_atomically
from phasewise.trainer.checkpoints.files import committed_files, has_its_files
from phasewise.trainer.process.rendezvous import check_without_shared_folder

LOOK_SECONDS = 2.0
TRIES = 5


class RemoteHosts:
    """The program of a run on hosts that do not see the launcher's folder.

    Attributes:
        send_seconds: how long hosts may upload after they were asked to stop and have saved.
    """

    def __init__(self, hosts: Hosts, keeper: Publisher, attempt: Attempt) -> None:
        self._hosts, self._keeper, self._run = hosts, keeper, RunFolder(attempt.folder)
        self._heartbeat = VersionedObject(launches_folder(keeper.kept) / attempt.name / HEARTBEAT_NAME)
        self._beat: str | None = None
        self.send_seconds = send_seconds()
        self._ended, self._is_back = threading.Event(), False
        self._thread = threading.Thread(target=self._follow, name="follows the store", daemon=True)
        self._thread.start()

    def look(self) -> int | None:
        """See `Hosts`. When all hosts have ended, everything that they committed is here.

        Raises:
            StorageError: it is not, because the store does not answer.
        """
        code = self._hosts.look()
        if code is not None and not self._is_back:
            self._take_back(needs_weights=code in (ExitCode.DONE, ExitCode.MOVES))
        return code

    def wait(self, seconds: float) -> None:
        """See `Hosts`."""
        self._hosts.wait(seconds)

    def stop(self) -> None:
        """See `Hosts`."""
        self._hosts.stop()

    def kill(self) -> None:
        """See `Hosts`."""
        self._hosts.kill()

    def close(self) -> None:
        """See `Hosts`."""
        self._hosts.close()
        if not self._is_back:
            with suppress(TakenOver, StorageError):  # `follow` raises the reason
                self._take_back(needs_weights=False)

    def _take_back(self, *, needs_weights: bool) -> None:
        self._ended.set()
        self._thread.join()
        for number in range(TRIES):
            try:
                take_back(self._keeper, self._run, needs_weights=needs_weights)
                self._is_back = True
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
        has_reported = False
        while not self._ended.wait(min(LOOK_SECONDS, publish_seconds())):
            try:
                if (files := self._keeper.committed_by_hosts()) is not None:
                    download(self._keeper.kept, self._run, files)
                if found := self._heartbeat.read(self._beat):
                    write_atomically(self._run.heartbeat, found.content)
                    self._beat = found.generation
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


def start_remote(keeper: Publisher, attempt: Attempt, begin: Callable[[Kept], Hosts]) -> RemoteHosts:
    """Commit all that is here, and have `begin` start the hosts, the first of which commits from then on.

    Raises:
        ConfigError: the run needs a shared file system.
        TakenOver, StorageError: as `Publisher.lend`; or as `begin`.
    """
    check_without_shared_folder(attempt.run)
    keeper.lend(attempt.name)
    try:
        return RemoteHosts(begin(keeper.kept), keeper, attempt)
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
    """Make the run's folder what hosts committed, except for the files that the launcher writes. Of checkpoints only lists come.

    Args:
        needs_weights: also download the weights, for who evaluates or resumes on this machine.
    """
    folder = run.path.relative_to(kept.work).as_posix()
    wanted = {name: tuple(pieces) for name, pieces in files.items() if name.startswith(f"{folder}/") and not name.endswith(OF_LAUNCHER)}
    here = {name: digest_of_pieces(path) or () for name, path in kept_names(kept.work, (folder,)) if name.endswith(OF_LAUNCHER)}
    bring_here(kept.work, (folder,), wanted | here, kept.objects, weights_below=None)
    for name, pieces in wanted.items():
        listed: Path = kept.work / name
        if not is_list_of_checkpoint(name):
            continue
        if not listed.exists():
            write_atomically(listed, content_of(kept.work / ARRIVING, pieces, kept.objects))
        listed_files = committed_files(listed.parent)
        if needs_weights and not isinstance(listed_files, str) and not has_its_files(listed.parent):
            missing = {listed.parent / one: digest for one, (_, digest) in listed_files.items() if not (listed.parent / one).exists()}
            kept.objects.bring_all(missing)
    shutil.rmtree(kept.work / ARRIVING, ignore_errors=True)
