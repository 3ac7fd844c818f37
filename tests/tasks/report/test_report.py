"""The page as a reader, a browser and a hostile name meet it."""

import math
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import TypeVar

import pytest

from phasewise.tasks.report.contents import BenchmarkReport, PhaseReport, Report, RollBackReport, VerdictReport
from phasewise.tasks.report.html import render, write_report
from phasewise.tasks.report.sections import routing_of
from phasewise.validations.outcomes import CheckCounts

VOID = {"meta", "br", "wbr", "use"}
HOSTILE = "<b>x</b>&\"'"
Model = TypeVar("Model", Report, PhaseReport)


def changed(model: Model, **fields: object) -> Model:
    """The model with other fields, validated again."""
    return type(model).model_validate(dict(model) | fields)


class Page(HTMLParser):
    """Collects visible text, tags with their attributes, and what does not nest."""

    def __init__(self, html: str):
        super().__init__()
        self.text = ""
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.broken: list[str] = []
        self.feed(html)
        self.close()
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str):
        if tag not in VOID and (not self.open or self.open.pop() != tag):
            self.broken.append(tag)

    def handle_data(self, data: str):
        if not self.open or self.open[-1] != "style":
            self.text += data


@pytest.fixture
def hostile_report(passed_report: Report) -> Report:
    """Every text of the run wants to be markup."""
    phase = changed(
        passed_report.phases[1],
        name=HOSTILE,
        mixture=((660, {HOSTILE: 60.0, "<i>y": 39.0, "<i>z": 1.0}),),
        bits_per_byte={HOSTILE: 2.5},
        declares=(HOSTILE,),
        parent=HOSTILE,
        params_digest=HOSTILE,
        verdicts=(
            VerdictReport(name="data", counts=CheckCounts(failed=1), reasons=(HOSTILE,), accepted=(HOSTILE,), path=HOSTILE),
            VerdictReport(name="gate", counts=CheckCounts(warned=1), reasons=(HOSTILE,), accepted=(HOSTILE,), path=HOSTILE),
        ),
        benchmarks=(BenchmarkReport(benchmark=HOSTILE, metric=HOSTILE, value=0.5, baseline=0.25, stderr=0.1),),
        roll_backs=(RollBackReport(steps=HOSTILE, sequences=4, why=HOSTILE, decided_by=HOSTILE),),
        routing=routing_of([{"step": 661, "max_violation": 1.0, "expert_load/0/0": 1.0, "expert_load/0/1": 0.0}], None),
    )
    texts = {
        "recipe": HOSTILE,
        "scale": HOSTILE,
        "created": HOSTILE,
        "headline": HOSTILE,
        "facts": {HOSTILE: HOSTILE},
        "unused": (HOSTILE,),
    }
    return changed(passed_report, phases=(passed_report.phases[0], phase), baselines={HOSTILE: 2.6}, **texts)


@pytest.mark.parametrize("name", ["passed_report", "stopped_report", "hostile_report", "sparse_report"])
def test_page_needs_nothing_beside_it(name: str, request: pytest.FixtureRequest):
    html = render(request.getfixturevalue(name))
    page = Page(html)
    assert not re.search(r"https?:|@import|url\((?!#)", html)
    assert not {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe", "object", "image", "base"}
    references = [value for _, attributes in page.tags for key, value in attributes.items() if key in {"src", "href", "xlink:href"}]
    assert all(value and value.startswith("#") for value in references)
    identifiers = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))
    used = {value.removeprefix("#") for value in references if value} | set(re.findall(r"url\(#([^)]+)\)", html))
    assert used <= set(identifiers)


@pytest.mark.parametrize("name", ["passed_report", "stopped_report", "hostile_report", "sparse_report"])
def test_tags_nest(name: str, request: pytest.FixtureRequest):
    page = Page(render(request.getfixturevalue(name)))
    assert page.broken == []
    assert page.open == []


@pytest.mark.parametrize("name", ["passed_report", "sparse_report"])
def test_every_colour_follows_the_page(name: str, request: pytest.FixtureRequest):
    html = render(request.getfixturevalue(name))
    svg = "".join(re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL))
    assert svg.count("<text") > 20
    assert set(re.findall(r"#[0-9a-f]{6}\b", svg)) == set()
    used = set(re.findall(r"var\((--[\w-]+)", html))
    defined = set(re.findall(r"(--[\w-]+):", html))
    assert {"--first", "--second", "--ink", "--line"} <= used <= defined


def test_passed_page_tells_everything(passed_report: Report):
    page = Page(render(passed_report))
    assert "Passed. All six phases trained and passed their gates." in page.text
    assert "6 of 6" in page.text
    assert "12 of 12 verdicts passed" in page.text
    assert "726 of 726 checks passed" in page.text
    for phase in passed_report.phases:
        assert f"{phase.start_step:,} → {phase.stop_step:,}" in page.text
        assert f"{phase.macro_bits_per_byte:.3f}" in page.text
        assert all(change in page.text for change in phase.declares)
        assert all(name in page.text for _, shares in phase.mixture for name in shares)
        assert all(verdict.path in page.text for verdict in phase.verdicts)
    assert page.text.count("✓ passed") == 6 + 1 + 12  # phases, all verdicts that passed, each of them
    assert "✗" not in page.text
    assert all(name in page.text and f"{value:.2f}" in page.text for name, value in passed_report.baselines.items())
    assert all(name in page.text and fact in page.text for name, fact in passed_report.facts.items())


def test_data_that_was_passed_over_is_in_a_table_with_who_decided(passed_report: Report):
    assert "Data passed over" not in render(passed_report)
    by = "approved by Ada on 2026-11-23: noise"
    roll_back = RollBackReport(steps="steps 21 to 22", sequences=1200, why="the loss is 10.71 at step 21", decided_by=by)
    rolled_back = changed(passed_report.phases[1], roll_backs=(roll_back,))
    text = Page(render(changed(passed_report, phases=(passed_report.phases[0], rolled_back)))).text
    assert f"{rolled_back.name} steps 21 to 22 1,200 the loss is 10.71 at step 21 {by}" in text


def test_stopped_page_leads_with_the_reason(stopped_report: Report):
    html = render(stopped_report)
    page = Page(html)
    reasons = stopped_report.phases[1].verdicts[0].reasons
    assert "Stopped before Ocelot: a benchmark item is in the training data." in page.text
    assert "Stopped. Stopped" not in page.text
    assert page.text.index(reasons[0]) < page.text.index("Phases")
    assert all(reason in page.text[page.text.index("Verdicts") :] for reason in reasons)
    assert page.text.count("– not reached") == 4
    assert "✗ data failed" in page.text
    assert html.index('<details class="card failure" open>') < html.index("badge passed", html.index('id="verdicts"'))
    assert html.count(" open>") == 1


def test_a_run_that_goes_on_is_not_called_stopped(passed_report: Report):
    html = render(changed(passed_report, status="unfinished", headline="4 of 5 phases are done; next is sft."))
    assert "… Unfinished. 4 of 5 phases are done; next is sft." in Page(html).text
    assert '<div class="status warned">' in html


def test_names_are_never_markup(hostile_report: Report):
    page = Page(render(hostile_report))
    assert not {tag for tag, _ in page.tags} & {"i>y", "i>z"}
    assert page.text.count(HOSTILE) >= 15
    assert "<b>x</b>" not in render(hostile_report)
    assert "<i>y" not in render(hostile_report)


def test_dollars_and_foreign_letters_in_a_phase_name_are_plain_text(passed_report: Report):
    phase = changed(passed_report.phases[0], name="$\\alpha$ 凤凰")
    html = render(changed(passed_report, phases=(phase,)))
    assert len(re.findall(r"<text[^>]*>\$\\alpha\$ 凤凰</text>", html)) == 4  # both pictures, in both widths


def test_nothing_but_a_plan_still_gives_a_page(passed_report: Report, planned_phase: PhaseReport):
    bare = changed(planned_phase, learning_rate_turns=(), batch_sequences=(), tokens=0)
    text = Page(render(changed(passed_report, phases=(bare,), baselines={}, facts={}))).text
    assert "0 of 1" in text
    assert "not measured" in text
    assert "Nothing was judged." in text
    for absent in ("Training Every logged loss", "Mixture", "By component", "Benchmarks", "Small print"):
        assert absent not in text


def test_a_loss_that_is_not_finite_is_named(passed_report: Report):
    first = passed_report.phases[0]
    points = (*first.loss[:300], *((step, math.nan) for step, _ in first.loss[300:]))
    fields = {"loss": points, "final_loss": math.nan, "macro_bits_per_byte": math.inf, "bits_per_byte": {"dclm_baseline": math.nan}}
    broken = changed(first, benchmarks=(BenchmarkReport(benchmark="b", metric="m", value=math.nan, baseline=0.0, stderr=None),), **fields)
    page = Page(render(changed(passed_report, phases=(broken, *passed_report.phases[1:]))))
    assert page.text.count("not finite from step 300") == 2  # in both widths
    assert page.broken == []
    only = Page(render(changed(passed_report, phases=(changed(broken, loss=((0, math.nan),)),))))
    assert "no loss recorded" not in only.text
    assert "not finite from step 0" in only.text


def test_report_is_written_at_once_or_not_at_all(tmp_path: Path, passed_report: Report, monkeypatch: pytest.MonkeyPatch):
    target = tmp_path / "reports" / "marin-8b.html"
    assert write_report(target, passed_report) == target
    before = target.read_bytes()

    def fail(*_: object) -> None:
        raise OSError("killed")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="killed"):
        write_report(target, changed(passed_report, headline="Another run."))
    assert target.read_bytes() == before
    assert [path.name for path in target.parent.iterdir()] == ["marin-8b.html"]


def test_the_page_of_a_long_run_stays_small(tmp_path: Path, passed_report: Report):
    first = passed_report.phases[0]
    loss = tuple((step, 3 + math.sin(step) / 10) for step in range(100_000))
    rates = tuple((step, 1e-3 + 1e-4 * math.cos(step / 50)) for step in range(100_000))
    long = changed(first, stop_step=100_000, loss=loss, learning_rate=rates)
    report = changed(passed_report, phases=(long, *(changed(p, start_step=100_000, stop_step=100_001) for p in passed_report.phases[1:])))
    size = write_report(tmp_path / "report.html", report).stat().st_size
    assert size < 1_500_000


def test_rows_and_documents_are_told_where_they_are_not_those_of_most(passed_report: Report):
    assert "Rows and documents" not in render(passed_report)
    first, *others = passed_report.phases
    told = changed(passed_report, phases=(changed(first, reads=("packing pad", "documents of web")), *others))
    assert f"{first.name}: packing pad; documents of web" in Page(render(told)).text
