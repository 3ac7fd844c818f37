"""The report of a run: one HTML page that needs nothing beside it, neither a network nor another file."""

from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from phasewise.tasks.report.contents import BenchmarkReport, PhaseReport, Report, VerdictReport
from phasewise.tasks.report.sections import (
    batch_of,
    component_rows,
    evaluated_phases,
    failures_of,
    gauges_of,
    headline_of,
    legend_of,
    macro_row,
    measured_phases,
    passes_of,
    spans_of,
    standing_of,
    standing_of_counts,
    tiles_of,
)
from phasewise.trainer.base import wording
from phasewise.trainer.base.storage import write_atomically
from phasewise.validations.outcomes import sum_counts

__all__ = ["BenchmarkReport", "PhaseReport", "Report", "VerdictReport", "render", "write_report"]


def write_report(path: Path, report: Report) -> Path:
    """Write the page at `path`, at once or not at all."""
    write_atomically(path, render(report).encode())
    return path


def render(report: Report) -> str:
    """The page as text. Everything that comes from the run is escaped."""
    # matplotlib takes most of a second to import, and only this function needs it.
    from phasewise.tasks.report.across_phases import across_picture
    from phasewise.tasks.report.charts import levels, macro_picture, routing_cards, training_picture

    spans = spans_of(report)
    columns = evaluated_phases(report)
    rows = component_rows(columns)
    return page().render(
        report=report,
        headline=headline_of(report),
        tiles=tiles_of(report),
        standings={phase.name: standing_of(phase) for phase in report.phases},
        batches={phase.name: batch_of(phase) for phase in report.phases},
        training=training_picture(report),
        routing=routing_cards(report),
        levels=levels(),
        spans=spans,
        components=sorted({name for span in spans for name in span.shares}),
        legend=legend_of(spans),
        has_average=any(phase.ema_macro_bits_per_byte is not None for phase in report.phases),
        macro=macro_picture(report),
        columns=columns,
        rows=rows,
        macro_row=macro_row(columns, report.macro_over) if rows else None,
        gauges=gauges_of(report),
        across=across_picture(report),
        measured=measured_phases(report),
        failures=failures_of(report),
        passes=passes_of(report),
        standing_of_counts=standing_of_counts,
        all_passed=sum_counts(verdict.counts for _, verdict in passes_of(report)),
    )


def page() -> jinja2.Template:
    """The template, with the formats that it uses; a name that is missing is an error."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update({name: getattr(wording, name) for name in ("count", "decimal", "moment", "percent", "rate", "signed")})
    environment.filters["breakable"] = breakable
    return environment.get_template("report.html")


def breakable(name: str) -> Markup:
    """The name, which may break over two lines after an underscore."""
    return escape(name).replace("_", Markup("_<wbr>"))
