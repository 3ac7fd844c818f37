"""Of two who replace the head one is refused, and an answer that is lost is no refusal."""

from pathlib import Path

import pytest

from phasewise.tasks.store.head import ABSENT, Head, HeadObject
from phasewise.trainer.base.errors import ConfigError, StorageError, TakenOver
from phasewise.trainer.base.storage import as_path, write_atomically
from tests.stores.fixtures import FaultyStore


def test_a_head_that_was_never_written_is_empty(gcs: Path):
    assert HeadObject.at(gcs / "head.json").read() == (Head(), ABSENT)


def test_the_second_of_two_is_refused(gcs: Path):
    place = HeadObject.at(gcs / "head.json")
    first, second = Head().taken(), Head().taken()
    generation = place.replace(first, ABSENT)
    with pytest.raises(TakenOver, match="another's"):
        place.replace(second, ABSENT)
    assert place.read() == (first, generation)
    place.replace(second, generation)
    with pytest.raises(TakenOver):
        place.replace(first.followed({}), generation)
    assert place.read()[0] == second


def test_a_lost_answer_is_no_refusal(faulty_store: FaultyStore):
    place, head = HeadObject.at(faulty_store.root / "head.json"), Head().taken()
    faulty_store.faults.drop_reply(method="POST", where="head.json")
    generation = place.replace(head, ABSENT)
    assert faulty_store.faults.happened
    assert place.read() == (head, generation)


def test_a_store_without_preconditions_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"found memory://.*gs:// alone"):
        HeadObject.at(as_path("memory://bucket/head.json"))


def test_a_head_that_does_not_read_is_not_an_empty_one(gcs: Path):
    write_atomically(gcs / "head.json", b'{"files"')
    with pytest.raises(StorageError, match="does not read"):
        HeadObject.at(gcs / "head.json").read()
