"""What a reader wants in the first ten seconds: a word for every phase, a handful of figures, and what failed."""

from dataclasses import dataclass
from itertools import groupby

from phasewise.tasks.publication.contents import PhaseReport, Report, VerdictReport
from phasewise.trainer.base.wording import MISSING, count, decimal
from phasewise.validations.outcomes import CheckCounts, count_passed, sum_counts, verdicts_in_words

MARKS = {"good": "✓", "warned": "!", "bad": "✗", "none": "–"}


@dataclass(frozen=True)
class Standing:
    """The state of a phase or a verdict. `kind` decides colour and mark: good, warned, bad or none."""

    kind: str
    word: str

    @property
    def mark(self) -> str:
        """The sign beside the word."""
        return MARKS[self.kind]


@dataclass(frozen=True)
class Tile:
    """One figure with its name and a remark."""

    name: str
    figure: str
    remark: str


def standing_of(phase: PhaseReport) -> Standing:
    """A failed verdict is named first, then the state; a phase that nobody judged does not pass."""
    failed = " and ".join(verdict.name for verdict in phase.verdicts if not verdict.passes and not verdict.waits)
    if failed:
        return Standing("bad", f"{failed} failed")
    if phase.state == "refused":
        return Standing("bad", "refused")
    if phase.state == "waits for a person":
        return Standing("warned", phase.state)
    if phase.state == "not reached":
        return Standing("none", "not reached")
    if decided := [verdict for verdict in phase.verdicts if verdict.ruling == "approved"]:
        return Standing("warned", f"{' and '.join(verdict.name for verdict in decided)} let pass by a person")
    return standing_of_counts(phase.counts) if phase.verdicts else Standing("none", "not judged")


def standing_of_counts(counts: CheckCounts) -> Standing:
    """The state of a verdict, or of several together."""
    kinds = {"passed": "good", "warned": "warned", "failed": "bad"}
    return Standing(kinds[counts.standing], counts.standing_words)


def headline_of(report: Report) -> tuple[str, str]:
    """The status as a word, and the rest of the sentence; a headline that begins with the status does not say it twice."""
    first, _, rest = report.headline.partition(" ")
    if first.strip(".,:").lower() == report.status:
        return first, rest
    return f"{report.status.capitalize()}.", report.headline


def failures_of(report: Report) -> list[tuple[PhaseReport, VerdictReport]]:
    """Every verdict that failed or waits for a person, in the order of the phases."""
    return [(phase, verdict) for phase in report.phases for verdict in phase.verdicts if not verdict.passes]


def passes_of(report: Report) -> list[tuple[PhaseReport, VerdictReport]]:
    """Every verdict that passed or that a person let pass, in the order of the phases."""
    return [(phase, verdict) for phase in report.phases for verdict in phase.verdicts if verdict.passes]


def batch_of(phase: PhaseReport) -> str:
    """The batch sizes one after the other, in sequences."""
    sizes = [str(size) for size, _ in groupby(size for _, size in phase.batch_sequences)]
    return " → ".join(sizes) or MISSING


def tiles_of(report: Report) -> list[Tile]:
    """Phases, tokens, parameters, held-out bits per byte and verdicts."""
    done = [phase for phase in report.phases if phase.state == "done"]
    verdicts = [verdict.counts for phase in report.phases for verdict in phase.verdicts]
    words = f"{verdicts_in_words(verdicts)}: {sum_counts(verdicts).shares}"
    return [
        Tile("phases trained", f"{len(done)} of {len(report.phases)}", f"to step {done[-1].stop_step:,}" if done else "none yet"),
        Tile("tokens trained on", count(sum(phase.tokens for phase in done)), f"{count(report.parameters)} parameters"),
        held_out_tile(report),
        Tile("verdicts passed", f"{count_passed(verdicts)} of {len(verdicts)}", words),
    ]


def held_out_tile(report: Report) -> Tile:
    """The last macro value, where it came from, and the baseline that is hardest to beat."""
    measured = [phase for phase in report.phases if phase.macro_bits_per_byte is not None]
    if not measured:
        return Tile("held-out bits per byte", MISSING, "not measured")
    first, last = measured[0], measured[-1]
    remarks = [f"{decimal(first.macro_bits_per_byte, places=2)} after {first.name}"] if first is not last else [f"after {last.name}"]
    if report.baselines:
        name = min(report.baselines, key=lambda name: report.baselines[name])
        remarks.append(f"{name} {decimal(report.baselines[name], places=2)}")
    return Tile("held-out bits per byte", decimal(last.macro_bits_per_byte, places=2), " · ".join(remarks))
