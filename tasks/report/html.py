"""HTML from one set of templates and one style sheet: the run's report, the page of `phasewise up`, the Data Docs."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

import jinja2
from markupsafe import Markup, escape

from phasewise.tasks.report.contents import PhaseReport, Report
from phasewise.tasks.report.pictures import LEVELS, across_picture, balance_picture, heat_map, macro_picture, training_picture
from phasewise.tasks.report.sections import (
    batch_of,
    busiest_in_words,
    component_rows,
    gauges_of,
    headline_of,
    legend_of,
    macro_row,
    measured_phases,
    spans_of,
    standing_of,
    standing_of_counts,
    tiles_of,
)
from phasewise.trainer.base import wording
from phasewise.trainer.base.storage import write_atomically
from phasewise.validations.outcomes import KIND_WORDS, MARKS, sum_counts
from phasewise.validations.report.failures import SHOWN_CASES

HERE = Path(__file__).parent
STYLE_SHEET = "style.css"
OPEN_FAILURES = 3
"""Failures of a verdict that are shown before the others are folded away."""
CLIPPED_CHARACTERS = 600
GATE_WORDS = {"data": "data", "health": "training", "model": "model"}
"""What each gate judges, in words."""


SIGNS = {"text-success": ("passed", "✓ passes"), "text-warning": ("warned", "! not checked"), "text-danger": ("failed", "✗ fails")}
LINE_BREAK = re.compile(r"\s*<br\s*/?>\s*")
TAG = re.compile(r"</?[a-zA-Z][^>]*>")


@cache
def environment() -> jinja2.Environment:
    """The templates. Everything that comes from a run is escaped; a name that is missing is an error."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader([HERE / "templates", HERE / "static"]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    words: dict[str, Any] = {"marks": MARKS, "kinds": KIND_WORDS, "gate_words": GATE_WORDS}
    limits: dict[str, Any] = {"open_failures": OPEN_FAILURES, "shown_cases": SHOWN_CASES}
    made.globals.update(**words, **limits)  # imported macros see these, too, and nothing that a page is rendered with
    formats = ("count", "decimal", "moment", "percent", "rate", "signed", "tokens")
    made.filters.update({name: getattr(wording, name) for name in formats})
    made.filters.update(thousands="{:,}".format, with_code=with_code, clipped=clipped, breakable=_breakable)
    made.filters.update(block_text=_block_text, without_tags=_without_tags)
    return made


def static_files() -> dict[str, bytes]:
    """Name → the style sheet and the script of every page."""
    return {path.name: path.read_bytes() for path in sorted((HERE / "static").iterdir()) if path.suffix in (".css", ".js")}


def clipped(text: object, most: int = CLIPPED_CHARACTERS) -> str:
    """The text, cut at a length beyond which nobody reads on."""
    said = str(text)
    return said if len(said) <= most else f"{said[: most - 1]}…"


def with_code(text: str) -> Markup:
    """The text, with the parts between backticks as code."""
    pieces = (escape(piece) for piece in text.split("`"))
    return Markup("").join(Markup("<code>{}</code>").format(piece) if place % 2 else piece for place, piece in enumerate(pieces))


def _breakable(name: str) -> Markup:
    """The name, which may break over two lines after an underscore."""
    return escape(name).replace("_", Markup("_<wbr>"))


def _block_text(block: Mapping[str, Any]) -> Markup:
    """A template of Great Expectations' with its values. An icon becomes a word with its sign."""
    template: Mapping[str, Any] = block["string_template"]
    params: Mapping[str, Any] = template.get("params") or {}
    if "icon" in params or "html_success_icon" in params:
        look = str(template.get("styling")) + str(params.get("icon")) + str(params.get("html_success_icon"))
        name, word = next((sign for mark, sign in SIGNS.items() if mark in look), ("", "–"))
        return Markup('<span class="word {}">{}</span>').format(name, word)
    values = {name: "–" if value is None else str(value) for name, value in params.items()}
    lines = [Template(line).safe_substitute(values) for line in LINE_BREAK.split(str(template["template"])) if line.strip()]
    html, tag = Markup("<br>").join(lines), str(template.get("tag") or "")
    return Markup(f"<{tag}>{html}</{tag}>") if tag in ("code", "strong", "em", "pre") else html


def _without_tags(block: Mapping[str, Any]) -> str:
    return TAG.sub("", str(dict(block)))


def write_report(path: Path, report: Report) -> Path:
    """Write the report of a run at `path`, atomically."""
    write_atomically(path, render(report).encode())
    return path


def render(report: Report) -> str:
    """Render the report of a run: one page that needs neither a network nor another file."""
    verdicts = [(phase, verdict) for phase in report.phases for verdict in phase.verdicts]
    passes = [(phase, verdict) for phase, verdict in verdicts if verdict.passes]
    columns = tuple(phase for phase in report.phases if phase.bits_per_byte)
    spans = spans_of(report)
    return (
        environment()
        .get_template("report.html")
        .render(
            report=report,
            headline=headline_of(report),
            tiles=tiles_of(report),
            standings={phase.name: standing_of(phase) for phase in report.phases},
            batches={phase.name: batch_of(phase) for phase in report.phases},
            training=training_picture(report),
            routing=_routing(report),
            levels=[words for _, words in LEVELS],
            spans=spans,
            components=sorted({name for span in spans for name in span.shares}),
            legend=legend_of(spans),
            has_average=any(phase.ema_macro_bits_per_byte is not None for phase in report.phases),
            macro=macro_picture(report),
            columns=columns,
            rows=[macro_row(columns, report.macro_over), *component_rows(columns)] if columns else [],
            gauges=gauges_of(report),
            across=across_picture(report),
            measured=measured_phases(report),
            failures=[(phase, verdict) for phase, verdict in verdicts if not verdict.passes],
            passes=passes,
            standing_of_counts=standing_of_counts,
            all_passed=sum_counts(verdict.counts for _, verdict in passes),
        )
    )


def _routing(report: Report) -> list[dict[str, Any]]:
    """A card for each phase of a sparse model: the course of the balance, and a map of the load at its end."""
    sparse: list[tuple[PhaseReport, Any]] = [(phase, phase.routing) for phase in report.phases if phase.routing]
    tops = [value for _, routing in sparse for value in (routing.limit or 0.0, *(value for _, value in routing.max_violation))]
    return [
        {
            "phase": phase,
            "routing": routing,
            "picture": balance_picture(phase, routing, top=max(tops, default=0.0)),
            "heat_map": heat_map(routing),
            "heat_pixels": max(120, 4 * len(routing.loads)),
            "busiest": busiest_in_words(routing) if routing.loads else "",
        }
        for phase, routing in sparse
    ]
