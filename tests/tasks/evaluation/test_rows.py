from collections.abc import Sequence
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.tasks.evaluation.scoring import Rows, Window, lay_out

TEXTS = st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.integers(1, 40)), min_size=1, max_size=12)
"""Few different tokens: many texts have a beginning in common."""


def windows_of(drawn: Sequence[tuple[list[int], int]]) -> list[Window]:
    return [Window(np.array(text, np.int32), np.arange(min(count, len(text)), dtype=np.int32)) for text, count in drawn]


def text_at(rows: Rows, row: int, slot: int) -> list[int]:
    """The text that a slot sees, by the rule of `Branches`: what comes before and has not ended."""
    found = rows.arrays(slice(0, len(rows.rows)), len(rows.rows))
    seen = [before for before in range(slot + 1) if slot < found.ends[row, before]]
    assert found.positions[row, seen].tolist() == list(range(len(seen)))
    return found.tokens[row, seen].tolist()


@settings(max_examples=80, deadline=None)
@given(TEXTS)
def test_every_target_follows_exactly_its_own_text(drawn: list[tuple[list[int], int]]) -> None:
    windows = windows_of(drawn)
    rows = Rows(64)
    for number in sorted(range(len(windows)), key=lambda number: windows[number].inputs.tolist()):
        rows.put(number, windows[number])
    assert rows.places.keys() == set(range(len(windows)))
    found = rows.arrays(slice(0, len(rows.rows)), len(rows.rows))
    for number, (row, first) in rows.places.items():
        inputs, targets = windows[number]
        assert found.targets[row, first : first + len(targets)].tolist() == targets.tolist()
        for place in range(len(targets)):
            until = len(inputs) - len(targets) + place + 1
            assert text_at(rows, row, found.slots[row, first + place]) == inputs[:until].tolist()


@settings(max_examples=30, deadline=None)
@given(TEXTS, st.integers(0, 99))
def test_the_order_of_windows_changes_no_row(drawn: list[tuple[list[int], int]], seed: int) -> None:
    windows = windows_of(drawn)
    shuffled = Random(seed).sample(range(len(windows)), len(windows))
    before, after = (lay_out(some, 512) for some in (windows, [windows[number] for number in shuffled]))
    for one, other in zip(before, after, strict=True):
        stacked = [rows.arrays(slice(0, len(rows.rows)), len(rows.rows)) for rows in (one, other)]
        for left, right in zip(*stacked, strict=True):
            np.testing.assert_array_equal(left, right)


def test_what_is_shared_is_computed_once() -> None:
    """Two items behind the same examples, each with four choices: three tokens of examples, two of an item, one or two of a choice."""
    texts = [[1, 1, 1, item, item, *choice] for item in (2, 3) for choice in ([4, 4], [5], [6], [])]
    [rows] = lay_out(windows_of([(text, 1) for text in texts]), 512)
    assert sum(row.filled for row in rows.rows) == 3 + 2 * (2 + 4)


def test_rows_have_few_lengths() -> None:
    for seq_len, lengths in {48: [512], 512: [512], 2048: [512, 2048], 4096: [256, 1024, 4096], 32_768: [2048, 8192, 32_768]}.items():
        inputs = [*(length // 3 for length in lengths if length // 3 <= seq_len), seq_len]
        windows = [Window(np.zeros(size, np.int32), np.zeros(1, np.int32)) for size in inputs]
        assert [rows.length for rows in lay_out(windows, seq_len)] == lengths
