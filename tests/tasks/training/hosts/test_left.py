"""What hosts sent of a launch whose launcher is gone is committed by whoever takes the work over, as far as all of them sent it."""

from contextlib import suppress
from pathlib import Path

import pytest

from phasewise.tasks.store.keeping import keeping
from phasewise.tasks.store.publisher import Kept
from phasewise.tasks.training.hosts.left import take_in_what_was_sent
from phasewise.tasks.training.hosts.post import Posts
from phasewise.trainer.base.errors import TakenOver
from phasewise.trainer.base.storage import write_json
from phasewise.trainer.checkpoints.files import find_damage
from tests.tasks.training.hosts.worlds import PHASE, RUN_NAME, Launch


def die_of_the_store(*_: object) -> None:
    raise OSError("503")


@pytest.mark.parametrize("machine", ["launcher", "another machine"])
@pytest.mark.parametrize("shared", [True, False], ids=["both sent", "one sent"])
def test_what_was_sent_when_the_launcher_was_gone_is_taken_in(gcs: Path, tmp_path: Path, machine: str, shared: bool):
    launch = Launch(tmp_path, gcs).__enter__()
    launch.train_to(5)
    launch.send()
    assert launch.commit() == [5]
    launch.train_to(10)
    write_json(launch.work(0).run.result, {"step": 10})
    launch.send(*(() if shared else (0,)))
    place = tmp_path if machine == "launcher" else tmp_path / machine
    again = Launch(place, gcs, name="launch-2")
    with keeping(again.kept):
        take_in_what_was_sent(again.run.path)
        assert again.committed() == ([5, 10] if shared else [5])
        assert again.run.result.exists() == shared, "no result without its checkpoint"
        assert len(again.run.metrics.read_text().splitlines()) == 10
        assert [find_damage(again.run.checkpoint(step)) for step in again.committed()] == [None] * (1 + shared)
        before = again.kept.head.read()
        take_in_what_was_sent(again.run.path)
        assert again.kept.head.read() == before, "once"
    with suppress(TakenOver):
        launch.send()
    with Launch(place, gcs, name="launch-2") as second:
        assert second.committed() == ([5, 10] if shared else [5])
    needed, there = second.content()
    assert there == needed


def test_posts_that_do_not_read_are_said_and_what_is_committed_counts(
    gcs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    launch = Launch(tmp_path, gcs).__enter__()
    launch.train_to(5)
    launch.send()
    launch.commit()
    monkeypatch.setattr(Posts, "all", die_of_the_store)
    with keeping(Kept(tmp_path / "another machine", gcs, RUN_NAME)) as _, caplog.at_level("INFO", "phasewise"):
        take_in_what_was_sent(tmp_path / "another machine" / "runs" / RUN_NAME / PHASE)
    assert "sent last cannot be read (503): it goes on from what was committed" in caplog.text
    assert launch.committed() == [5]
