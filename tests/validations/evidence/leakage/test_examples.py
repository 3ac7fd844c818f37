from collections.abc import Sequence

import pytest

from phasewise.validations.evidence.leakage.index import LeakageIndex
from phasewise.validations.evidence.leakage.items import BenchmarkItem
from phasewise.validations.evidence.leakage.scan import Document, scan_documents
from phasewise.validations.limits import LeakageLimits

LIMITS = LeakageLimits(min_words=13, min_score=0.7, min_copy_share=0.5, max_items=0)
TEST = BenchmarkItem(
    "tasks", "tasks", "test:1",
    "Write a function to replace every comma of a sentence by one colon and give the sentence back.",
    solutions=("def replace_comma(sentence):\n    changed = re.sub(',', ':', sentence)\n    assert changed\n    return changed.lower()",),
)  # fmt: skip
TRAIN = BenchmarkItem(
    "tasks", "tasks", "train:1",
    "Write a function to replace every comma of a sentence by two dashes and give the sentence back.",
    solutions=("def dashes_for(sentence):\n    pieces = sentence.split(',')\n    assert pieces\n    return '--'.join(pieces).rstrip()",),
    is_example=True,
)  # fmt: skip
OTHER = BenchmarkItem(
    "birds", "birds", "wren", "Which keeper of the northern lighthouse counted all brown wrens that nested below the old gallery?"
)


def text_of(item: BenchmarkItem) -> str:
    return f"Question: {item.question}\nAnswer: {item.solutions[0]}"


def found(items: Sequence[BenchmarkItem], *texts: str) -> list[tuple[int, str]]:
    documents = [Document("file", number, "", text.encode()) for number, text in enumerate(texts)]
    return sorted({(hit.document, hit.item) for hit in scan_documents(documents, LeakageIndex.build(items), LIMITS).hits})


@pytest.mark.parametrize("text", [text_of(TRAIN), TRAIN.question, f"Before it.\n{text_of(TRAIN)}\nAnd after it."])
def test_a_copy_of_an_example_is_no_edited_copy_of_a_test_item(text: str) -> None:
    assert found([TEST, OTHER], text) == [(0, "test:1")]
    assert found([TEST, OTHER, TRAIN], text) == []


def test_test_items_are_found_beside_examples_edited_or_not() -> None:
    edited = text_of(TEST).replace("give the sentence back", "return the whole sentence")
    assert found([TEST, OTHER, TRAIN], text_of(TEST), edited, text_of(TRAIN)) == [(0, "test:1"), (1, "test:1")]


def test_a_test_item_that_is_in_the_train_split_too_is_found() -> None:
    copy = TEST._replace(id="train:2", is_example=True)
    assert found([TEST, OTHER, copy], text_of(TEST), TEST.question) == [(0, "test:1"), (1, "test:1")]


def test_a_question_of_both_splits_is_the_one_whose_solution_is_there() -> None:
    alike = TRAIN._replace(question=TEST.question)
    assert found([TEST, OTHER, alike], text_of(alike), text_of(TEST), TEST.question) == [(1, "test:1"), (2, "test:1")]


def test_an_example_of_another_benchmark_hides_nothing() -> None:
    foreign = TRAIN._replace(benchmark="birds")
    assert found([TEST, OTHER, foreign], text_of(TRAIN)) == [(0, "test:1")]


def test_examples_are_no_test_items() -> None:
    assert LeakageIndex.build([TEST, OTHER, TRAIN]).items_per_benchmark == {"tasks": 1, "birds": 1}
