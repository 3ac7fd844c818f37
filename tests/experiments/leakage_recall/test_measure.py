"""Intervals, targets and twins."""

import pytest

from experiments.leakage_recall.measure import Alarm, AlarmRow, RecallRow, Share, twin_proof
from phasewise.validations.evidence.leakage.items import BenchmarkItem
from phasewise.validations.evidence.leakage.scan import Document

ITEM = BenchmarkItem(
    "b", "b", "1", "How many of the seven ducks swim back over the lake before noon?", (), "four", ("7 - 3 = 4 ducks swim back",)
)


@pytest.mark.parametrize(
    ("count", "of", "low", "high"), [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (297, 300, 0.9710, 0.9966), (81, 263, 0.2553, 0.3662)]
)
def test_wilson_intervals(count: int, of: int, low: float, high: float):
    """The last is the example of Newcombe 1998, method 3; the ends of the first two are z² / (n + z²)."""
    assert Share(count, of).interval == pytest.approx((low, high), abs=1e-4)


def test_a_row_passes_at_its_target_and_never_without_items():
    assert RecallRow("a", "edits", 0.95, {"b": Share(95, 100)}).passes
    assert not RecallRow("a", "edits", 0.95, {"b": Share(94, 100)}).passes
    assert not RecallRow("a", "edits", 0.95).passes
    assert not RecallRow("a", "edits", 0.95).may_pass
    assert RecallRow("a", "edits", 0.95, {"b": Share(94, 100)}).may_pass
    assert RecallRow("a", "short", None).passes
    assert not AlarmRow("a", 0.1).passes


def test_twins_are_counted_apart():
    row = AlarmRow(
        "a",
        0.01,
        100,
        [Alarm("1", ("b", "1"), "", "question word for word"), Alarm("2", ("b", "1"), "", None), Alarm("2", ("b", "2"), "", "x")],
    )
    assert (row.rate, row.twins, row.passes) == (Share(1, 100), 1, True)


@pytest.mark.parametrize(
    ("question", "proof"),
    [
        (ITEM.question.upper(), "question word for word"),
        (ITEM.question.replace("seven", "eight"), "question alike by 0.92"),
        ("How many of the nine geese fly back over the hill before noon?", None),
    ],
)
def test_a_twin_needs_a_proof(question: str, proof: str | None):
    sibling = ITEM._replace(question=question, solutions=("none",))
    assert twin_proof(ITEM, Document("f", 0, "f", f"Question: {question}\nAnswer: none".encode()), sibling) == proof
