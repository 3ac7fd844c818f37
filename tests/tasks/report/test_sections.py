import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.tasks.report import sections
from phasewise.tasks.report.contents import BenchmarkReport, MeasuredReport, RecordReport, Report, RoutingReport, VerdictReport
from phasewise.tasks.report.html import render
from phasewise.tasks.report.pictures import LEVELS, LINE_PIXELS, across_picture, heat_map, panels_of
from phasewise.tasks.report.sections import component_rows, gauges_of, macro_row, report_markdown, routing_of, row_of
from phasewise.trainer.metrics import Row
from phasewise.validations.verdict import CheckCounts
from tests.tasks.report.conftest import build_phase, build_report


@pytest.mark.parametrize(("verdicts", "state", "word"), [
    ((("data", CheckCounts(passed=1)), ("gate", CheckCounts(passed=1, accepted=1))), "done", "passed"),
    ((("data", CheckCounts(warned=2)), ("gate", CheckCounts(passed=1, warned=1))), "done", "passed with 3 warnings"),
    ((("data", CheckCounts(passed=1)), ("gate", CheckCounts(broken=1))), "done", "gate failed"),
    ((("data", CheckCounts(failed=1)),), "refused", "data failed"), ((), "refused", "refused"), ((), "not started", "not started"),
    ((), "done", "not judged"),
])  # fmt: skip
def test_a_phase_passes_only_where_it_was_judged(verdicts: tuple[tuple[Any, CheckCounts], ...], state: str, word: str):
    judged = tuple(VerdictReport(name=name, counts=counts, reasons=(), accepted=(), path="") for name, counts in verdicts)
    assert sections.standing_of(build_phase("p", verdicts=judged, state=state)).word == word


def test_bars_hold_every_percent_and_group_the_small_and_a_component_keeps_its_colour(passed_report: Report):
    spans = sections.spans_of(passed_report)
    assert [(span.phase, span.start_step, span.stop_step) for span in spans][3:5] == [("phoenix", 820, 822), ("phoenix", 822, 1320)]
    segments = [[segment for block in span.blocks for segment in block.segments] for span in spans]
    for span, parts in zip(spans, segments, strict=True):
        assert sum(part.percent for part in parts) == pytest.approx(sum(span.shares.values()))
    assert spans[5].blocks[-1].name == "other (5)"
    colours = {(part.name, part.colour) for parts in segments for part in parts if not part.name.startswith("other (")}
    assert len(colours) == len({name for name, _ in colours})


def test_a_change_is_against_the_parent_not_the_phase_before(passed_report: Report):
    first = build_phase("first", bits_per_byte={"a": 3.0, "b": 3.0})
    side = build_phase("side", bits_per_byte={"a": 1.0, "b": 3.0}, parent="first")
    last = build_phase("last", bits_per_byte={"a": 2.5, "b": 3.5}, parent="first", mixture=((0, {"a": 100.0}),))
    a, b = component_rows((first, side, last))
    assert [cell.change for cell in a.cells] == [None, -2.0, -0.5]
    assert [cell.change for cell in b.cells] == [None, 0.0, 0.5]
    assert a.cells[2].strength < 0 < b.cells[2].strength
    assert (a.cells[2].trained_on, b.cells[2].trained_on) == (True, False)
    rows = component_rows(passed_report.phases)
    best = [min(range(1, 6), key=lambda i, row=row: row.cells[i].change or 0.0) for row in rows]
    assert best == sorted(best), "rows form a staircase"
    assert len(set(best)) > 2


def test_a_mean_over_other_components_than_the_parent_s_has_no_change():
    bits = {"web": 2.0, "code": 1.0}
    first = build_phase("first", bits_per_byte=bits, macro_bits_per_byte=1.5)
    talks = build_phase("talks", parent="first", bits_per_byte={**bits, "talks": 4.5}, macro_bits_per_byte=2.5)
    assert [cell.change for cell in macro_row((first, talks)).cells] == [None, None]
    over_shared = talks.model_copy(update={"macro_bits_per_byte": 1.5})
    assert [cell.change for cell in macro_row((first, over_shared), ("code", "web")).cells] == [None, 0.0]


def test_a_gauge_keeps_order_and_starts_at_zero():
    def result(value: float, baseline: float | None = 0.25, stderr: float | None = 0.05) -> tuple[BenchmarkReport, ...]:
        return (BenchmarkReport(benchmark="b", metric="acc", value=value, baseline=baseline, stderr=stderr),)

    (gauge,) = gauges_of(build_report(build_phase("one", benchmarks=result(0.2)), build_phase("two", benchmarks=result(0.5))))
    one, two = gauge.marks
    places = [one.low, one.position, gauge.baseline_position, two.position, two.high]
    assert [0, *places, 100] == sorted([0, *places, 100])  # type: ignore[type-var]
    assert gauge.bottom == 0
    for values in ((0.0,), (-3.0, -2.0), (40.0,)):
        phases = [build_phase(str(value), benchmarks=result(value, None, None)) for value in values]
        (gauge,) = gauges_of(build_report(*phases))
        assert gauge.bottom < gauge.top
        assert all(mark.position is not None and 0 <= mark.position <= 100 for mark in gauge.marks)


SCORE = RecordReport(what="MMLU (5-shot)", value="65.3 %", source="the record's table", is_measure=True)
SLICE = RecordReport(what="slice", value="v4-2048", source="the record's text", is_measure=False)


def figure(what: str = "b acc", value: float = 0.5, **fields: object) -> MeasuredReport:
    return MeasuredReport.model_validate({"what": what, "higher_is_better": True, "value": value, **fields})


@pytest.fixture
def two() -> Report:
    fields: dict[str, Any] = {
        "parent": 0.5, "difference": -0.1, "interval": (-0.17, -0.03), "smallest_effect": 0.08, "floor": 0.25, "stderr": 0.03,
    }  # fmt: skip
    macro = figure("macro", 2.0, higher_is_better=False, parent=3.0, difference=-1.0)
    first = build_phase("first", measured=(figure(floor=0.25),), bits_per_byte={"a": 2.0, "b": 4.0}, macro_bits_per_byte=3.0)
    second = build_phase(
        "second", parent="first", bits_per_byte={"a": 1.5, "b": 4.1, "new": 9.0}, macro_bits_per_byte=2.0,
        measured=(figure(value=0.4, **fields), figure("c|d em", 0.2), macro),
        reported=(SCORE, SLICE),
    )  # fmt: skip
    return build_report(first, second, baselines={"ngram": 2.5, "worse": 2.9})


def test_a_row_says_all_that_is_known_and_no_more(two: Report):
    fallen, alone, macro = (row_of(one, two.baselines) for one in two.phases[1].measured)
    assert (fallen.value, fallen.parent, fallen.difference) == ("0.400 ± 0.030", "0.500", "−0.100")
    assert (fallen.interval, fallen.smallest_effect, fallen.floor) == ("−0.170 to −0.030", "0.080", "0.250")
    assert (alone.parent, alone.difference, alone.interval, alone.smallest_effect, alone.floor) == ("–",) * 5
    assert (macro.difference, macro.floor) == ("−1.000", "2.500 (ngram)")


@pytest.mark.parametrize(("interval", "higher_is_better", "direction"), [
    ((0.01, 0.2), True, "better"), ((-0.2, -0.01), True, "worse"), ((-0.2, -0.01), False, "better"), ((0.01, 0.2), False, "worse"),
    ((-0.1, 0.2), True, "unclear"), ((0.0, 0.2), True, "unclear"), (None, True, "unclear"),
])  # fmt: skip
def test_only_an_interval_without_zero_is_coloured(interval: tuple[float, float] | None, higher_is_better: bool, direction: str):
    assert row_of(figure(difference=0.1, interval=interval, higher_is_better=higher_is_better), {}).direction == direction


def test_gaps_to_the_parent_are_over_finite_values_and_need_two_phases(two: Report):
    not_finite = figure(value=math.nan, difference=math.nan)
    broken = build_phase("broken", parent="second", bits_per_byte={"a": math.nan, "b": 4.0}, measured=(not_finite,))
    report = build_report(*two.phases, broken)
    (gap, of_broken), of_benchmarks = sections.parent_gaps(report)
    assert (gap.phase, [name for name, _ in gap.changes]) == ("second", ["a", "b"])
    assert gap.mean == pytest.approx((-0.5 + 0.1) / 2)
    assert [name for name, _ in of_broken.changes] == ["b"]
    [gap] = of_benchmarks
    assert gap.changes == (("b acc", -0.1),)
    assert "not finite" in render(report)
    assert panels_of(build_report(two.phases[0])) == []
    titles = ["benchmarks", "held-out bits per byte by component (lower is better)"]
    titles += ["bits per byte against the parent", "benchmarks against the parent"]
    assert [panel.title.split(":")[0] for panel in panels_of(two)] == titles


def test_names_of_many_curves_stay_beside_their_axes_and_apart():
    bits = {f"component {number}": 2.0 + number / 100 for number in range(60)}
    report = build_report(build_phase("first", bits_per_byte=bits), build_phase("second", parent="first", bits_per_byte=bits))
    [panel] = panels_of(report)[:1]
    picture = str(across_picture(report, 1_000))
    places = sorted(float(y) for y in re.findall(r'<text [^>]*y="([\d.]+)"[^>]*>component \d+', picture))
    assert min(np.diff(places)) >= LINE_PIXELS - 0.2
    assert 0.9 * panel.height < places[-1] - places[0] <= panel.height


def test_page_and_markdown_say_that_the_record_is_another_run(two: Report):
    page = " ".join(re.sub(r"<[^>]*>", " ", render(two).split("Phase by phase", 1)[1]).split())
    assert "Reported by the record, at full scale : another model, other data and other prompts. Not to be compared" in page
    assert "MMLU (5-shot) 65.3 %" in page
    assert "the record&#39;s table" in page
    assert page.index("65.3 %") > page.index("c|d em"), "it is under the table, in no row of it"
    full = render(build_report(*two.phases, scale="full", baselines=two.baselines))
    assert "at full scale" not in full.split("Phase by phase", 1)[1].split("Verdicts", 1)[0]
    assert "What else the record reported" in full
    lines = report_markdown(two, "report.html", "docs").splitlines()
    assert "| second | b acc | 0.400 ± 0.030 | 0.500 | −0.100 | −0.170 to −0.030 | 0.080 | 0.250 |" in lines
    assert "| second | c\\|d em | 0.200 | – | – | – | – | – |" in lines
    assert "| macro bits per byte | 3.000 | 2.000 |" in lines
    assert "| components' mean gap to the parent | – | −0.200 |" in lines
    assert "## Reported by the record, at full scale: not to be compared" in lines
    assert "| second | MMLU (5-shot) | 65.3 % | the record's table |" in lines
    assert not any("v4-2048" in line for line in lines)
    rows = [line for line in lines if line.startswith("| second")]
    assert len({line.replace("\\|", "").count("|") for line in rows}) == 3, "three tables"
    assert "Measured" not in report_markdown(build_report(build_phase("bare")), "report.html", "docs")


def routing_with(loads: np.ndarray, first_layer: int = 1) -> RoutingReport:
    """Of three updates, of which the second and the last hold the load by layer; the second's is even."""
    plain = {"max_violation": 1.0, "dead_experts": 0.0, "router_entropy": 0.9}
    names = [f"expert_load/{first_layer + layer}/{expert}" for layer in range(loads.shape[0]) for expert in range(loads.shape[1])]
    last = dict(zip(names, (loads / loads.sum(axis=1, keepdims=True)).ravel().tolist(), strict=True))
    even = dict.fromkeys(names, 1 / loads.shape[1])
    rows: list[Row] = [{"step": 1, **plain}, {"step": 2, **plain, **even}, {"step": 3, **plain, **last}]
    found: Any = routing_of(rows, 2.1)
    return found


def test_the_last_load_counts_as_a_share_of_the_mean_and_values_that_are_no_numbers_are_left_out():
    loads = np.arange(24.0).reshape(2, 12)
    found = routing_with(loads, first_layer=9)
    assert (found.layers, found.loads_step, found.limit) == ((9, 10), 3, 2.1)
    np.testing.assert_allclose(found.loads, loads / loads.mean(axis=1, keepdims=True))
    assert found.max_violation == ((1, 1.0), (2, 1.0), (3, 1.0))
    assert sections.busiest_in_words(found) == "expert 11 of layer 9 has 2.00 times the mean; 1 of 24 experts have nothing"
    found: Any = routing_of([{"step": 1, "max_violation": None}, {"step": 2, "max_violation": 0.5, "router_entropy": None}], None)
    assert (found.max_violation, found.router_entropy, heat_map(found)) == (((2, 0.5),), (), None)
    assert routing_of([{"step": 1, "loss": 2.0}], None) is None


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(st.integers(1, 5), st.integers(2, 12), st.integers(0, 2**32 - 1))
def test_the_map_paints_every_expert_once_in_its_level(layers: int, experts: int, seed: int):
    rng = np.random.default_rng(seed)
    loads = rng.choice([0.0, 0.1, 0.3, 1.0, 1.0, 3.0, 9.0], (layers, experts)) + 1e-12 * (rng.random((layers, experts)) < 0.5)
    loads[:, 0] += 1.0
    routing = routing_with(loads)
    painted: dict[tuple[int, int], int] = {}
    for level, path in re.findall(r'class="level-(\d)" d="([^"]*)"', str(heat_map(routing))):
        for expert, layer, length in re.findall(r"M(\d+) (\d+)\.5h(\d+)", path):
            for place in range(int(expert), int(expert) + int(length)):
                assert (int(layer), place) not in painted, "painted twice"
                painted[int(layer), place] = int(level)
    for (layer, expert), level in painted.items():
        load = routing.loads[layer][expert]
        assert load == 0 if level == 0 else LEVELS[level - 1][0] <= load < LEVELS[level][0]
    assert len(painted) == layers * experts
