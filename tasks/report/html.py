"""HTML templates and style sheet of the run's report, the page of `phasewise up` and the Data Docs.

The pages of Great Expectations load styles and scripts from the network, and don't escape data. Phasewise renders only their blocks, by
its own templates.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import cache
from itertools import groupby, takewhile
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import jinja2
import pandas as pd
from markupsafe import Markup, escape

from phasewise.tasks.report import pictures, sections
from phasewise.tasks.report.charts import cut
from phasewise.tasks.report.contents import Report
from phasewise.trainer.base import wording
from phasewise.trainer.base.identity import digest_of_bytes
from phasewise.trainer.base.storage import as_path, file_system_of, locked, write_atomically
from phasewise.validations.expectations.suites import SUITES
from phasewise.validations.failures import SHOWN_CASES, failures_of
from phasewise.validations.reevaluate import ShownTable, judge_again, show_table
from phasewise.validations.verdict import KIND_WORDS, MARKS, STANDINGS, Verdict, read_tables, sum_counts, unused_of, verdicts_in_words

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


INDEX, LOCK = "index.html", ".lock"


class TableLinks(NamedTuple):
    """An evidence table and its pages relative to the index. `evidence` is empty for a lost table, `judged` without a check."""

    table: str
    rows: int
    failing: int
    accepted: int
    evidence: str
    judged: str


class Card:
    """A verdict on the index. `particulars` maps (table, expectation) to the first rows of a failure."""

    def __init__(
        self, anchor: str, verdict: Verdict, tables: Sequence[TableLinks] = (),
        particulars: Mapping[tuple[str, str], ShownTable] | None = None, note: str = "",
    ) -> None:  # fmt: skip
        self.anchor, self.verdict, self.tables, self.note = anchor, verdict, tables, note
        self.particulars = particulars or {}
        self.counts, self.failures = verdict.counts, failures_of(verdict)
        self.accepted = [finding for check in verdict.checks for finding in check.accepted]
        self.links = {links.table: links for links in tables}


def build_data_docs(folder: str | Path, verdicts: Sequence[Verdict]) -> Path:
    """Replace the Data Docs in the folder, and return the index page. The last verdict on a subject by a suite counts."""
    folder = as_path(folder)
    latest = {f"{verdict.subject} {verdict.suite}": verdict for verdict in verdicts}
    with locked(folder / LOCK, wait=True) if file_system_of(folder) is None else nullcontext():
        pages = {STYLE_SHEET: static_files()[STYLE_SHEET].decode()}
        pages[INDEX] = index_page([_add_pages(pages, name, verdict) for name, verdict in latest.items()])
        for path, content in pages.items():
            write_atomically(folder / path, content.encode())
        kept = {folder / path for path in (*pages, LOCK)}
        kept |= {parent for path in kept for parent in path.parents}
        for path in sorted(folder.rglob("*"), key=str, reverse=True):  # pages of an earlier build
            if path not in kept:
                path.rmdir() if path.is_dir() else path.unlink()
    return folder / INDEX


def index_page(cards: Sequence[Card]) -> str:
    """Render the index: failures, warnings, then passing verdicts."""
    counts = [card.counts for card in cards]
    in_order = sorted(cards, key=lambda card: STANDINGS.index(card.counts.standing))
    folders = zip(*(card.verdict.subject.split("/")[:-1] for card in cards), strict=False)
    page = environment().get_template("docs_index.html")
    return page.render(
        depth="", cards=in_order, passing=[card for card in in_order if card.counts.standing == "passed"],
        worst=in_order[0].counts.standing if in_order else None, words=verdicts_in_words(counts), shares=sum_counts(counts).shares,
        run="/".join(names[0] for names in takewhile(lambda names: len(set(names)) == 1, folders)),
        unused=unused_of([card.verdict for card in cards]),
    )  # fmt: skip


def _add_pages(pages: dict[str, str], name: str, verdict: Verdict) -> Card:
    """Add the pages of a verdict's tables, and return its card on the index."""
    anchor = f"{re.sub(r'[^a-zA-Z0-9]+', '-', name)[:60].strip('-')}-{digest_of_bytes(name.encode())[:8]}"
    suite = SUITES.get(verdict.suite)
    tables: dict[str, pd.DataFrame] = {}
    names = list(dict.fromkeys([*(suite.tables if suite else ()), *(check.table for check in verdict.checks)]))
    for table in names:
        with suppress(OSError, ValueError, KeyError):  # the index names a lost or changed table
            tables |= read_tables(verdict.evidence, {table: verdict.tables[table]})
    judged = judge_again(verdict, tables)
    links: list[TableLinks] = []
    for table in names:
        file = f"{anchor}/" + re.sub(r"[^\w-]+", "-", table)
        counts = len(tables.get(table, ())), len(judged.failing_rows(table)), len(judged.accepted_rows(table))
        links.append(TableLinks(table, *counts, f"{file}.html" * (table in tables), f"{file}-expectations.html" * (table in judged.tables)))
    particulars = {
        check: show_table(found.table, tables[found.table], found.rows, order=found.rows[:SHOWN_CASES])
        for check, found in judged.particulars.items()
    }
    outcomes: dict[str, tuple[bool, bool]] = {}
    for check in verdict.checks:
        passes, is_settled = outcomes.get(check.table, (True, True))
        outcomes[check.table] = (passes and check.kind == "passed", is_settled and check.kind in ("passed", "accepted"))
    note = ""
    if judged.problem:
        note = f"Great Expectations' pages are missing, and no row is marked: the evidence cannot be judged again ({judged.problem})."
    elif outcomes != {name: (table.passes, table.is_settled) for name, table in judged.tables.items()}:
        note = "The suite or the evidence has changed since the verdict was given: the tables no longer match the verdict."
    card = Card(anchor, verdict, links, particulars, note)
    rows, expectations = (environment().get_template(f"docs_{kind}.html") for kind in ("evidence", "expectations"))
    for link in links:
        if link.evidence:
            table = show_table(link.table, tables[link.table], judged.failing_rows(link.table), judged.accepted_rows(link.table))
            pages[link.evidence] = rows.render(card=card, table=table, depth="../")
        if link.judged:
            pages[link.judged] = expectations.render(card=card, table=link.table, judged=judged.tables[link.table], depth="../")
    return card
