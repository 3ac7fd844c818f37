"""A process keeps its work once, whoever of its flows asks, and hears when it lost it."""

from pathlib import Path

import pytest

from phasewise.tasks.home import Home
from phasewise.tasks.store.publisher import Publisher, check_not_taken_over, keeping
from phasewise.trainer.base.errors import TakenOver
from tests.tasks.store.worlds import RUN_NAME, machine


def test_within_another_it_changes_nothing(gcs: Path, tmp_path: Path):
    kept = machine(tmp_path, gcs).kept
    with keeping(kept):
        with keeping(kept):
            pass
        assert kept.head.read()[0].number == 1
        check_not_taken_over()
    with keeping(kept):
        assert kept.head.read()[0].number == 2


def test_who_lost_the_work_hears_it_when_it_asks(gcs: Path, tmp_path: Path):
    one, other = machine(tmp_path / "one", gcs), machine(tmp_path / "other", gcs)

    def lose_it() -> None:
        with keeping(one.kept):
            with Publisher(other.kept, every_seconds=3600.0):
                other.train_to(5)
            one.train_to(7)

    with pytest.raises(TakenOver, match="another's"):
        lose_it()
    check_not_taken_over()  # it keeps nothing any more


def test_a_trainer_is_stopped_where_the_work_was_lost(gcs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PHASEWISE_PUBLISH_SECONDS", "0.05")
    one, other = machine(tmp_path / "one", gcs), machine(tmp_path / "other", gcs)

    def follow() -> None:
        """As the launcher does: it asks until something is raised."""
        with keeping(one.kept):
            with Publisher(other.kept, every_seconds=3600.0):
                other.train_to(5)
            one.train_to(7)
            while True:
                check_not_taken_over()

    with pytest.raises(TakenOver, match="another's"):
        follow()


def test_a_home_on_a_store_is_worked_on_here(gcs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PHASEWISE_SCRATCH", str(tmp_path))
    home, looked = Home.at(str(gcs)), Home.at(str(gcs), reads_only=True)
    places = (home.run(RUN_NAME, "kestrel"), home.verdict(RUN_NAME, "kestrel", "data"), home.report(RUN_NAME))
    assert all(place.is_relative_to(tmp_path) for place in places)
    assert not looked.run(RUN_NAME, "kestrel").is_relative_to(home.work)  # who looks disturbs nobody who works
    with home.held("a flow"), home.kept(RUN_NAME), home.held("its subflow"), home.kept(RUN_NAME):
        places[1].parent.mkdir(parents=True)
        places[1].write_text("{}")
    looked.look(RUN_NAME)
    assert looked.verdict(RUN_NAME, "kestrel", "data").read_text() == "{}"


def test_a_local_home_keeps_nothing_elsewhere(tmp_path: Path):
    home = Home.open(str(tmp_path))
    assert home.work == home.root
    with home.kept(RUN_NAME):
        home.look(RUN_NAME)
    assert list(tmp_path.iterdir()) == []
