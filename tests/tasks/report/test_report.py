import math
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phasewise.tasks.report.contents import BenchmarkReport, Report, RollBackReport, VerdictReport
from phasewise.tasks.report.html import environment, render, write_report
from phasewise.tasks.report.pictures import LEVELS
from phasewise.tasks.report.sections import routing_of
from phasewise.validations.verdict import CheckCounts
from tests.tasks.report.conftest import changed, planned
from tests.validations.report.samples import HOSTILE as SCRIPT

VOID = {"meta", "br", "wbr", "use"}
HOSTILE = "<b>x</b>&\"'"
NAMES = ["passed_report", "stopped_report", "hostile_report", "sparse_report"]


class Page(HTMLParser):
    """Collects visible text, tags with their attributes, and what does not nest."""

    def __init__(self, report: Report):
        super().__init__()
        self.html, self.text = render(report), ""
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open, self.broken = list[str](), list[str]()
        self.feed(self.html)
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
    judged: dict[str, Any] = {"reasons": (HOSTILE,), "accepted": (HOSTILE,), "path": HOSTILE}
    failed, warned = CheckCounts(failed=1), CheckCounts(warned=1)
    phase = changed(
        passed_report.phases[1], name=HOSTILE, mixture=((660, {HOSTILE: 60.0, "<i>y": 39.0, "<i>z": 1.0}),), bits_per_byte={HOSTILE: 2.5},
        declares=(HOSTILE,), parent=HOSTILE, params_digest=HOSTILE,
        verdicts=(VerdictReport(name="data", counts=failed, **judged), VerdictReport(name="gate", counts=warned, **judged)),
        benchmarks=(BenchmarkReport(benchmark=HOSTILE, metric=HOSTILE, value=0.5, baseline=0.25, stderr=0.1),),
        roll_backs=(RollBackReport(steps=HOSTILE, sequences=4, why=HOSTILE, decided_by=HOSTILE),),
        routing=routing_of([{"step": 661, "max_violation": 1.0, "expert_load/0/0": 1.0, "expert_load/0/1": 0.0}], None),
    )  # fmt: skip
    texts = dict.fromkeys(("recipe", "scale", "created", "headline"), HOSTILE)
    others: dict[str, Any] = {"facts": {HOSTILE: HOSTILE}, "unused": (HOSTILE,), "baselines": {HOSTILE: 2.6}}
    return changed(passed_report, phases=(passed_report.phases[0], phase), **texts, **others)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_nests_and_needs_nothing_beside_it(name: str, request: pytest.FixtureRequest):
    page = Page(request.getfixturevalue(name))
    assert (page.broken, page.open) == ([], [])
    assert not re.search(r"https?:|@import|url\((?!#)", page.html)
    assert not {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe", "object", "image", "base", "i>y", "i>z"}
    references = [value for _, attributes in page.tags for key, value in attributes.items() if key in {"src", "href", "xlink:href"}]
    assert all(value and value.startswith("#") for value in references)
    identifiers = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))
    used = {value.removeprefix("#") for value in references if value} | set(re.findall(r"url\(#([^)]+)\)", page.html))
    assert used <= set(identifiers)
    if name == "hostile_report":
        assert page.text.count(HOSTILE) >= 15
        assert "<b>x</b>" not in page.html


@pytest.mark.parametrize("name", ["passed_report", "sparse_report"])
def test_every_colour_follows_the_page(name: str, request: pytest.FixtureRequest):
    html = render(request.getfixturevalue(name))
    svg = "".join(re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL))
    assert svg.count("<text") > 20
    assert set(re.findall(r"#[0-9a-f]{6}\b", svg)) == set()
    assert {"--first", "--second", "--ink", "--line"} <= set(re.findall(r"var\((--[\w-]+)", html)) <= set(re.findall(r"(--[\w-]+):", html))


def test_a_passed_page_tells_everything(passed_report: Report):
    page = Page(passed_report)
    headline = "Passed. All six phases trained and passed their gates."
    assert all(words in page.text for words in (headline, "6 of 6", "12 of 12 verdicts passed", "726 of 726 checks passed"))
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


def test_a_stopped_page_leads_with_the_reason(stopped_report: Report):
    page = Page(stopped_report)
    reasons = stopped_report.phases[1].verdicts[0].reasons
    assert "Stopped before Ocelot: a benchmark item is in the training data." in page.text
    assert "Stopped. Stopped" not in page.text
    assert page.text.index(reasons[0]) < page.text.index("Phases")
    assert all(reason in page.text[page.text.index("Verdicts") :] for reason in reasons)
    assert page.text.count("– not started") == 4
    assert "✗ data failed" in page.text
    assert page.html.index('<details class="card failure" open>') < page.html.index("badge passed", page.html.index('id="verdicts"'))
    assert page.html.count(" open>") == 1


def test_what_is_only_sometimes_there(passed_report: Report):
    plain = render(passed_report)
    assert "Data passed over" not in plain
    assert "Rows and documents" not in plain
    first, *others = passed_report.phases
    by = "approved by Ada on 2026-11-23: noise"
    roll_back = RollBackReport(steps="steps 21 to 22", sequences=1200, why="the loss is 10.71 at step 21", decided_by=by)
    told = changed(first, reads=("packing pad", "documents of web"), roll_backs=(roll_back,), name="$\\alpha$ 凤凰")
    page = Page(changed(passed_report, phases=(told, *others), status="unfinished", headline="4 of 5 phases are done; next is sft."))
    assert f"{told.name}: packing pad; documents of web" in page.text
    assert f"{told.name} steps 21 to 22 1,200 the loss is 10.71 at step 21 {by}" in page.text
    found = re.findall(r"<text[^>]*>\$\\alpha\$ 凤凰</text>", page.html)
    assert len(found) == 6, "three pictures, in both widths"
    assert "… Unfinished. 4 of 5 phases are done; next is sft." in page.text
    assert '<div class="status warned">' in page.html


def test_kept_checkpoints_have_curves_where_a_phase_measures_them(passed_report: Report):
    first, second, *others = passed_report.phases
    assert "<h2>Checkpoints</h2>" not in render(passed_report)
    middle = (first.start_step + first.stop_step) // 2
    macro, score = ((middle, 1.5), (first.stop_step, 1.25)), ((middle, math.nan), (first.stop_step, 0.5))
    curves: dict[str, Any] = {"macro bits per byte": macro, "quiz:0 acc": score}
    page = Page(changed(passed_report, phases=(changed(first, curves=curves), second, *others)))
    assert "macro bits per byte 1.25" in page.text
    assert "quiz:0 acc 0.50" in page.text
    svg = page.html[page.html.index("<h2>Checkpoints</h2>") :].partition("</svg>")[0]
    assert svg.count("<circle") == 3, "two of bits per byte, and one finite score"


def test_a_bare_plan_and_a_loss_that_is_not_finite_give_a_page(passed_report: Report):
    bare = changed(planned(1), learning_rate_turns=(), batch_sequences=(), tokens=0)
    text = Page(changed(passed_report, phases=(bare,), baselines={}, facts={})).text
    assert all(words in text for words in ("0 of 1", "not measured", "Nothing was judged."))
    for absent in ("Training Every logged loss", "Mixture", "By component", "Benchmarks", "Small print"):
        assert absent not in text
    first = passed_report.phases[0]
    points = (*first.loss[:300], *((step, math.nan) for step, _ in first.loss[300:]))
    fields = {"loss": points, "final_loss": math.nan, "macro_bits_per_byte": math.inf, "bits_per_byte": {"dclm_baseline": math.nan}}
    broken = changed(first, benchmarks=(BenchmarkReport(benchmark="b", metric="m", value=math.nan, baseline=0.0, stderr=None),), **fields)
    page = Page(changed(passed_report, phases=(broken, *passed_report.phases[1:])))
    assert page.text.count("not finite from step 300") == 2, "in both widths"
    assert page.broken == []
    only = Page(changed(passed_report, phases=(changed(broken, loss=((0, math.nan),)),)))
    assert "no loss recorded" not in only.text
    assert "not finite from step 0" in only.text


def test_a_report_is_written_at_once_or_not_at_all(tmp_path: Path, passed_report: Report, monkeypatch: pytest.MonkeyPatch):
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


def test_the_page_of_a_long_run_of_a_large_sparse_model_stays_small(passed_report: Report):
    first, *others = passed_report.phases
    loads = np.random.default_rng(0).lognormal(0, 0.5, (54, 256))
    loads /= loads.sum(axis=1, keepdims=True)
    plain = {"dead_experts": 1.0, "router_entropy": 0.9}
    rows: list[dict[str, Any]] = [{"step": step, "max_violation": 1 + math.sin(step), **plain} for step in range(100_000)]
    rows[-1] |= {f"expert_load/{layer}/{expert}": load for layer, row in enumerate(loads.tolist()) for expert, load in enumerate(row)}
    curves = {"loss": tuple((step, 3 + math.sin(step) / 10) for step in range(100_000))}
    curves["learning_rate"] = tuple((step, 1e-3 + 1e-4 * math.cos(step / 50)) for step in range(100_000))
    long = changed(first, stop_step=100_000, routing=routing_of(rows, 5.0), **curves)
    report = changed(passed_report, phases=(long, *(changed(phase, start_step=100_000, stop_step=100_001) for phase in others)))
    assert len(render(report).encode()) < 1_500_000


def test_the_page_shows_the_limit_the_busiest_expert_and_what_was_not_recorded(sparse_report: Report):
    page = render(sparse_report)
    assert page.count("Load on the experts") == 1
    assert "expert 0 of layer 1 has 2.00 times the mean; 1 of 8 experts have nothing" in page
    assert page.count("The load by layer was not recorded.") == 1
    assert page.count('class="loads"') == 2
    style = page[: page.index("</style>")]
    assert all(words in page and f".level-{level} {{" in style for level, (_, words) in enumerate(LEVELS))


def text(template: str, **params: Any) -> dict[str, Any]:
    return {"content_block_type": "string_template", "string_template": {"template": template, "params": params}}


@pytest.mark.parametrize(("block", "html"), [
    (None, "–"), (3, "3"), (["a", 1], "a 1"), (text("<br><br>$count of $all rows.", count=1, all=None), "1 of – rows."),
    (text("one<br>two"), "one<br>two"), (text("$5 and $unknown"), "$5 and $unknown"),
    (text("$icon", icon='<i class="fas fa-times text-danger"></i>'), '<span class="word failed">✗ fails</span>'),
    (text("$icon", icon='<i class="fas fa-check-circle text-success"></i>'), '<span class="word passed">✓ passes</span>'),
    ({"content_block_type": "collapse", "collapse_toggle_link": "More", "collapse": ["inside"]},
        "<details><summary>More</summary><div>inside</div></details>"),
    ({"content_block_type": "table", "header_row": ["A"], "table": [[1], ["b"]]},
        '<table class=""><thead><tr><th scope="col">A</th></tr></thead><tbody><tr><td>1</td></tr><tr><td>b</td></tr></tbody></table>'),
    ({"content_block_type": "bullet_list", "bullet_list": ["a", "b"]}, "<ul><li>a</li><li>b</li></ul>"),
    ({"content_block_type": "text", "header": "Why", "text": ["a"]}, "<p><strong>Why</strong></p><p>a</p>"),
    ({"content_block_type": "content_block_container", "content_blocks": ["a", "b"]}, "ab"),
    ({"content_block_type": 7}, "<pre>{&#39;content_block_type&#39;: 7}</pre>"),
    (SCRIPT, None), (text(SCRIPT), None), (text("$value", value=SCRIPT), None),
    ({"content_block_type": "table", "table": [[SCRIPT]]}, None), ({"content_block_type": "unheard of", "value": SCRIPT}, None),
    ({"content_block_type": "collapse", "collapse_toggle_link": SCRIPT, "collapse": [SCRIPT]}, None),
])  # fmt: skip
def test_each_block_of_great_expectations_has_its_html_and_none_lets_markup_through(block: Any, html: str | None):
    template = environment().from_string('{% from "blocks.html" import block_html %}{{ block_html(block) }}')
    shown = template.render(block=block).strip()
    if html is None:
        assert "alert(1)" in shown
        assert "<script" not in shown
        assert "<img" not in shown
    else:
        assert shown == html
