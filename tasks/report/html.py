"""HTML templates and style sheet of the run's report, the page of `phasewise up` and the Data Docs."""

import re
from collections.abc import Callable, Mapping
from functools import cache
from itertools import groupby
from pathlib import Path
from string import Template
from typing import Any

import jinja2
from markupsafe import Markup, escape

from phasewise.tasks.report import pictures, sections
from phasewise.tasks.report.charts import cut
from phasewise.tasks.report.contents import Report
from phasewise.trainer.base import wording
from phasewise.trainer.base.storage import write_atomically
from phasewise.validations.failures import SHOWN_CASES
from phasewise.validations.outcomes import KIND_WORDS, MARKS, sum_counts

HERE = Path(__file__).parent
STYLE_SHEET = "style.css"
OPEN_FAILURES = 3  # unfolded failures of a verdict
CLIPPED_CHARACTERS = 600
CHECKING = "States come from files. A check for outdated results is running and takes a few seconds."
"""A page with this note loads itself again."""
GATE_WORDS = {"data": "data", "health": "training", "model": "model"}  # gate → subject
SIGNS = {"text-success": ("passed", "✓ passes"), "text-warning": ("warned", "! not checked"), "text-danger": ("failed", "✗ fails")}
LINE_BREAK = re.compile(r"\s*<br\s*/?>\s*")
TAG = re.compile(r"</?[a-zA-Z][^>]*>")


@cache
def environment() -> jinja2.Environment:
    """Open the templates. Values are escaped, and an undefined name is an error."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader([HERE / "templates", HERE / "static"]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    constants: dict[str, Any] = {
        "marks": {**MARKS, "waiting": wording.MISSING},
        "kinds": KIND_WORDS,
        "gate_words": GATE_WORDS,
        "open_failures": OPEN_FAILURES,
        "shown_cases": SHOWN_CASES,
        "checking": CHECKING,
    }
    made.globals.update(constants)  # imported macros see only globals
    formats = ("count", "decimal", "moment", "percent", "rate", "signed", "tokens")
    made.filters.update({name: getattr(wording, name) for name in formats})
    filters: dict[str, Callable[..., Any]] = {
        "thousands": "{:,}".format,
        "with_code": lambda text: Markup("").join(
            Markup("<code>{}</code>").format(piece) if place % 2 else escape(piece) for place, piece in enumerate(text.split("`"))
        ),
        "clipped": lambda text, most=CLIPPED_CHARACTERS: cut(str(text), most),
        "breakable": lambda name: escape(name).replace("_", Markup("_<wbr>")),
        "block_text": _block_text,
        "id": id,
        "without_tags": lambda block: TAG.sub("", str(block)),
    }
    made.filters.update(filters)
    return made


def static_files() -> dict[str, bytes]:
    """Read name → style sheet or script."""
    return {path.name: path.read_bytes() for path in sorted((HERE / "static").iterdir()) if path.suffix in (".css", ".js")}


def _block_text(block: Mapping[str, Any]) -> Markup:
    """Fill a string template of Great Expectations. An icon becomes a word."""
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
    """Write the report atomically."""
    write_atomically(path, render(report).encode())
    return path


def render(report: Report) -> str:
    """Render the report as one self-contained page."""
    verdicts = [(phase, verdict) for phase in report.phases for verdict in phase.verdicts]
    passes = [(phase, verdict) for phase, verdict in verdicts if verdict.passes]
    columns = tuple(phase for phase in report.phases if phase.bits_per_byte)
    first, _, rest = report.headline.partition(" ")
    says_status = first.strip(".,:").lower() == report.status
    batches = {phase.name: [str(size) for size, _ in groupby(size for _, size in phase.batch_sequences)] for phase in report.phases}
    spans = sections.spans_of(report)
    blocks = {block.name: block.segments[0].colour for span in spans for block in span.blocks}
    legend = {name: colour for name, colour in blocks.items() if not name.startswith("other (")}
    sparse = [(phase, phase.routing) for phase in report.phases if phase.routing]
    tops = [value for _, routing in sparse for value in (routing.limit or 0.0, *(value for _, value in routing.max_violation))]
    cards = [
        {
            "phase": phase,
            "routing": routing,
            "picture": pictures.balance_picture(phase, routing, top=max(tops, default=0.0)),
            "heat_map": pictures.heat_map(routing),
            "heat_pixels": max(120, 4 * len(routing.loads)),
            "busiest": sections.busiest_in_words(routing) if routing.loads else "",
        }
        for phase, routing in sparse
    ]
    return (
        environment()
        .get_template("report.html")
        .render(
            report=report,
            times={phase.name: sections.time_use(phase.name, phase.time) for phase in report.phases},
            headline=(first, rest) if says_status else (f"{report.status.capitalize()}.", report.headline),
            tiles=sections.tiles_of(report),
            standings={phase.name: sections.standing_of(phase) for phase in report.phases},
            batches={name: " → ".join(sizes) or wording.MISSING for name, sizes in batches.items()},
            training=pictures.in_both_widths(pictures.training_picture, report),
            routing=cards,
            levels=[words for _, words in pictures.LEVELS],
            spans=spans,
            components=sorted({name for span in spans for name in span.shares}),
            legend=legend | ({"other": sections.NEUTRAL} if len(legend) < len(blocks) else {}),
            has_average=any(phase.ema_macro_bits_per_byte is not None for phase in report.phases),
            macro=pictures.in_both_widths(pictures.macro_picture, report),
            checkpoints=pictures.in_both_widths(pictures.checkpoints_picture, report),
            columns=columns,
            rows=[sections.macro_row(columns, report.macro_over), *sections.component_rows(columns)] if columns else [],
            gauges=sections.gauges_of(report),
            across=pictures.in_both_widths(pictures.across_picture, report),
            measured=sections.measured_phases(report),
            failures=[(phase, verdict) for phase, verdict in verdicts if not verdict.passes],
            passes=passes,
            all_passed=sum_counts(verdict.counts for _, verdict in passes),
        )
    )
