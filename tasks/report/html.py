"""HTML from one set of templates and one style sheet: the run's report, the page of `phasewise up`, the Data Docs."""

import re
from collections.abc import Mapping
from functools import cache
from itertools import groupby
from pathlib import Path
from string import Template
from typing import Any

import jinja2
from markupsafe import Markup, escape

from phasewise.tasks.report.charts import cut
from phasewise.tasks.report.contents import Report
from phasewise.tasks.report.pictures import (
    LEVELS,
    across_picture,
    balance_picture,
    heat_map,
    in_both_widths,
    macro_picture,
    training_picture,
)
from phasewise.tasks.report.sections import (
    NEUTRAL,
    busiest_in_words,
    component_rows,
    gauges_of,
    macro_row,
    measured_phases,
    spans_of,
    standing_of,
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
"""Gate → the judged thing."""
SIGNS = {"text-success": ("passed", "✓ passes"), "text-warning": ("warned", "! not checked"), "text-danger": ("failed", "✗ fails")}
LINE_BREAK = re.compile(r"\s*<br\s*/?>\s*")
TAG = re.compile(r"</?[a-zA-Z][^>]*>")


@cache
def environment() -> jinja2.Environment:
    """Open the templates. Everything that comes from a run is escaped. A name that is missing is an error."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader([HERE / "templates", HERE / "static"]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    words: dict[str, Any] = {"marks": {**MARKS, "waiting": wording.MISSING}, "kinds": KIND_WORDS, "gate_words": GATE_WORDS}
    limits: dict[str, Any] = {"open_failures": OPEN_FAILURES, "shown_cases": SHOWN_CASES}
    made.globals.update(**words, **limits)  # imported macros see these, too
    formats = ("count", "decimal", "moment", "percent", "rate", "signed", "tokens")
    made.filters.update({name: getattr(wording, name) for name in formats})
    made.filters.update(
        thousands="{:,}".format,
        with_code=_with_code,
        clipped=clipped,
        breakable=lambda name: escape(name).replace("_", Markup("_<wbr>")),
        block_text=_block_text,
        without_tags=lambda block: TAG.sub("", str(block)),
    )
    return made


def static_files() -> dict[str, bytes]:
    """Name → the style sheet and the script of every page."""
    return {path.name: path.read_bytes() for path in sorted((HERE / "static").iterdir()) if path.suffix in (".css", ".js")}


def clipped(text: object, most: int = CLIPPED_CHARACTERS) -> str:
    """Cut the text at a length beyond which nobody reads on."""
    return cut(str(text), most)


def _with_code(text: str) -> Markup:
    pieces = (escape(piece) for piece in text.split("`"))
    return Markup("").join(Markup("<code>{}</code>").format(piece) if place % 2 else piece for place, piece in enumerate(pieces))


def _block_text(block: Mapping[str, Any]) -> Markup:
    """Fill a template of Great Expectations' with its values. An icon becomes a word with its sign."""
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


def write_report(path: Path, report: Report) -> Path:
    """Write the report of a run at `path`, atomically."""
    write_atomically(path, render(report).encode())
    return path


def render(report: Report) -> str:
    """Render the report of a run: one page that needs neither a network nor another file."""
    verdicts = [(phase, verdict) for phase in report.phases for verdict in phase.verdicts]
    passes = [(phase, verdict) for phase, verdict in verdicts if verdict.passes]
    columns = tuple(phase for phase in report.phases if phase.bits_per_byte)
    first, _, rest = report.headline.partition(" ")
    says_status = first.strip(".,:").lower() == report.status
    batches = {phase.name: [str(size) for size, _ in groupby(size for _, size in phase.batch_sequences)] for phase in report.phases}
    spans = spans_of(report)
    blocks = {block.name: block.segments[0].colour for span in spans for block in span.blocks}
    legend = {name: colour for name, colour in blocks.items() if not name.startswith("other (")}
    sparse = [(phase, phase.routing) for phase in report.phases if phase.routing]
    tops = [value for _, routing in sparse for value in (routing.limit or 0.0, *(value for _, value in routing.max_violation))]
    cards = [
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
    page = environment().get_template("report.html")
    return page.render(
        report=report,
        headline=(first, rest) if says_status else (f"{report.status.capitalize()}.", report.headline),
        tiles=tiles_of(report),
        standings={phase.name: standing_of(phase) for phase in report.phases},
        batches={name: " → ".join(sizes) or wording.MISSING for name, sizes in batches.items()},
        training=in_both_widths(training_picture, report),
        routing=cards,
        levels=[words for _, words in LEVELS],
        spans=spans,
        components=sorted({name for span in spans for name in span.shares}),
        legend=legend | ({"other": NEUTRAL} if len(legend) < len(blocks) else {}),
        has_average=any(phase.ema_macro_bits_per_byte is not None for phase in report.phases),
        macro=in_both_widths(macro_picture, report),
        columns=columns,
        rows=[macro_row(columns, report.macro_over), *component_rows(columns)] if columns else [],
        gauges=gauges_of(report),
        across=in_both_widths(across_picture, report),
        measured=measured_phases(report),
        failures=[(phase, verdict) for phase, verdict in verdicts if not verdict.passes],
        passes=passes,
        all_passed=sum_counts(verdict.counts for _, verdict in passes),
    )
