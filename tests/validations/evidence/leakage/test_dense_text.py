import pytest

from experiments.leakage_recall.made_items import made_items
from phasewise.validations.evidence.leakage import scan as scan_module
from phasewise.validations.evidence.leakage.index import LeakageIndex
from phasewise.validations.evidence.leakage.items import BenchmarkItem
from phasewise.validations.evidence.leakage.scan import Document, Hit, scan_documents
from phasewise.validations.limits import LeakageLimits

LIMITS = LeakageLimits(min_words=13, min_score=0.7, min_copy_share=0.5, max_items=0)
ITEMS = made_items(60, seed=8)


@pytest.fixture(scope="module")
def index() -> LeakageIndex:
    return LeakageIndex.build(ITEMS)


def text_of(item: BenchmarkItem) -> str:
    return "\n".join([item.question, *item.choices, item.answer, *item.solutions])


def scan(index: LeakageIndex, *, apart: str = "") -> tuple[Hit, ...]:
    documents = [Document("file", number, str(number), (text_of(item) + apart).encode()) for number, item in enumerate(ITEMS)]
    return scan_documents(documents, index, LIMITS).hits


def test_each_item_is_found_in_its_own_document(index: LeakageIndex) -> None:
    found = {(hit.document, hit.item) for hit in scan(index) if hit.score > 0.99}
    missing = [item.id for number, item in enumerate(ITEMS) if (number, item.id) not in found]
    assert not missing


def test_what_is_found_does_not_depend_on_the_room_that_there_is(index: LeakageIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = scan(index)
    for room in ("_OUT_ROOM", "_CANDIDATE_ROOM", "_HELD_ROOM"):
        monkeypatch.setattr(scan_module, room, 1)
    assert scan(index) == expected
    assert len(expected) > len(ITEMS)


def test_what_is_found_does_not_depend_on_batches(index: LeakageIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = scan(index)
    monkeypatch.setattr(scan_module, "BATCH_BYTES", 4096)
    monkeypatch.setattr(scan_module, "CARRIED_BYTES", 1024)
    found = scan(index)
    assert {(hit.document, hit.item, hit.part) for hit in found} == {(hit.document, hit.item, hit.part) for hit in expected}
