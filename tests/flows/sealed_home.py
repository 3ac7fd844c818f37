"""A small real home with every kind of file that a home on this machine can hold, and edits of its files that are undone again."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from phasewise.flows.cli.publish import export_target
from phasewise.flows.resolved import Resolved, resolve
from phasewise.flows.status.phase_status import parent_evaluation, read_records
from phasewise.flows.status.recipe_status import seal_report
from phasewise.flows.status.summary import build_report
from phasewise.tasks.evaluation.ngram_baselines import measure_baselines
from phasewise.tasks.evaluation.suite import kept_path, write_kept
from phasewise.tasks.home import Home
from phasewise.tasks.report.data_docs import build_data_docs
from phasewise.tasks.report.html import write_report
from phasewise.tasks.report.placing import export_name, place
from phasewise.tasks.validation.judge import judge_phase_health
from phasewise.trainer.base.decision import Decision, Decisions, decision_path, seen_of
from phasewise.trainer.base.identity import read_sealed, sealed, write_sealed
from phasewise.trainer.base.run_folder import RunFolder, read_result
from phasewise.trainer.passed_over import NOTHING, write_passed_over
from phasewise.validations.verdict import judge_gate, write_verdict
from phasewise.validations.waivers import accepted_in
from tests.tasks.report.card.world import write_world

TIMES = ("kept", "new")
EDITS = ("flipped", "emptied", "cut", "another", "removed")


class Sealed(NamedTuple):
    """The recipe's file and its home."""

    recipe: Path
    home: Home

    def resolved(self) -> Resolved:
        return resolve(str(self.recipe), "proxy", str(self.home.root))[0]

    def files(self) -> list[str]:
        """Every file of the home, by its path in it."""
        return sorted(path.relative_to(self.home.root).as_posix() for path in self.home.root.rglob("*") if path.is_file())


def write_sealed_home(root: Path) -> Sealed:
    """Two phases trained and judged, their report, an export, and one file each of the rarer kinds."""
    recipe, home = write_world(root)
    found = Sealed(recipe, home)
    resolved = found.resolved()
    run_name = resolved.recipe.run_name
    for phase in resolved.recipe.phases:
        run = resolved.run(phase)
        folder = RunFolder.at(run.output)
        accepts = accepted_in(phase.name, resolved.recipe.accepts)
        judge_phase_health(run, phase.gates.health, home, accepts=accepts)
        evaluation, parent = read_sealed(folder.evaluation), parent_evaluation(resolved, phase)
        path = home.verdict(run_name, phase.name, "model")
        subject = f"{resolved.recipe.name}/{resolved.recipe.scale}/{phase.name} model"
        judged: Any = {"parent_evaluation": parent, "limits": phase.gates.model, "folder": path.with_suffix(""), "accepts": accepts}
        write_verdict(path, judge_gate(subject, evaluation, **judged))
        seen = seen_of(read_sealed(path))
        decided = Decision(approves=True, reason="chance", who=f"Ada of {phase.name}", when="2026-11-25T00:00:00+00:00", seen=seen)
        write_sealed(decision_path(path), Decisions(latest=decided).model_dump(mode="json"))
        write_passed_over(folder.path, NOTHING, [f"none in {phase.name}"])
        weights = str((read_result(folder.path) or {})["params_digest"])
        write_kept(kept_path(folder.checkpoint(phase.stop_step), "reading", weights[:12], None), {"weights": weights}, {}, ())
        made = root / "made" / phase.name
        exported = export_target(f"{recipe}/{phase.name}", str(made), "proxy", str(home.root), weights="last", dtype="float32")
        place(made, home.exported(run_name, f"{export_name(phase.name, 'last', 'float32')}{exported['params_digest'][:12]}"))
    for number in (1, 2):
        key = str(number) * 64
        write_sealed(home.preflight(key), {"key": key, "result": number})
    measure_baselines(resolved.plan, home, resolved.recipe.phases[0].evaluation.held_out_tokens)
    records = read_records(resolved)
    report = home.report(run_name)
    build_data_docs(report / "data-docs", [verdict for record in records for verdict in record.verdicts])
    write_report(report / "report.html", build_report(resolved, records))
    seal_report(resolved, records)
    resolved.digests.keep()
    return found


@contextmanager
def edited(path: Path, edit: str, times: str, other: bytes) -> Iterator[None]:
    """The file, edited; as it was when the context ends, but for the time of change that nobody can set."""
    before, content = path.stat(), path.read_bytes()
    try:
        _edit(path, content, edit, other)
        if times == "kept" and path.exists():
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        yield
    finally:
        path.write_bytes(content)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _edit(path: Path, content: bytes, edit: str, other: bytes) -> None:
    edits: dict[str, Callable[[], object]] = {
        "flipped": lambda: path.write_bytes(flipped(content)),
        "emptied": lambda: path.write_bytes(b""),
        "cut": lambda: path.write_bytes(content[: len(content) // 2]),
        "another": lambda: path.write_bytes(other),
        "removed": path.unlink,
    }
    edits[edit]()


def another(path: Path) -> bytes | None:
    """A valid file of another home in the place of one that has no like in its own; None where nothing is known of such a one."""
    content = path.read_bytes()
    if path.suffix == ".html" or path.name.startswith("tokenizer."):
        return flipped(content)
    if path.name not in ("items.json", "baselines.json", "keys.json"):
        return None
    fields = read_sealed(path)
    fields |= {"key": "0" * 64} if "key" in fields else {"phases": {}, "files": {}}
    return json.dumps(sealed(fields)).encode()


def flipped(content: bytes) -> bytes:
    """One bit is another: of text the lowest of a digit, so that it may still read."""
    if not content:
        return b"\0"
    digits = [at for at, byte in enumerate(content) if byte in b"0123456789"] if content.isascii() else []
    for at in [*digits[len(digits) // 2 :], len(content) // 2]:
        found = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        with suppress(ValueError):
            if json.loads(found) == json.loads(content):
                continue  # the last digits of a number may change nothing of its value
        return found
    raise AssertionError("every digit is without a value")
