"""Report of one seed's runs of the collapse, and a figure with all runs."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.incidents.collapse_runs import KINDS, LIMITS, NUM_ACTIVE, NUM_EXPERTS, STEPS, Trained
from phasewise.tasks.report.contents import PhaseReport, Report, VerdictReport
from phasewise.tasks.report.html import write_report
from phasewise.tasks.report.sections import routing_of
from phasewise.trainer.config import turns_of
from phasewise.trainer.model.params import count_parameters

TITLES = {"none": "no balancing", "sign": "sign updates", "smebu": "SMEBU"}
COLOURS = {"none": "#b0531c", "sign": "#2b6a9e", "smebu": "#17705f"}
INCHES, PIXELS_AN_INCH = (9.0, 2.7), 100


def write_pictures(trained: Sequence[Trained], folder: Path) -> list[Path]:
    """The report of the first seed, and the picture of all seeds."""
    first = [one for one in trained if one.seed == trained[0].seed]
    picture = folder / "collapse.png"
    draw(trained).savefig(picture, dpi=PIXELS_AN_INCH)
    return [write_report(folder / "report.html", report_of(first)), picture]


def report_of(trained: Sequence[Trained]) -> Report:
    stopped = sum(one.is_stopped for one in trained)
    return Report(
        recipe="collapse",
        scale="own",
        created="2026-01-01T00:00:00+00:00",
        status="stopped" if stopped else "passed",
        headline=f"{stopped} of {len(trained)} runs lost the balance of their experts.",
        parameters=count_parameters(trained[0].run.model),
        phases=tuple(_phase(one) for one in trained),
    )


def draw(trained: Sequence[Trained]) -> Figure:
    """MaxVio over the steps: an axes a kind of balancing, a line a seed."""
    figure = Figure(figsize=INCHES, layout="constrained")
    all_axes = figure.subplots(1, len(KINDS), sharey=True)
    for axes, kind in zip(all_axes, KINDS, strict=True):
        _draw(axes, kind, [one for one in trained if one.kind == kind])
    all_axes[0].set_ylabel("MaxVio")
    return figure


def _draw(axes: Axes, kind: str, trained: Sequence[Trained]) -> None:
    for one in trained:
        axes.plot(
            [row["step"] for row in one.rows], [row["max_violation"] for row in one.rows], color=COLOURS[kind], linewidth=0.7, alpha=0.8
        )
    assert LIMITS.max_violation is not None
    axes.axhline(LIMITS.max_violation, color="#566472", linewidth=1, linestyle=(0, (5, 3)))
    axes.set(title=TITLES[kind], xlabel="step", xlim=(0, STEPS), ylim=(0, NUM_EXPERTS / NUM_ACTIVE - 0.9))
    axes.spines[["top", "right"]].set_visible(False)


def _phase(one: Trained) -> PhaseReport:
    run = one.run
    reasons = tuple(reason.sentence for reason in one.verdict.reasons)
    path = f"verdicts/{run.recipe}-{run.scale}/{run.phase}/health.json"
    return PhaseReport(
        name=TITLES[one.kind],
        start_step=run.start_step,
        stop_step=run.stop_step,
        tokens=sum(row["tokens"] for row in one.rows),
        batch_sequences=run.batch.within(run.start_step, run.stop_step),
        learning_rate_turns=turns_of(run.learning_rate, run.start_step, run.stop_step),
        learning_rate=tuple((row["step"], row["learning_rate"]) for row in one.rows),
        loss=tuple((row["step"], row["loss"]) for row in one.rows),
        routing=routing_of(one.rows, LIMITS.max_violation),
        final_loss=one.rows[-1]["loss"],
        verdicts=(VerdictReport(name="training", counts=one.verdict.counts, reasons=reasons, accepted=(), path=path),),
        state="refused" if one.is_stopped else "done",
    )
