"""What hosts sent of a launch whose launcher is gone: it is on the store, and nobody has committed it.

Whoever takes the work over knows from the head which launch that was. Its hosts are shut out from that moment, and nobody has trained
since. So what they posted is committed as their launcher would have done it: rows, and the checkpoints that all of them sent.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from phasewise.tasks.progress import say
from phasewise.tasks.store.keeping import keeper_of
from phasewise.tasks.store.publisher import Publisher
from phasewise.tasks.training.hosts.post import Post, Posts
from phasewise.trainer.base.errors import TakenOver
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.checkpoints.files import is_committed, saved_steps

if TYPE_CHECKING:
    from phasewise.tasks.training.hosts.gathering import Gathering


def take_in_what_was_sent(folder: Path, end_hosts: Callable[[Path], None] = lambda _: None) -> None:
    """Do so, if this process keeps the folder on a store, and took it over from a launch. What cannot be read is said, and is left out.

    Args:
        end_hosts: ends what is still at work of the run of a folder; called with that of the launch.

    Raises:
        TakenOver: another process has the work now.
        PhasewiseError: as `end_hosts`.
    """
    keeper = keeper_of(folder)
    launch = keeper.take_left() if keeper else ""
    if keeper is None or not launch:
        return
    try:
        taken = _take_in(keeper, launch)
    except TakenOver:
        raise
    except Exception as error:  # stores have error types of their own
        say(f"what the hosts of the launch {launch} sent last cannot be read ({error}): it goes on from what was committed")
        return
    if taken:
        of_launch, gathering = taken
        end_hosts(of_launch)
        gathering.forget()


def _take_in(keeper: Publisher, launch: str) -> "tuple[Path, Gathering] | None":
    from phasewise.tasks.training.hosts.gathering import Gathering  # which loads jax

    kept = keeper.kept
    posts = Posts.of(kept.store, kept.run_name, launch).all()
    phase = next((phase for post in posts if (phase := _phase_of(post))), None)
    if phase is None:
        return None
    folder = RunFolder(kept.work / "runs" / kept.run_name / phase)
    before = _saved(folder)
    gathering = Gathering(keeper, launch, folder.path, 1 + max(post.host for post in posts))
    gathering.take_in()
    if (now := _saved(folder)) != before:
        say(f"{phase}: the hosts of the launch {launch}, whose launcher is gone, had sent the checkpoint of step {now:,}; it is kept")
    return folder.path, gathering


def _phase_of(post: Post) -> str | None:
    """By the files that the first host wrote."""
    return next((name.split("/")[2] for name in post.files if name.startswith("runs/")), None)


def _saved(folder: RunFolder) -> int:
    return max((step for step in saved_steps(folder.checkpoints) if is_committed(folder.checkpoint(step))), default=0)
