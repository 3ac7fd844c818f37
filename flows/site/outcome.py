"""What came out of a phase: its evaluation beside its parent's and the record's, and its files with their digests."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from phasewise.flows.measured import measured_of
from phasewise.flows.record import PhaseRecord
from phasewise.flows.site.address import GATE_WORDS
from phasewise.flows.site.files import known
from phasewise.flows.site.shelf import PhaseFiles, Set, Shelf
from phasewise.flows.summary import reported_by_the_record
from phasewise.tasks.report.contents import RecordReport
from phasewise.tasks.report.sections import MeasuredRow, row_of
from phasewise.trainer.base.run_folder import EVALUATION_NAME, LOG_NAME, METRICS_NAME, RESULT_NAME, RUN_NAME, RunFolder
from phasewise.trainer.base.wording import MISSING, decimal, signed
from phasewise.validations.verdict import Verdict

PLACES = 3


@dataclass(frozen=True)
class FileRow:
    """A file of a phase. The digest is the one that was written down when it was made or judged; nothing is read for it here."""

    name: str
    what: str
    size: str
    digest: str


@dataclass(frozen=True)
class ScoreRow:
    """A figure of two phases. `note` says why there is no difference."""

    what: str
    left: str
    right: str
    difference: str
    note: str = ""


def measured_rows(files: PhaseFiles) -> tuple[MeasuredRow, ...]:
    """What the gate measured, beside its parent; none where the phase is not evaluated, or its recipe is not known."""
    if files.phase is None or not files.evaluation:
        return ()
    verdict = files.verdicts.get("model")
    judged = verdict if isinstance(verdict, Verdict) else None
    record = PhaseRecord(files.phase, None, None, None, None, dict(files.evaluation), judged)
    folder = files.home.verdict(files.address.run_name, files.address.phase, "model").with_suffix("")
    return tuple(row_of(one, {}) for one in measured_of(record, folder))


def bits_per_byte(files: PhaseFiles, parent: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Component, value, the parent's and the difference, where both were measured on the same text."""
    mine, theirs = _bits(files.evaluation), _bits(parent)
    rows: list[tuple[str, str, str, str]] = []
    for name in sorted(mine, key=lambda name: -mine[name]):
        before = theirs.get(name) if _same_text(files.evaluation, parent, name) else None
        change = MISSING if before is None else signed(mine[name] - before, places=PLACES)
        rows.append((name, decimal(mine[name], places=PLACES), decimal(before, places=PLACES), change))
    return rows


def reported_of(found: Set, phase: str) -> tuple[RecordReport, ...]:
    """What the record reported of the phase."""
    return reported_by_the_record(found.recipe, phase) if found.recipe else ()


def scores_of(left: PhaseFiles, right: PhaseFiles) -> list[ScoreRow]:
    """Scores and bits per byte of two phases. A difference is given only where both were measured on the same items or text."""
    rows = [_final_loss(left, right)] if left.result or right.result else []
    mine, theirs = _results(left.evaluation), _results(right.evaluation)
    same_items = left.evaluation.get("benchmarks_digest") == right.evaluation.get("benchmarks_digest")
    for name in dict.fromkeys([*mine, *theirs]):
        rows.append(_score(name, mine.get(name), theirs.get(name), "" if same_items else "not put to the same items"))
    texts = _bits(left.evaluation), _bits(right.evaluation)
    means = left.evaluation.get("macro_bits_per_byte"), right.evaluation.get("macro_bits_per_byte")
    if means != (None, None):
        same_text = set(texts[0]) == set(texts[1]) and all(_same_text(left.evaluation, right.evaluation, name) for name in texts[0])
        rows.append(_score("macro bits per byte", *means, "" if same_text else "not means over the same text"))
    for name in sorted({*texts[0], *texts[1]}):
        alike = _same_text(left.evaluation, right.evaluation, name)
        rows.append(
            _score(f"bits per byte, {name}", texts[0].get(name), texts[1].get(name), "" if alike else "not measured on the same text")
        )
    return rows


def files_of(shelf: Shelf, files: PhaseFiles) -> list[FileRow]:
    """The files of a phase, as far as they are there."""
    health = files.verdicts.get("health")
    judged = list(health.judged.values()) if isinstance(health, Verdict) else []
    rows = [
        _row(files, RUN_NAME, "what was trained, every setting", files.result.get("run_digest", "")),
        _row(files, METRICS_NAME, "a row an update; the digest is of what the verdict on its training judged", judged[0] if judged else ""),
        _row(files, RESULT_NAME, "where it ended; the digest is of the weights", files.result.get("params_digest", "")),
        _row(files, EVALUATION_NAME, "what was measured of the last checkpoint; its key", files.evaluation.get("key", "")),
        _row(files, LOG_NAME, "what the trainer said", ""),
    ]
    rows += [_gate_row(files, gate) for gate in files.verdicts]
    contents = known(shelf.files.json(RunFolder(files.folder).caches)).get("contents")
    if isinstance(contents, dict):
        caches = cast(dict[str, Any], contents)
        rows += [
            FileRow(f"cache of {name}", "tokens that it trained on: digest of their contents", MISSING, str(caches[name]))
            for name in sorted(caches)
        ]
    rows += [FileRow(f"checkpoints/{step}", f"checkpoint after step {step:,}", MISSING, "") for step in files.checkpoints]
    return [row for row in rows if row is not None]


def _row(files: PhaseFiles, name: str, what: str, digest: object) -> FileRow | None:
    size = _size(files.folder / name)
    return None if size is None else FileRow(name, what, size, str(digest or ""))


def _gate_row(files: PhaseFiles, gate: Any) -> FileRow:
    path = files.home.verdict(files.address.run_name, files.address.phase, gate)
    verdict = files.verdicts[gate]
    version = f"suite {verdict.suite}, version {verdict.suite_version}" if isinstance(verdict, Verdict) else "does not read"
    return FileRow(f"{gate}.json", f"verdict on its {GATE_WORDS[gate]}; {version}", _size(path) or MISSING, "")


def _size(path: Any) -> str | None:
    try:
        return f"{path.stat().st_size:,} bytes"
    except OSError:
        return None


def _bits(evaluation: Mapping[str, Any]) -> dict[str, float]:
    found = evaluation.get("bits_per_byte")
    return {str(name): float(value) for name, value in found.items()} if isinstance(found, dict) else {}


def _same_text(mine: Mapping[str, Any], theirs: Mapping[str, Any], component: str) -> bool:
    texts = [one.get("measured_on", {}).get(component) for one in (mine, theirs)]
    return texts[0] is not None and texts[0] == texts[1]


def _results(evaluation: Mapping[str, Any]) -> dict[str, float]:
    return {f"{one['benchmark']} {one['metric']}": float(one["value"]) for one in evaluation.get("results", [])}


def _final_loss(left: PhaseFiles, right: PhaseFiles) -> ScoreRow:
    mine, theirs = (one.result.get("final_loss") for one in (left, right))
    return _score("final training loss", mine, theirs, "each on its own data")


def _score(what: str, left: float | None, right: float | None, note: str) -> ScoreRow:
    is_comparable = not note and left is not None and right is not None
    difference = signed(float(right or 0) - float(left or 0), places=PLACES) if is_comparable else MISSING
    return ScoreRow(
        what,
        decimal(left, places=PLACES),
        decimal(right, places=PLACES),
        difference,
        note if left is not None and right is not None else "",
    )
