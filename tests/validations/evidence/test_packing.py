"""The table `packing` against rows that are counted one by one."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from phasewise.trainer.base.errors import DataError
from phasewise.trainer.config import Execution, LossOn, PackingKind, RunConfig
from phasewise.trainer.preflight.spec import NO_DATA, run_of
from phasewise.validations.evidence.mixture import PACKING_COLUMNS, packing_evidence
from tests.trainer.preflight.models import LLAMA_8B, step_of
from tests.trainer.token_caches import BEGIN, END, write_conversations, write_token_cache

SEQ_LEN = 16
LENGTHS = [4, 20, 7, 9, 16, 3, 17, 5]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight conversations, two of them longer than a row; of one all of the answer lies behind it."""
    documents = [np.array([BEGIN, *range(2, length), END], np.uint16) for length in LENGTHS]
    answers = [[(2, 3)], [(17, 19)], [(3, 6)], [(2, 4), (6, 8)], [(8, 15)], [(1, 2)], [(4, 16)], [(2, 4)]]
    return write_conversations(tmp_path_factory.mktemp("packing") / "talk", [list(zip(documents, answers, strict=True))])


def run_on(cache: Path, packing: PackingKind, loss_on: LossOn) -> RunConfig:
    run = run_of(step_of(LLAMA_8B, 1), Execution())
    model = run.model.but(seq_len=SEQ_LEN)
    return run.but(model=model, caches={NO_DATA: str(cache)}, packing=packing, loss_on=loss_on)


def test_padding_cuts_and_counted_tokens_are_those_of_the_rows(cache: Path):
    """Worked out by hand: greedy rows of at most 16 tokens are [4] [16 of 20] [7 9] [16] [3] [16 of 17] [5]."""
    (row,) = packing_evidence(run_on(cache, "greedy", "answers")).to_dict("records")
    assert (row["documents"], row["rows"], row["places"], row["tokens"]) == (8, 7, 112, 76)
    assert row["padding_percent"] == pytest.approx(100 * 36 / 112)
    assert (row["documents_cut"], row["tokens_cut"]) == (2, 5)
    assert row["documents_cut_percent"] == 25.0
    assert row["counted_tokens"] == 1 + 0 + 3 + 4 + 7 + 1 + 12 + 2
    assert row["counted_percent"] == pytest.approx(100 * 30 / 76)
    assert row["rows_without_target"] == 1
    (alone,) = packing_evidence(run_on(cache, "pad", "all")).to_dict("records")
    assert (alone["rows"], alone["counted_tokens"], alone["documents_cut"]) == (8, 76 - 8, 2)
    (whole,) = packing_evidence(run_on(cache, "chunk", "all")).to_dict("records")
    assert (whole["rows"], whole["padding_percent"], whole["counted_tokens"], whole["tokens_cut"]) == (5, 0.0, 5 * 15, 1)
    assert list(row) == list(PACKING_COLUMNS)


@pytest.mark.parametrize("packing", get_args(PackingKind))
def test_plain_text_has_no_answers(packing: PackingKind, tmp_path: Path):
    cache = write_token_cache(tmp_path / "web", [[np.array([BEGIN, *range(2, 40), END], np.uint16)]])
    assert len(packing_evidence(run_on(cache, packing, "all"))) == 1
    with pytest.raises(DataError, match="found plain text"):
        packing_evidence(run_on(cache, packing, "answers"))
