"""What was measured, phase by phase: words, colours, means, and what the record reported, which is never put beside a figure of ours."""

import math
import re
from typing import Any

import pytest

from phasewise.tasks.report.contents import MeasuredReport, PhaseReport, RecordReport, Report
from phasewise.tasks.report.html import render
from phasewise.tasks.report.pictures import panels_of
from phasewise.tasks.report.sections import benchmark_gaps, component_gaps, report_markdown, row_of
from tests.tasks.report.test_views import build_phase, build_report

SCORE = RecordReport(what="MMLU (5-shot)", value="65.3 %", source="the record's table", is_measure=True)
SLICE = RecordReport(what="slice", value="v4-2048", source="the record's text", is_measure=False)


def figure(what: str = "b acc", value: float = 0.5, **fields: object) -> MeasuredReport:
    return MeasuredReport.model_validate({"what": what, "higher_is_better": True, "value": value, **fields})


def report_of(*phases: PhaseReport, scale: str = "proxy", **baselines: float) -> Report:
    return Report.model_validate({**dict(build_report(*phases)), "scale": scale, "baselines": baselines})


@pytest.fixture
def two() -> Report:
    """A phase and its child, with an interval and without."""
    fields: dict[str, Any] = {
        "parent": 0.5,
        "difference": -0.1,
        "interval": (-0.17, -0.03),
        "smallest_effect": 0.08,
        "floor": 0.25,
        "stderr": 0.03,
    }
    macro = figure("macro", 2.0, higher_is_better=False, parent=3.0, difference=-1.0)
    first = build_phase("first", measured=(figure(floor=0.25),), bits_per_byte={"a": 2.0, "b": 4.0}, macro_bits_per_byte=3.0)
    second = build_phase(
        "second", parent="first", bits_per_byte={"a": 1.5, "b": 4.1, "new": 9.0}, macro_bits_per_byte=2.0,
        measured=(figure(value=0.4, **fields), figure("c|d em", 0.2), macro),
        reported=(SCORE, SLICE),
    )  # fmt: skip
    return report_of(first, second, ngram=2.5, worse=2.9)


def test_a_row_says_all_that_is_known_and_no_more(two: Report) -> None:
    fallen, alone, macro = (row_of(one, two.baselines) for one in two.phases[1].measured)
    assert (fallen.value, fallen.parent, fallen.difference) == ("0.400 ± 0.030", "0.500", "−0.100")
    assert (fallen.interval, fallen.smallest_effect, fallen.floor) == ("−0.170 to −0.030", "0.080", "0.250")
    assert (alone.parent, alone.difference, alone.interval, alone.smallest_effect, alone.floor) == ("–",) * 5
    assert (macro.difference, macro.floor) == ("−1.000", "2.500 (ngram)")


@pytest.mark.parametrize(
    ("interval", "higher_is_better", "direction"),
    [
        ((0.01, 0.2), True, "better"), ((-0.2, -0.01), True, "worse"), ((-0.2, -0.01), False, "better"), ((0.01, 0.2), False, "worse"),
        ((-0.1, 0.2), True, "unclear"), ((0.0, 0.2), True, "unclear"), (None, True, "unclear"),
    ],
)  # fmt: skip
def test_only_an_interval_without_zero_is_coloured(
    two: Report, interval: tuple[float, float] | None, higher_is_better: bool, direction: str
) -> None:
    measured = figure(difference=0.1, interval=interval, higher_is_better=higher_is_better)
    assert row_of(measured, {}).direction == direction


def test_the_gap_to_the_parent_is_over_what_both_have(two: Report) -> None:
    [gap] = component_gaps(two)
    assert gap.phase == "second"
    assert [name for name, _ in gap.changes] == ["a", "b"]
    assert gap.mean == pytest.approx((-0.5 + 0.1) / 2)
    [gap] = benchmark_gaps(two)
    assert gap.changes == (("b acc", -0.1),)


def test_a_value_that_is_not_finite_leaves_the_rest(two: Report) -> None:
    broken = build_phase(
        "broken", parent="second", bits_per_byte={"a": math.nan, "b": 4.0}, measured=(figure(value=math.nan, difference=math.nan),)
    )
    report = report_of(*two.phases, broken)
    assert [name for name, _ in component_gaps(report)[-1].changes] == ["b"]
    assert len(benchmark_gaps(report)) == 1
    assert "not finite" in render(report)


def test_one_phase_is_no_picture_across_phases(two: Report) -> None:
    assert panels_of(report_of(two.phases[0])) == []
    assert [panel.title.split(":")[0] for panel in panels_of(two)] == [
        "benchmarks",
        "held-out bits per byte by component (lower is better)",
        "bits per byte against the parent",
        "benchmarks against the parent",
    ]


def test_the_page_says_that_the_record_is_another_run(two: Report) -> None:
    page = " ".join(re.sub(r"<[^>]*>", " ", render(two).split("Phase by phase", 1)[1]).split())
    assert "Reported by the record, at full scale : another model, other data and other prompts. Not to be compared" in page
    assert "MMLU (5-shot) 65.3 %" in page
    assert "the record&#39;s table" in page
    assert page.index("65.3 %") > page.index("c|d em"), "it is under the table, in no row of it"
    full = render(report_of(*two.phases, scale="full"))
    assert "at full scale" not in full.split("Phase by phase", 1)[1].split("Verdicts", 1)[0]
    assert "What else the record reported" in full


def test_the_markdown_has_every_row_and_escapes_bars(two: Report) -> None:
    lines = report_markdown(two, "report.html", "docs").splitlines()
    assert "| second | b acc | 0.400 ± 0.030 | 0.500 | −0.100 | −0.170 to −0.030 | 0.080 | 0.250 |" in lines
    assert "| second | c\\|d em | 0.200 | – | – | – | – | – |" in lines
    assert "| macro bits per byte | 3.000 | 2.000 |" in lines
    assert "| components' mean gap to the parent | – | −0.200 |" in lines
    assert "## Reported by the record, at full scale: not to be compared" in lines
    assert "| second | MMLU (5-shot) | 65.3 % | the record's table |" in lines
    assert not any("v4-2048" in line for line in lines)
    rows = [line for line in lines if line.startswith("| second")]
    assert len({line.replace("\\|", "").count("|") for line in rows}) == 3  # three tables
    assert "Measured" not in report_markdown(report_of(build_phase("bare")), "report.html", "docs")
