import math
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from phasewise.trainer.base.errors import DataError
from phasewise.trainer.config import DataOrder, Execution, LossOn, MixtureShares, PackingKind, RunConfig, Steps, always
from phasewise.trainer.data.mixture import MixtureSchedule
from phasewise.trainer.preflight.spec import NO_DATA, run_of
from phasewise.validations.evidence.mixture import PACKING_COLUMNS, mixture_evidence, packing_evidence
from tests.trainer.preflight.models import LLAMA_8B, step_of
from tests.trainer.token_caches import BEGIN, END, write_conversations, write_token_cache
from tests.validations.conftest import Drawn

ORDER = DataOrder(seed=0, permutation="linear", block_sequences=20, cut_blocks=True)

MIXTURE = Steps[MixtureShares](((0, {"web": 100.0}), (10, {"web": 70.0, "code": 30.0, "tail": 0.0})))


class Stages(Drawn):
    """Ten sequences a step; after step 10, where a block of seven is cut, two of every ten are code and not three."""

    def realised(self, start_step: int, stop_step: int) -> dict[str, int]:
        web_only, mixed = max(0, min(stop_step, 10) - start_step), max(0, stop_step - max(start_step, 10))
        return {"web": 10 * web_only + 8 * mixed, "code": 2 * mixed}

    def cut_at(self, step: int) -> int:
        return 7 if step == 10 else 0


def test_each_stage_and_component_is_measured():
    evidence = mixture_evidence(Stages(MIXTURE, ORDER, {}), start_step=5, stop_step=20, rows={"web": 50, "code": 40}, seq_len=32)
    assert evidence[["start_step", "stop_step", "component", "sequences", "tokens"]].to_numpy().tolist() == [
        [5, 10, "web", 50, 1600], [10, 20, "web", 80, 2560], [10, 20, "code", 20, 640],
    ]  # fmt: skip
    assert evidence["realised_percent"].tolist() == [100.0, 80.0, 20.0]
    assert evidence["error_points"].tolist() == pytest.approx([0, 10, 10])
    assert evidence["error_percent"].tolist() == pytest.approx([0, 100 / 7, 100 / 3])
    assert evidence["epochs"].tolist() == [1.0, 1.6, 0.5]
    assert evidence["epochs_since_step_0"].tolist() == [2.0, 3.6, 0.5]
    assert evidence["block_sequences"].tolist() == [20, 14, 6]
    assert evidence["block_percent"].tolist() == pytest.approx([100, 70, 30])
    assert evidence["cut_sequences"].tolist() == [0, 7, 7]
    assert evidence["undeclared_cut_sequences"].tolist() == [0, 0, 0], "this order declares that blocks may be cut"


def test_what_is_drawn_but_not_intended_is_measured_too_and_what_is_intended_but_never_drawn_is_marked():
    evidence = mixture_evidence(Drawn(MIXTURE, ORDER, {"web": 99, "code": 1}), start_step=0, stop_step=10, rows={"web": 9}, seq_len=1)
    code = evidence[evidence["component"] == "code"]
    assert code[["intended_percent", "error_points", "rows", "epochs", "block_sequences"]].to_numpy().tolist() == [[0, 1, 0, math.inf, 0]]
    evidence = mixture_evidence(Drawn(MIXTURE, ORDER, {"web": 3}), start_step=10, stop_step=11, rows={"web": 9, "code": 9}, seq_len=1)
    assert evidence.set_index("component")["is_drawn"].to_dict() == {"web": True, "code": False}


def test_the_sequences_of_the_block_that_the_record_cuts_are_reported():
    """Marin 32B: 2,510 steps of 7,680 sequences leave half a block before Mantis, and no later step of 8,192 makes it whole."""
    mixture = Steps[MixtureShares](((0, {"web": 70.0, "maths": 30.0}), (160_000, {"web": 50.0, "maths": 50.0})))
    order = DataOrder(seed=0, permutation="linear", block_sequences=2048, cut_blocks=True)
    schedule = MixtureSchedule(batch=Steps(((0, 8192), (18_500, 7680), (21_010, 8192))), mixture=mixture, order=order)
    evidence = mixture_evidence(schedule, start_step=160_000, stop_step=192_000, rows={"web": 10**9, "maths": 10**9}, seq_len=4096)
    assert (evidence["cut_sequences"].tolist(), evidence["undeclared_cut_sequences"].tolist()) == ([1024, 1024], [0, 0])
    assert evidence["sequences"].tolist() == [16_000 * 8192] * 2
    assert evidence["tokens"].sum() == 32_000 * 8192 * 4096
    assert evidence["error_points"].tolist() == [0, 0]


def test_what_rounding_takes_shows_in_a_small_component_s_own_percent():
    order = DataOrder(seed=0, permutation="linear", block_sequences=200)
    schedule = MixtureSchedule(batch=always(64), mixture=always({"web": 99.3, "medu": 0.7}), order=order)
    evidence = mixture_evidence(schedule, start_step=0, stop_step=25, rows={}, seq_len=1)
    (medu,) = evidence[evidence["component"] == "medu"].to_dict("records")
    assert (medu["block_sequences"], medu["sequences"]) == (1, 8)
    assert (medu["error_points"], medu["error_percent"]) == pytest.approx((0.2, 100 * 2 / 7))


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
    return run.but(model=run.model.but(seq_len=SEQ_LEN), caches={NO_DATA: str(cache)}, packing=packing, loss_on=loss_on)


def test_padding_cuts_and_counted_tokens_are_those_of_the_rows(cache: Path):
    """Worked out by hand: greedy rows of at most 16 tokens are [4] [16 of 20] [7 9] [16] [3] [16 of 17] [5]."""
    (row,) = packing_evidence(run_on(cache, "greedy", "answers")).to_dict("records")
    assert (row["documents"], row["rows"], row["places"], row["tokens"]) == (8, 7, 112, 76)
    assert (row["padding_percent"], row["counted_percent"]) == pytest.approx((100 * 36 / 112, 100 * 30 / 76))
    assert (row["documents_cut"], row["tokens_cut"], row["documents_cut_percent"]) == (2, 5, 25.0)
    assert (row["counted_tokens"], row["rows_without_target"]) == (1 + 0 + 3 + 4 + 7 + 1 + 12 + 2, 1)
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
