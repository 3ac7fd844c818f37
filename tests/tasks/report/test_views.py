"""The sums behind the pictures."""

import pytest

from phasewise.tasks.report.contents import BenchmarkReport, PhaseReport, Report, VerdictReport
from phasewise.tasks.report.sections import component_rows, gauges_of, macro_row, spans_of, standing_of
from phasewise.validations.outcomes import CheckCounts


def build_phase(name: str, **fields: object) -> PhaseReport:
    plan = {"start_step": 0, "stop_step": 10, "tokens": 10, "batch_sequences": ((0, 1),), "learning_rate_turns": (1.0, 0.0)}
    return PhaseReport.model_validate(plan | {"name": name, "state": "done"} | fields)


def build_report(*phases: PhaseReport) -> Report:
    return Report(recipe="r", scale="proxy", created="now", status="passed", headline="h", parameters=1, phases=phases)


def test_a_mean_over_other_components_than_the_parent_s_has_no_change():
    bits = {"web": 2.0, "code": 1.0}
    first = build_phase("first", bits_per_byte=bits, macro_bits_per_byte=1.5)
    talks = build_phase("talks", parent="first", bits_per_byte={**bits, "talks": 4.5}, macro_bits_per_byte=2.5)
    assert [cell.change for cell in macro_row((first, talks)).cells] == [None, None]
    over_shared = talks.model_copy(update={"macro_bits_per_byte": 1.5})
    assert [cell.change for cell in macro_row((first, over_shared), ("code", "web")).cells] == [None, 0.0]


def test_bars_hold_every_percent_and_group_the_small(passed_report: Report):
    spans = spans_of(passed_report)
    assert [(span.phase, span.start_step, span.stop_step) for span in spans][3:5] == [("phoenix", 820, 822), ("phoenix", 822, 1320)]
    for span in spans:
        segments = [segment for block in span.blocks for segment in block.segments]
        assert sum(segment.percent for segment in segments) == pytest.approx(sum(span.shares.values()))
    assert [block.name for block in spans[5].blocks][-1] == "other (6)"
    colours = {(segment.name, segment.colour) for span in spans for block in span.blocks for segment in block.segments}
    colours = {(name, colour) for name, colour in colours if not name.startswith("other (")}
    assert len(colours) == len({name for name, _ in colours})


def test_change_is_against_the_parent_not_the_phase_before():
    first = build_phase("first", bits_per_byte={"a": 3.0, "b": 3.0})
    side = build_phase("side", bits_per_byte={"a": 1.0, "b": 3.0}, parent="first")
    last = build_phase("last", bits_per_byte={"a": 2.5, "b": 3.5}, parent="first", mixture=((0, {"a": 100.0}),))
    rows = component_rows((first, side, last))
    a, b = rows
    assert [cell.change for cell in a.cells] == [None, -2.0, -0.5]
    assert [cell.change for cell in b.cells] == [None, 0.0, 0.5]
    assert a.cells[2].strength < 0 < b.cells[2].strength
    assert (a.cells[2].trained_on, b.cells[2].trained_on) == (True, False)


def test_rows_form_a_staircase(passed_report: Report):
    rows = component_rows(passed_report.phases)
    best = [min(range(1, 6), key=lambda i, row=row: row.cells[i].change or 0.0) for row in rows]
    assert best == sorted(best)
    assert len(set(best)) > 2


def test_gauge_keeps_order_and_starts_at_zero():
    def result(value: float, baseline: float | None = 0.25, stderr: float | None = 0.05) -> tuple[BenchmarkReport, ...]:
        return (BenchmarkReport(benchmark="b", metric="acc", value=value, baseline=baseline, stderr=stderr),)

    (gauge,) = gauges_of(build_report(build_phase("one", benchmarks=result(0.2)), build_phase("two", benchmarks=result(0.5))))
    one, two = gauge.marks
    assert gauge.baseline_position is not None
    assert one.position is not None
    assert two.position is not None
    assert 0 <= one.low < one.position < gauge.baseline_position < two.position < two.high <= 100
    assert gauge.bottom == 0
    for values in ((0.0,), (-3.0, -2.0), (40.0,)):
        phases = [build_phase(str(value), benchmarks=result(value, None, None)) for value in values]
        (gauge,) = gauges_of(build_report(*phases))
        assert gauge.bottom < gauge.top
        assert all(mark.position is not None and 0 <= mark.position <= 100 for mark in gauge.marks)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"verdicts": (("data", CheckCounts(passed=1)), ("gate", CheckCounts(passed=1, accepted=1)))}, "passed"),
        ({"verdicts": (("data", CheckCounts(warned=2)), ("gate", CheckCounts(passed=1, warned=1)))}, "passed with 3 warnings"),
        ({"verdicts": (("data", CheckCounts(passed=1)), ("gate", CheckCounts(broken=1)))}, "gate failed"),
        ({"verdicts": (("data", CheckCounts(failed=1)),), "state": "refused"}, "data failed"),
        ({"state": "refused"}, "refused"),
        ({"state": "not reached"}, "not reached"),
        ({}, "not judged"),
    ],
)
def test_a_phase_passes_only_where_it_was_judged(fields: dict, word: str):
    verdicts = tuple(
        VerdictReport(name=name, counts=counts, reasons=(), accepted=(), path="") for name, counts in fields.get("verdicts", ())
    )
    assert standing_of(build_phase("p", **fields | {"verdicts": verdicts})).word == word
