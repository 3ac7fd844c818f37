"""The pulse of a needle, tiny: its documents, its runs, and what it measures."""

from pathlib import Path

import numpy as np
import pytest

from tests.pulse import needle, needle_runs
from tests.pulse.needle_runs import ASKED, BATCH_TOKENS, LONG, NEEDLES, SHORT, TOLD, Lengths, documents, first_run, next_run, train
from trainer.data.loader import Loader

TINY = Lengths(first=2, extension=2)


@pytest.mark.parametrize("length", [SHORT, LONG])
def test_a_document_is_a_row_and_tells_each_key_before_it_asks(length: int):
    first_key = 2 + needle_runs.WORDS
    for document in documents(length, 20):
        assert len(document) == length
        keys = np.flatnonzero((document >= first_key) & (document < first_key + needle_runs.KEYS))
        told = {int(document[place]): int(document[place + 1]) for place in keys[:TOLD]}
        assert len(told) == TOLD
        assert all(told[int(document[place])] == document[place + 1] for place in keys[TOLD:])
        assert len(keys) == TOLD * (1 + (ASKED if length == SHORT else ASKED * length // SHORT // 2))


def test_the_extension_has_as_many_tokens_a_step_and_an_order_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(needle, "NEEDLES", NEEDLES.but(items_per_depth=1, depths=(0.5,)))
    first = train(first_run(tmp_path, 0, TINY))
    longer = train(next_run(tmp_path, first, LONG, TINY))
    assert longer.order.first_step == first.stop_step
    assert {run.batch.at(run.stop_step - 1) * run.model.seq_len for run in (first, longer)} == {BATCH_TOKENS}
    assert Loader(longer).batch(longer.start_step).tokens.shape == (BATCH_TOKENS // LONG, LONG)
    assert longer.model == first.model.but(seq_len=LONG)
    found = [*needle.measure("short", first, tmp_path), *needle.measure("long", longer, tmp_path)]
    assert [(one.arm, one.length, one.items) for one in found] == [
        (arm, length, 1) for arm in ("short", "long") for length in (SHORT, LONG)
    ]
    assert needle.table(found).count("\n") == 3
