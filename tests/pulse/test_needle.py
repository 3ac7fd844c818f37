"""The pulse of a needle, tiny: its documents, its runs, and what it measures."""

from pathlib import Path

import numpy as np
import pytest

from tasks.evaluation.needles import MAX_NEW_TOKENS, build_items
from tests.pulse import needle_runs
from tests.pulse.needle import ARMS, Found, table
from tests.pulse.needle_runs import (
    ASKED,
    BATCH_TOKENS,
    LONG,
    NEEDLES,
    SHORT,
    TOLD,
    Lengths,
    documents,
    first_run,
    haystack,
    next_run,
    tokenizer,
)
from trainer.base.run_folder import RunFolder
from trainer.base.storage import write_json
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


def test_the_extension_has_as_many_tokens_a_step_and_an_order_of_its_own(tmp_path: Path):
    """Nothing is trained here, which takes a minute: the parent's result is made up."""
    first = first_run(tmp_path, 0, TINY)
    write_json(RunFolder.at(first.output).result, {"params_digest": "0"})
    longer = next_run(tmp_path, first, LONG, TINY)
    assert longer.order.first_step == first.stop_step
    assert {run.batch.at(run.stop_step - 1) * run.model.seq_len for run in (first, longer)} == {BATCH_TOKENS}
    assert Loader(longer).batch(longer.start_step).tokens.shape == (BATCH_TOKENS // LONG, LONG)
    assert longer.model == first.model.but(seq_len=LONG)


def test_the_benchmark_s_items_fit_and_are_read_word_by_word():
    names = tokenizer()
    for length in (SHORT, LONG):
        items = build_items(NEEDLES.but(length=length, items_per_depth=1), haystack(), lambda text: 1 + len(names.encode(text).ids))
        assert {item.tokens for item in items} == {length - MAX_NEW_TOKENS}
        assert all(f"{item.prompt.split()[-1]} {item.answer}" in item.prompt for item in items)


def test_the_table_has_a_line_a_model():
    found = [Found(arm, 0, length, 0.5, 0.25, 0.4, 0.125, 80) for arm in ARMS for length in (SHORT, LONG)]
    assert table(found).splitlines()[-1] == f"| {ARMS[-1]} | 0.50 | 0.25 | 0.50 | 0.25 | 0.40 and 0.40 |"
