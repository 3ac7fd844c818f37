"""Brings into the launcher's folder what the hosts of a launch send, so that all who follow a run read its files as ever.

The launcher alone commits: it has the lead of the work all the time. Hosts send content and posts; what they send counts once the head
names it, and a checkpoint is named when the posts of all hosts together have every file of it.
"""

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from phasewise.tasks.progress import say
from phasewise.tasks.store.head import Piece
from phasewise.tasks.store.interval import publish_seconds
from phasewise.tasks.store.publisher import Kept, Publisher
from phasewise.tasks.store.snapshot import GROWING, digests_listed, is_list_of_checkpoint
from phasewise.tasks.training.hosts.limits import alone_seconds, send_seconds
from phasewise.tasks.training.hosts.post import Post, Posts
from phasewise.tasks.training.hosts.sender import digests_of
from phasewise.tasks.training.hosts.sign import Sign
from phasewise.tasks.training.protocol import Attempt, Life
from phasewise.trainer.base.errors import StorageError, TakenOver
from phasewise.trainer.base.exit_codes import ExitCode
from phasewise.trainer.base.run_folder import RESULT_NAME, RunFolder
from phasewise.trainer.base.storage import write_atomically, write_json
from phasewise.trainer.checkpoints.files import committed_files, has_its_files, remove_checkpoint, saved_steps
from phasewise.trainer.config import RunConfig
from phasewise.trainer.process.apart import check_goes_apart

LOOK_SECONDS = 2.0
TRIES = 5
THREADS = 8
Pieces = tuple[Piece, ...]


class Gathering:
    """Of one launch. It says to the publisher what hosts have sent.

    Args:
        launch: its name.
        folder: of the run that it trains.
        hosts: how many.
    """

    def __init__(self, publisher: Publisher, launch: str, folder: Path, hosts: int) -> None:
        kept = publisher.kept
        self._publisher, self._launch = publisher, launch
        self._work, self._folder = kept.work, RunFolder(folder)
        self._store = Posts.of(kept.store, kept.run_name, launch)
        self._sign = Sign(self._store, alone_seconds())
        self._posts: dict[int, tuple[Post, str]] = {}
        self._hosts = hosts
        self._ever: set[str] = set()
        self._applied: dict[str, Pieces] = {}
        self._heartbeat, self._others = b"", 0
        self._one_at_a_time = threading.Lock()

    def begin(self, run: RunConfig) -> None:
        """Commit that this launch has the work, with all that is here. What other launches left is deleted.

        Raises:
            ConfigError: the run needs what hosts without a common folder cannot do.
            TakenOver, StorageError: as `Publisher.publish`.
        """
        check_goes_apart(run)
        self._ever |= digests_of(self._store.others())
        self._publisher.launch(self._launch, self)
        self._store.clear_others()
        self._sign.give()

    def end(self) -> None:
        """Commit what there is, and that no launch has the work any more."""
        self._publisher.launch("")
        self._store.clear()

    def sent(self) -> Collection[str]:
        """See `tasks.store.elsewhere.Elsewhere`."""
        return {digest for post, _ in list(self._posts.values()) for digest in post.sent}

    def needed(self) -> Collection[str]:
        """See `Elsewhere`."""
        self._read()
        return digests_of([post for post, _ in list(self._posts.values())])

    def ever_sent(self) -> Collection[str]:
        """See `Elsewhere`."""
        return self._ever

    def gather(self) -> None:
        """Bring here what is new, and have hosts know that somebody does."""
        with self._one_at_a_time:
            self._sign.give()
            self._bring()

    def take_in(self) -> None:
        """Commit what the hosts of a launch sent whose launcher is gone, as it would have done, and have it whole here. They are shut out.

        Raises:
            StorageError: something that was sent is missing.
            TakenOver: as `Publisher.publish`.
        """
        self._publisher.launch("", self)
        with self._one_at_a_time:
            self._bring()
        self._publisher.publish()
        self.bring_checkpoints()

    def forget(self) -> None:
        """Delete what is left of a launch that was taken in, with what its hosts sent since. They have ended."""
        self._read()
        self.end()

    def _bring(self) -> None:
        self._read()
        for host, (post, _) in self._posts.items():
            place = self._folder.roll_calls / self._launch / f"{host}.json"
            if post.presence and not place.exists():
                write_json(place, post.presence)
        if 0 in self._posts:
            self._apply(self._posts[0][0])

    def bring_checkpoints(self) -> None:
        """Have the checkpoints of the run whole here: whoever evaluates them, or goes on from them, works on this machine.

        Raises:
            StorageError: something that was sent is missing.
        """
        objects = self._publisher.kept.objects
        for step in saved_steps(self._folder.checkpoints):
            place = self._folder.checkpoint(step)
            wanted = committed_files(place)
            if not isinstance(wanted, str) and not has_its_files(place):
                objects.bring_all({place / name: said[1] for name, said in wanted.items() if not (place / name).exists()})

    def _read(self) -> None:
        def read(host: int) -> tuple[Post, str] | None:
            known = self._posts.get(host)
            return self._store.read(host, known[1] if known else None)

        with ThreadPoolExecutor(THREADS) as threads:
            found = list(threads.map(read, range(self._hosts)))
        self._posts |= {host: one for host, one in enumerate(found) if one}
        self._ever |= digests_of([one[0] for one in found if one])

    def _apply(self, post: Post) -> None:
        """What the first host wrote: rows before checkpoints, and these before what is written once; lists of checkpoints that are on the
        store whole, and a result or a deletion only where all are.
        """
        self._write_heartbeat(post)
        changed = [name for name, pieces in post.files.items() if self._applied.get(name) != pieces]
        contents: dict[str, bytes] = {}
        for name in sorted(changed, key=_order):
            content = self._store.content(0, name, post.files[name])
            if content is None:
                return  # the next post is there already
            contents[name] = content
        sent = set(self.sent())
        late = {name for name, content in contents.items() if is_list_of_checkpoint(name) and not digests_listed(content) <= sent}
        for name, content in contents.items():
            if name in late or (late and name.endswith(f"/{RESULT_NAME}")):
                continue
            write_atomically(self._work / name, content)
            self._applied[name] = post.files[name]
        if not late:
            self._delete(post.gone)

    def _delete(self, names: Iterable[str]) -> None:
        for name in names:
            self._applied.pop(name, None)
            path = self._work / name
            if is_list_of_checkpoint(name):
                remove_checkpoint(path.parent)
            else:
                path.unlink(missing_ok=True)

    def _write_heartbeat(self, post: Post) -> None:
        """Of the first host; where that has ended, any post of another one is a sign of life."""
        said, others = post.heartbeat.encode(), sum(one.number for one, _ in list(self._posts.values()))
        if said and said != self._heartbeat:
            write_atomically(self._folder.heartbeat, said)
        elif post.stage == "ended" and others > self._others:
            with suppress(FileNotFoundError):
                os.utime(self._folder.heartbeat)
        self._heartbeat, self._others = said, others


class GatheredAttempt:
    """The program of a run on hosts without our folder; what they send is gathered while they are at work.

    Args:
        attempt: as it is where hosts see the folder.

    Attributes:
        send_seconds: how long hosts may take to send when they were asked to stop and have saved.
    """

    def __init__(self, attempt: Attempt, gathering: Gathering, folder: Path) -> None:
        self._attempt, self._gathering, self._folder = attempt, gathering, RunFolder(folder)
        self.send_seconds = send_seconds()
        self._ended = threading.Event()
        self._is_whole = False
        self._thread = threading.Thread(target=self._run, name="gathers", daemon=True)
        self._thread.start()

    def look(self) -> int | None:
        """See `Attempt`. When all have ended all that they sent is here.

        Raises:
            StorageError: it is not, because the store does not answer.
        """
        code = self._attempt.look()
        if code is not None and not self._is_whole:
            self._gather_rest(brings=code in (ExitCode.DONE, ExitCode.MOVES))
        return code

    def wait(self, seconds: float) -> None:
        """See `Attempt`."""
        self._attempt.wait(seconds)

    def stop(self) -> None:
        """See `Attempt`."""
        self._attempt.stop()

    def kill(self) -> None:
        """See `Attempt`."""
        self._attempt.kill()

    def close(self) -> None:
        """See `Attempt`."""
        self._attempt.close()
        self._ended.set()
        self._thread.join()
        with suppress(TakenOver):  # whoever has the work ends this process by it
            if not self._is_whole:
                with suppress(StorageError):
                    self._gather_rest(brings=False)
            self._gathering.end()

    def _gather_rest(self, *, brings: bool) -> None:
        self._ended.set()
        self._thread.join()
        for number in range(TRIES):
            try:
                self._gathering.gather()
                if brings:
                    self._gathering.bring_checkpoints()
                self._is_whole = True
                return
            except Exception as error:  # stores have error types of their own
                if number == TRIES - 1:
                    raise StorageError(
                        f"the hosts have ended, and what they sent cannot be read: {error}. Look after the store, and start again: it goes "
                        "on from what is committed."
                    ) from error
                time.sleep(number)

    def _run(self) -> None:
        is_said = False
        every = min(LOOK_SECONDS, publish_seconds())
        while not self._ended.wait(every):
            try:
                self._gathering.gather()
                is_said = False
            except Exception as error:  # stores have error types of their own
                if not is_said:
                    say(f"what the hosts send cannot be read at the moment: {error}")
                is_said = True
                with suppress(OSError):  # nobody knows whether they are silent
                    os.utime(self._folder.heartbeat)


def gathered(keeper: Publisher, life: Life, hosts: int, begin: Callable[[Kept], Attempt]) -> GatheredAttempt:
    """A launch of so many hosts, which `begin` starts when it is committed.

    Raises:
        As `Gathering.begin`, and as `begin`: then there is no launch.
    """
    gathering = Gathering(keeper, life.name, life.folder, hosts)
    try:
        gathering.begin(life.run)
        return GatheredAttempt(begin(keeper.kept), gathering, life.folder)
    except BaseException:
        with suppress(TakenOver, StorageError):  # why it did not begin is what is said
            gathering.end()
        raise


def _order(name: str) -> int:
    return 0 if name.endswith(GROWING) else 1 if is_list_of_checkpoint(name) else 2
