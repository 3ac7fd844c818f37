"""The pages of a report, as text. They need one style sheet beside them, no script and no network."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from phasewise.validations.outcomes import KIND_WORDS, MARKS, STANDINGS, AcceptedFinding, CheckCounts, sum_counts, verdicts_in_words
from phasewise.validations.report.content import section_as_html
from phasewise.validations.report.evidence import ShownTable
from phasewise.validations.report.failures import Failure, accepted_of, failures_of
from phasewise.validations.report.judged_again import JudgedTable
from phasewise.validations.report.words import SHOWN_CASES
from phasewise.validations.verdict import Verdict, unused_of

STYLE_SHEET = "report.css"
ROW_WORDS = {"failed": "fails", "accepted": "accepted"}
OPEN_FAILURES = 3
"""How many failures of a verdict are shown before the others are folded away."""


@dataclass(frozen=True)
class TableLinks:
    """One evidence table and its pages, relative to the index.

    `evidence` is empty where the table is gone, `judged` where no check judges it.
    """

    table: str
    rows: int
    failing: int
    accepted: int
    evidence: str
    judged: str


@dataclass(frozen=True)
class Card:
    """A verdict as the index shows it.

    Attributes:
        particulars: (table, what a check asks) → the first rows that say more of what it found.
        note: a word about its pages, where there is something to say.
    """

    anchor: str
    verdict: Verdict
    tables: tuple[TableLinks, ...]
    particulars: Mapping[tuple[str, str], ShownTable]
    note: str

    @property
    def counts(self) -> CheckCounts:
        """How many checks came out how."""
        return self.verdict.counts

    @property
    def failures(self) -> tuple[Failure, ...]:
        """What is wrong, worst first."""
        return failures_of(self.verdict)

    @property
    def accepted(self) -> tuple[AcceptedFinding, ...]:
        """What the recipe accepts."""
        return accepted_of(self.verdict)

    def links(self, table: str) -> TableLinks | None:
        """The pages of a table."""
        return next((links for links in self.tables if links.table == table), None)


def style_sheet() -> str:
    """The style of every page."""
    return (Path(__file__).parent / STYLE_SHEET).read_text(encoding="utf-8")


def index_page(cards: Sequence[Card]) -> str:
    """The first page: what fails, then what warns, then what passes."""
    counts = [card.counts for card in cards]
    in_order = sorted(cards, key=lambda card: STANDINGS.index(card.counts.standing))
    return _render(
        "index.html",
        cards=in_order,
        passing=[card for card in in_order if card.counts.standing == "passed"],
        worst=in_order[0].counts.standing if in_order else None,
        words=verdicts_in_words(counts),
        shares=sum_counts(counts).shares,
        run=_run_of(cards),
        unused=unused_of([card.verdict for card in cards]),
        depth="",
    )


def evidence_page(card: Card, table: ShownTable) -> str:
    """The rows of an evidence table."""
    return _render("evidence.html", card=card, table=table, depth="../")


def judged_page(card: Card, table: str, judged: JudgedTable) -> str:
    """What Great Expectations says of an evidence table."""
    sections = [section_as_html(section) for section in judged.sections]
    return _render("expectations.html", card=card, table=table, judged=judged, sections=sections, depth="../")


def _run_of(cards: Sequence[Card]) -> str:
    """What the subjects have in common, folder by folder: `marin-8b/proxy`."""
    paths = [card.verdict.subject.split("/")[:-1] for card in cards]
    shared = takewhile(lambda names: len(set(names)) == 1, zip(*paths, strict=False))
    return "/".join(names[0] for names in shared)


def _render(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(open_failures=OPEN_FAILURES, shown_cases=SHOWN_CASES, **values)


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    words: dict[str, Any] = {"marks": MARKS, "kinds": KIND_WORDS, "row_words": ROW_WORDS}
    environment.globals.update(words)  # imported macros see these, too, and nothing that a page is rendered with
    environment.filters["thousands"] = "{:,}".format
    environment.filters["with_code"] = with_code
    return environment


def with_code(text: str) -> Markup:
    """The text, with what is between backticks as code; everything is escaped."""
    pieces = (escape(piece) for piece in text.split("`"))
    return Markup("").join(Markup("<code>{}</code>").format(piece) if number % 2 else piece for number, piece in enumerate(pieces))
