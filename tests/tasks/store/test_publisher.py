"""What is committed on one machine is what another finds; what is newer here is not lost, and what others did is not undone."""

from pathlib import Path
from typing import Any

import pytest

from phasewise.tasks.store.content import Objects, Source, take_snapshot
from phasewise.tasks.store.publisher import Publisher
from phasewise.trainer.base.errors import StorageError
from phasewise.trainer.base.storage import write_atomically
from phasewise.trainer.checkpoints.files import DIGESTS_NAME, find_damage, remove_checkpoint
from tests.stores.emulator import BUCKET, the_emulator
from tests.tasks.store.worlds import Machine, machine

HOUR = 3600.0


def objects_of(one: Machine) -> set[str]:
    prefix = str(one.kept.objects.folder).removeprefix(f"gs://{BUCKET}/")
    return {name.rpartition("/")[2] for name in the_emulator().storage.objects[BUCKET] if name.startswith(prefix)}


def test_another_machine_goes_on_with_what_was_committed(gcs: Path, tmp_path: Path):
    one, other = machine(tmp_path / "one", gcs), machine(tmp_path / "other", gcs)
    with Publisher(one.kept, every_seconds=HOUR):
        one.train_to(5)
    with Publisher(other.kept, every_seconds=HOUR):
        assert other.files() == one.files()
        assert find_damage(other.run.checkpoint(5)) is None
        assert not other.run.heartbeat.exists()
        other.train_to(10)
    with Publisher(one.kept, every_seconds=HOUR):
        assert one.files() == other.files()


def test_what_is_newer_here_is_kept_as_long_as_nobody_else_went_on(gcs: Path, tmp_path: Path):
    one = machine(tmp_path / "one", gcs)
    with Publisher(one.kept, every_seconds=HOUR):
        one.train_to(5)
    one.train_to(10)
    with Publisher(one.kept, every_seconds=HOUR):
        assert one.run.checkpoint(10).exists()
    with Publisher(machine(tmp_path / "other", gcs).kept, every_seconds=HOUR):
        pass
    one.train_to(15, text=" of another line")
    with Publisher(one.kept, every_seconds=HOUR):
        assert not one.run.checkpoint(15).exists()
        assert one.run.checkpoint(10).exists()


def test_what_no_head_names_is_deleted_and_what_one_names_stays(gcs: Path, tmp_path: Path):
    one = machine(tmp_path / "one", gcs)
    with Publisher(one.kept, every_seconds=HOUR) as publisher:
        one.train_to(5)
        publisher.publish()
        before = objects_of(one)
        remove_checkpoint(one.run.checkpoint(5))
        one.train_to(10)
    now = objects_of(one)
    assert before - now  # the weights of step 5
    assert now == set(take_snapshot(one.kept.work, one.kept.folders).sources)


def test_who_only_looks_gets_no_weights_and_takes_nothing_over(gcs: Path, tmp_path: Path):
    one, other = machine(tmp_path / "one", gcs), machine(tmp_path / "other", gcs)
    with Publisher(one.kept, every_seconds=HOUR) as publisher:
        one.train_to(5)
        publisher.publish()
        other.kept.look()
        one.train_to(10)
    assert other.run.metrics.exists()
    assert not other.run.checkpoints.exists()


def test_a_result_is_never_there_without_its_checkpoint(tmp_path: Path):
    one = machine(tmp_path, tmp_path)
    one.train_to(5)
    (one.run.checkpoint(5) / DIGESTS_NAME).unlink()
    (one.run.checkpoints / "7.orbax-checkpoint-tmp-1").mkdir()
    (one.run.checkpoints / "7.orbax-checkpoint-tmp-1" / "x").touch()
    names = take_snapshot(tmp_path, one.kept.folders).files
    assert [name.rpartition("/")[2] for name in names] == ["metrics.jsonl"]


@pytest.mark.parametrize("is_gone", [False, True])
def test_damage_on_the_store_is_named_and_nothing_of_it_is_used(gcs: Path, tmp_path: Path, is_gone: bool):
    one, other = machine(tmp_path / "one", gcs), machine(tmp_path / "other", gcs)
    with Publisher(one.kept, every_seconds=HOUR) as publisher:
        one.train_to(5)
        publisher.publish()
        one.train_to(10)
    (weights,) = (digest for digest, source in take_snapshot(one.kept.work, one.kept.folders).sources.items() if is_weights(source, 10))
    spoil(one.kept.objects.folder / weights, is_gone)
    with Publisher(other.kept, every_seconds=HOUR):  # its checkpoint is left out, and the one before is there
        assert find_damage(other.run.checkpoint(5)) is None
        assert not other.run.checkpoint(10).exists()
    (piece,) = one.kept.head.read()[0].files["runs/tiny-proxy/kestrel/metrics.jsonl"]
    spoil(one.kept.objects.folder / piece.sha256, is_gone)
    with (
        pytest.raises(StorageError, match=f"{piece.sha256} .*(has other bytes|is not there)"),
        Publisher(machine(tmp_path / "third", gcs).kept, every_seconds=HOUR),
    ):
        pass


def is_weights(source: Source, step: int) -> bool:
    return source.path is not None and source.path.parts[-3:] == (str(step), "state", "weights")


def spoil(place: Path, is_gone: bool) -> None:
    if is_gone:
        place.unlink()
    else:
        write_atomically(place, b"other bytes")


def test_a_checkpoint_that_is_deleted_while_it_is_sent_is_left_out(gcs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    one, other = machine(tmp_path / "one", gcs), machine(tmp_path / "other", gcs)
    send = Objects.send

    def delete_and_send(objects: Objects, sources: Any) -> None:
        monkeypatch.setattr(Objects, "send", send)
        remove_checkpoint(one.run.checkpoint(5))
        send(objects, sources)

    with Publisher(one.kept, every_seconds=HOUR) as publisher:
        one.train_to(5)
        one.train_to(10)
        monkeypatch.setattr(Objects, "send", delete_and_send)
        assert publisher.publish()
    other.kept.look(checkpoints=True)
    assert other.files() == one.files()


def test_a_home_that_was_uploaded_as_it_lay_is_gone_on_with(gcs: Path, tmp_path: Path):
    """Once it is committed, what was uploaded counts for nothing any more."""
    local, one, other = (machine(tmp_path / name, gcs) for name in ("local", "one", "other"))
    local.train_to(5)
    for path in [path for path in local.kept.work.rglob("*") if path.is_file()]:
        write_atomically(gcs.joinpath(*path.relative_to(local.kept.work).parts), path.read_bytes())
    assert other.kept.look() == 1
    assert other.run.metrics.read_bytes() == local.run.metrics.read_bytes()
    with Publisher(one.kept, every_seconds=HOUR):
        assert one.files() == local.files()
        assert find_damage(one.run.checkpoint(5)) is None
        assert not one.run.heartbeat.exists()
        one.train_to(10)
    write_atomically(gcs.joinpath(*local.run.metrics.relative_to(local.kept.work).parts), b"")
    with Publisher(other.kept, every_seconds=HOUR):
        assert other.files() == one.files()


@pytest.mark.parametrize("is_where_it_was_made", [True, False])
def test_a_head_that_somebody_deleted_is_no_new_home(gcs: Path, tmp_path: Path, is_where_it_was_made: bool):
    """Content without a head is a head that is lost: what is here would be deleted, and all would begin again without a word."""
    one = machine(tmp_path / "one", gcs)
    with Publisher(one.kept, every_seconds=HOUR):
        one.train_to(5)
    before = one.files()
    head = the_emulator().storage.objects[BUCKET].pop(next(name for name in the_emulator().storage.objects[BUCKET] if "head.json" in name))
    who = one if is_where_it_was_made else machine(tmp_path / "other", gcs)
    with pytest.raises(StorageError, match=r"head\.json is not there, and content that it named is: bring back the version"):
        who.kept.look()
    with pytest.raises(StorageError, match="is not there"), Publisher(who.kept, every_seconds=HOUR):
        pass
    assert one.files() == before
    assert head
