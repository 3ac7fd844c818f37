"""The rows of the report beside the parent's: from the evaluation and from the tables of the gate."""

from pathlib import Path
from typing import Any

import pytest

from phasewise.flows.recipes import load_recipe
from phasewise.flows.status.phase_status import PhaseRecord
from phasewise.flows.status.summary import measured_of
from phasewise.tasks.report.contents import MeasuredReport
from phasewise.validations.evidence.gate import gate_tables
from phasewise.validations.evidence.parent_comparison import NOT_ASKED
from phasewise.validations.limits import GateLimits
from phasewise.validations.verdict import write_tables
from tests.validations.made_answers import guessed_result

FIRST, SECOND = load_recipe("marin-8b", "proxy").phases[:2]
JUDGED: Any = object()
NAME = "continuation acc"


def evaluation_of(right: int, bits: dict[str, float], **fields: Any) -> dict[str, Any]:
    return {
        "phase": "kestrel",
        "benchmarks": ["continuation"],
        "results": [guessed_result(right=right, first=140)],
        "bits_per_byte": bits,
        "macro_bits_per_byte": sum(bits.values()) / len(bits),
        "measured_on": dict.fromkeys(bits, "same"),
        "schedule": {"end": 1e-3, "peak": 1e-3, "optimizer": "adamw"},
        "finite": True,
        **fields,
    }


LIMITS = GateLimits(
    max_increase_bits_per_byte=0.1,
    must_beat_baseline=True,
    floor_error_rate=0.01,
    false_refusal_rate=0.05,
    max_score_fall=0.01,
    max_score_rise=0.25,
)
CHILD = evaluation_of(90, {"law": 1.5, "code": 2.5})
PARENT = evaluation_of(60, {"law": 2.0, "code": 2.4})


def rows(folder: Path, *, evaluation: dict[str, Any] = CHILD, judged: Any = JUDGED, phase: Any = SECOND) -> dict[str, MeasuredReport]:
    record = PhaseRecord(phase, None, None, None, None, evaluation, judged)
    return {one.what: one for one in measured_of(record, folder)}


def write(folder: Path, parent: dict[str, Any] | None = PARENT, limits: GateLimits = LIMITS) -> Path:
    write_tables(folder, gate_tables(CHILD, parent, limits))
    return folder


def test_values_are_beside_the_parent_s_and_the_floor(tmp_path: Path) -> None:
    found = rows(write(tmp_path))
    benchmark, macro = found[NAME], found["macro bits per byte"]
    assert (benchmark.value, benchmark.parent, benchmark.floor) == (0.45, 0.3, 0.25)
    assert benchmark.difference == pytest.approx(0.15)
    assert benchmark.stderr is not None
    assert benchmark.interval is not None
    low, high = benchmark.interval
    assert low < 0.15 < high
    assert benchmark.smallest_effect is not None
    assert benchmark.not_compared == ""
    assert (macro.value, macro.parent, macro.higher_is_better) == (2.0, 2.2, False)
    assert macro.difference == pytest.approx(-0.2)


def test_what_was_not_compared_has_no_parent_and_says_why(tmp_path: Path) -> None:
    """The parent's score is in the table of benchmarks as it is: it is not put beside what was measured otherwise."""
    [result] = PARENT["results"]
    otherwise = {**PARENT, "results": [{**result, "setting": {**result["setting"], "shots": 5}}]}
    found = rows(write(tmp_path, otherwise))[NAME]
    assert (found.parent, found.difference) == (None, None)
    assert found.not_compared == "examples in the prompt 0, the parent's 5"


def test_a_gate_that_compares_no_scores_says_so(tmp_path: Path) -> None:
    limits = LIMITS.but(false_refusal_rate=None, max_score_fall=None, max_score_rise=None)
    found = rows(write(tmp_path, limits=limits))[NAME]
    assert (found.parent, found.not_compared) == (None, NOT_ASKED)


def test_components_that_the_parent_was_not_measured_on_are_named_by_their_number(tmp_path: Path) -> None:
    parent = {**PARENT, "measured_on": {"law": "same", "code": "another text"}}
    [macro] = [one for name, one in rows(write(tmp_path, parent)).items() if name.startswith("macro")]
    assert (macro.what, macro.value, macro.parent) == ("macro bits per byte, of the 1 component that its parent was measured on", 1.5, 2.0)


def test_a_first_phase_and_one_without_a_verdict_have_values_alone(tmp_path: Path) -> None:
    write(tmp_path)
    for found in (rows(tmp_path, phase=FIRST), rows(tmp_path, judged=None), rows(tmp_path / "gone")):
        assert (found[NAME].value, found[NAME].floor, found[NAME].parent, found[NAME].difference) == (0.45, 0.25, None, None)
        assert found["macro bits per byte"].parent is None


def test_a_table_of_another_evaluation_is_not_believed(tmp_path: Path) -> None:
    other = rows(write(tmp_path), evaluation=evaluation_of(100, {"law": 1.5, "code": 2.6}))
    assert {name: (found.value, found.parent) for name, found in other.items()} == {NAME: (0.5, None), "macro bits per byte": (2.05, None)}


def test_nothing_measured_is_no_row(tmp_path: Path) -> None:
    assert measured_of(PhaseRecord(SECOND, None, None, None, None, None, None), tmp_path) == ()
