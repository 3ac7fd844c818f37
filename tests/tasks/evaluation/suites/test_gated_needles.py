"""Needles that a phase names: asked of a model, shown beside its parent, and judged where the gate says so."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tokenizers import Tokenizer

from phasewise.tasks.evaluation.gate_benchmarks import check_room, needle_key, needle_results
from phasewise.tasks.evaluation.needles import Needles, least_length
from phasewise.trainer.base.errors import ConfigError, EvaluationError
from phasewise.validations.limits import GateLimits
from phasewise.validations.verdict import Verdict, judge_gate
from tests.tasks.evaluation.suites.conftest import Scripted
from tests.tasks.evaluation.suites.test_gated import LIMITS, evaluation_of, stops
from tests.tasks.evaluation.suites.test_needle import WORDS, reader, value_of

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
ASKS = LIMITS.but(needle_error_rate=0.01)


def measured(
    scripted: Scripted, tokenizer: Tokenizer, phase: str, *, finds: bool, labels: tuple[str, ...] = ("niah:300",)
) -> dict[str, Any]:
    """The evaluation of a model that finds every needle, or takes the first value."""

    def score(prompt: str, text: str) -> float:
        return -float(text.strip() != value_of(prompt)) if finds else -1.0

    return evaluation_of(needle_results(reader(scripted, tokenizer, score=score), labels, WORDS), phase)


def judge(tmp_path: Path, evaluation: dict[str, Any], parent: dict[str, Any] | None, limits: GateLimits) -> Verdict:
    return judge_gate("model", evaluation, parent_evaluation=parent, limits=limits, folder=tmp_path / "evidence", accepts=())


def needle_reasons(verdict: Verdict) -> list[str]:
    """Why it fails, but for benchmarks of other kinds, of which these phases have none."""
    return [reason.what for reason in stops(verdict) if reason.what.startswith("niah")]


def test_needles_are_shown_beside_the_parent_and_judged_only_where_the_gate_asks(scripted: Scripted, tokenizer: Tokenizer, tmp_path: Path):
    blind = measured(scripted, tokenizer, "phase-3", finds=False)
    finds = measured(scripted, tokenizer, "extension", finds=True)
    after = judge(tmp_path, finds, blind, LIMITS)
    [note] = [note for note in after.notes if note.startswith("niah:300 acc: 1.000")]
    assert f"to phase-3's {blind['results'][0]['value']:.3f} on the same 40 items." in note
    table = pd.read_parquet(tmp_path / "evidence" / "needles.parquet")
    assert (table["against"][0], table["difference"][0]) == ("phase-3", 1.0 - blind["results"][0]["value"])
    assert needle_reasons(judge(tmp_path, blind, None, LIMITS)) == []
    assert needle_reasons(judge(tmp_path, finds, blind, ASKS)) == []
    [why] = needle_reasons(judge(tmp_path, blind, None, ASKS))
    assert why.startswith("niah:300 acc does not tell the model from one that finds no needle")


def test_the_limit_is_the_phase_s(scripted: Scripted, tokenizer: Tokenizer, tmp_path: Path):
    """A model that finds one needle in seven: its p is within reach of a limit."""

    def score(prompt: str, text: str) -> float:
        return -float(text.strip() != value_of(prompt)) if sum(map(ord, prompt)) % 7 == 0 else -1.0

    some = evaluation_of(needle_results(reader(scripted, tokenizer, score=score), ("niah:300",), WORDS), "x")
    judge(tmp_path, some, None, LIMITS)
    p = float(pd.read_parquet(tmp_path / "evidence" / "needles.parquet")["floor_p_value"][0])
    assert 1e-6 < p < 0.4
    assert needle_reasons(judge(tmp_path, some, None, LIMITS.but(needle_error_rate=1.01 * p))) == []
    assert len(needle_reasons(judge(tmp_path, some, None, LIMITS.but(needle_error_rate=0.99 * p)))) == 1


def test_a_length_that_the_parent_was_not_asked_says_so(scripted: Scripted, tokenizer: Tokenizer, tmp_path: Path):
    parent = measured(scripted, tokenizer, "phase-3", finds=True)
    longer = measured(scripted, tokenizer, "extension", finds=True, labels=("niah:600", "niah:300"))
    notes = [note for note in judge(tmp_path, longer, parent, LIMITS).notes if note.startswith("niah")]
    assert notes[0].startswith("niah:300 acc: 1.000, where a guess has 0.")
    assert "+0.000" in notes[0]
    assert notes[1].endswith("not compared with a parent: phase-3 was never measured on it.")


def test_what_the_model_cannot_read_is_no_result(scripted: Scripted, tokenizer: Tokenizer):
    with pytest.raises(EvaluationError, match="the phase names niah:5000, which cannot be measured: its items have 5,000 tokens"):
        measured(scripted, tokenizer, "x", finds=True, labels=("niah:5000",))


def test_a_length_without_room_is_refused_with_the_least(tokenizer: Tokenizer):
    check_room("late", ["niah:1000"], tokenizer)
    with pytest.raises(
        ConfigError, match=r"phase late is too short for niah:64 \(evaluation.benchmarks\): 2 needles, .* Take niah:\d+ or more"
    ):
        check_room("late", ["niah:64", "niah:1000"], tokenizer)


def test_a_short_text_has_as_many_needles_as_there_is_room_for(scripted: Scripted, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture):
    def count(text: str) -> int:
        return 1 + len(tokenizer.encode(text, add_special_tokens=False).ids)

    least = {keys: least_length(Needles(length=1000, keys=keys), count) for keys in (2, 3, 4)}
    for keys, length in ((4, least[4]), (3, least[4] - 1), (3, least[3]), (2, least[3] - 1), (2, least[2])):
        label = f"niah:{length}"
        (result,) = measured(scripted, tokenizer, "x", finds=True, labels=(label,))["results"]
        assert {len(answer["log_likelihoods"]) for answer in result["answers"]} == {keys}
        assert (f"{label}: {keys} needles in a text in place of 4" in caplog.text) == (keys < 4)


def test_text_and_length_decide_the_key():
    before = needle_key(["niah:300"], {"web": "a", "law": "b"})
    assert needle_key(["niah:300"], {"law": "b", "web": "a"}) == before
    assert needle_key(["niah:300"], {"web": "a", "law": "c"}) != before
    assert needle_key(["niah:301"], {"web": "a", "law": "b"})["niah:301"] != before["niah:300"]
