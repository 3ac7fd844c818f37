"""What hosts sent of a launch whose launcher is gone: it is on the store, and nobody has committed it.

Whoever takes the work over knows from the head which launch that was. Its hosts are shut out from that moment, and nobody has trained
since. So what they posted is committed as their launcher would have done it: rows, and the checkpoints that all of them sent.
"""

from pathlib import Path

from tasks.progress import say
from tasks.store.keeping import keeper_of
from tasks.store.publisher import Publisher
from tasks.training.hosts.post import Post, Posts
from trainer.base.errors import TakenOver
from trainer.base.run_folder import RunFolder
from trainer.checkpoints.files import is_committed, saved_steps


def take_in_what_was_sent(folder: Path) -> None:
    """Do so, if this process keeps the folder on a store, and took it over from a launch. What cannot be read is said, and is left out.

    Raises:
        TakenOver: another process has the work now.
    """
    keeper = keeper_of(folder)
    launch = keeper.take_left() if keeper else ""
    if keeper is None or not launch:
        return
    try:
        _take_in(keeper, launch)
    except TakenOver:
        raise
    except Exception as error:  # stores have error types of their own
        say(f"what the hosts of the launch {launch} sent last cannot be read ({error}): it goes on from what was committed")


def _take_in(keeper: Publisher, launch: str) -> None:
    from tasks.training.hosts.gathering import Gathering  # which loads jax

    kept = keeper.kept
    posts = Posts.of(kept.store, kept.run_name, launch).all()
    phase = next((phase for post in posts if (phase := _phase_of(post))), None)
    if phase is None:
        return
    folder = RunFolder(kept.work / "runs" / kept.run_name / phase)
    before = _saved(folder)
    Gathering(keeper, launch, folder.path, 1 + max(post.host for post in posts)).take_in()
    if (now := _saved(folder)) != before:
        say(f"{phase}: the hosts of the launch {launch}, whose launcher is gone, had sent the checkpoint of step {now:,}; it is kept")


def _phase_of(post: Post) -> str | None:
    """By the files that the first host wrote."""
    return next((name.split("/")[2] for name in post.files if name.startswith("runs/")), None)


def _saved(folder: RunFolder) -> int:
    return max((step for step in saved_steps(folder.checkpoints) if is_committed(folder.checkpoint(step))), default=0)
