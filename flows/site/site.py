"""The content of all pages: the home, the states of its phases, and a background check of outdated results."""

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from phasewise.flows.resolved import resolve, resolving_once
from phasewise.flows.show.describe import describe_phase, describe_recipe
from phasewise.flows.site.address import GATES, Links
from phasewise.flows.site.metrics import Metrics
from phasewise.flows.site.shelf import Damaged, PhaseFiles, Set, Shelf
from phasewise.flows.status.phase_status import PhaseRecord, read_record
from phasewise.tasks.report.charts import cut
from phasewise.tasks.report.html import CHECKING, GATE_WORDS, environment
from phasewise.trainer.base.decision import Ruling
from phasewise.trainer.base.wording import plural
from phasewise.validations.failures import failures_of
from phasewise.validations.outcomes import sum_counts
from phasewise.validations.verdict import Verdict

Kind = Literal["passed", "warned", "failed", "active", "waiting"]
MARKS: dict[Kind, str] = {"passed": "✓", "warned": "!", "failed": "✗", "active": "●", "waiting": "○"}
UNKNOWN = (
    "This installation lacks the recipe, so states come only from files. The current sources, code and limits are not checked against them."
)
RECHECK_SECONDS = 10.0


@dataclass(frozen=True)
class State:
    """The state of a phase. `since`: changes after an outdated verdict."""

    kind: Kind
    word: str
    why: str = ""
    since: str = ""

    @property
    def mark(self) -> str:
        """A sign before the word: the state is readable without colours."""
        return MARKS[self.kind]


def state_of(files: PhaseFiles, record: PhaseRecord | None, *, now: float | None = None) -> State:
    """Return the state by the files. A record with outdated results overrides the state of finished phases."""
    for gate, verdict in files.judged:
        ruling = files.rulings[gate]
        if verdict.passes and ruling.lets_go_on:
            continue
        failures = failures_of(verdict)
        says = "warns" if verdict.passes else "fails"
        why = f"the verdict on its {GATE_WORDS[gate]} {says}: {failures[0].worst.what if failures else 'it gives no reason'}"
        if record and verdict not in record.verdicts:
            return State("failed", "refused, out of date", why, f"Since then: {'; '.join(record.lacks)}.")
        return _ruled(ruling, why) or State("failed", "refused", why)
    if not files.result and files.asked is not None and isinstance(files.question, Verdict) and files.asked.state in ("waits", "rejected"):
        reasons = files.question.reasons
        if asked := _ruled(files.asked, f"its training: {reasons[0].what if reasons else 'it gives no reason'}"):
            return asked
    if record and record.state not in ("done", "refused", "not reached"):
        return State("warned", record.state, "; ".join(record.lacks))
    if files.is_alive(time.time() if now is None else now):
        return State("active", "training")
    unread = [str(one) for one in files.verdicts.values() if isinstance(one, Damaged)]
    if files.damaged or unread:
        return State("failed", "damaged", "; ".join((*files.damaged, *unread)))
    by_files = State("waiting", "data judged", "not yet trained") if "data" in dict(files.judged) else State("waiting", "not begun")
    missing = [GATE_WORDS[gate] for gate in GATES if gate not in dict(files.judged)]
    if files.result and files.evaluation and not missing:
        warned = sum_counts(verdict.counts for _, verdict in files.judged).warned
        by_files = State("warned", f"done, {plural(warned, 'warning')}") if warned else State("passed", "done")
    elif files.result:
        by_files = State("waiting", "trained", f"not judged yet: {', '.join(missing)}" if missing else "not evaluated yet")
    elif files.run:
        by_files = State("warned", "half trained", "no sign of life for some time. A restart resumes from the last checkpoint.")
    if record and record.state != "done" and by_files.word not in ("not begun", "half trained"):
        return State("warned", "out of date" if by_files.word.startswith("done") else by_files.word, "; ".join(record.lacks))
    return by_files


def _ruled(ruling: Ruling, why: str) -> State | None:
    """Return the state after or before a decision of a person, or None if no person decides."""
    decided = ruling.decision
    text = f"{cut(decided.who, 80)}: {cut(decided.reason, 300)}" if decided else cut(ruling.void, 300)
    words: dict[str, tuple[Kind, str]] = {
        "approved": ("warned", "let pass by a person"),
        "waits": ("warned", "waits for a person"),
        "rejected": ("failed", "rejected by a person"),
    }
    return State(*words[ruling.state], why, text) if ruling.state in words else None


def in_words(states: Iterable[State]) -> str:
    """Count the phases in each state: `1 refused, 2 done, 3 not begun`."""
    counts: dict[str, int] = {}
    for state in states:
        word = state.word.partition(",")[0]
        counts[word] = counts.get(word, 0) + 1
    return ", ".join(f"{count:,} {word}" for word, count in counts.items())


class Checked(NamedTuple):
    """A check of a recipe at a Unix time: phase → record, or the problem that stopped the check."""

    at: float
    records: dict[str, PhaseRecord]
    problem: str = ""


def check(shelf: Shelf, found: Set) -> Checked:
    """Check all phases of the main line, and the branches in the home."""
    here = {name for name in shelf.phase_names(found) if shelf.home.run(found.run_name, name).exists()}
    branches = [phase.name for phase in found.recipe.phases if phase.branch and phase.name in here] if found.recipe else []
    records: dict[str, PhaseRecord] = {}
    try:
        with resolving_once():
            for name in [found.target, *(f"{found.target}/{branch}" for branch in branches)]:
                resolved, _ = resolve(name, found.scale, str(shelf.home.root), reads_only=True)  # pyright: ignore[reportArgumentType]  # one of SCALES
                for phase in resolved.recipe.phases:
                    if phase.name not in records:
                        records[phase.name] = read_record(resolved, phase)
    except Exception as error:  # a home may have any content, and the thread must survive
        return Checked(time.time(), records, str(error) or type(error).__name__)
    return Checked(time.time(), records)


@dataclass
class Site:
    """The pages of a home.

    Attributes:
        is_own_prefect: whether the server has its database in this home. Then links to it may carry its auth string.
        reads_within: seconds to read metrics. After that a page shows a sample.
        checked: run name → last check for outdated results. One background thread checks, and pages never wait for it.
    """

    shelf: Shelf
    prefect: str = ""
    is_own_prefect: bool = False
    reads_within: float = 0.25
    written: str = ""
    metrics: Metrics = field(default_factory=Metrics)
    checked: dict[str, Checked] = field(default_factory=dict)
    _to_check: dict[str, Set] = field(default_factory=dict)
    _wake: threading.Condition = field(default_factory=threading.Condition)
    _checks: bool = False
    _plans: dict[tuple[str, str, str], dict[str, Any]] = field(default_factory=dict)

    def latest_check(self, found: Set) -> Checked | None:
        """Return the last check, or None before the first. Request another check if it is old."""
        if found.recipe is None or not found.in_home:
            return None
        checked = self.checked.get(found.run_name)
        if checked is None or time.time() - checked.at > RECHECK_SECONDS:
            with self._wake:
                self._to_check[found.run_name] = found
                if not self._checks:
                    self._checks = True
                    threading.Thread(target=self._check_forever, daemon=True, name="check the home").start()
                self._wake.notify()
        return checked

    def _check_forever(self) -> None:
        while True:
            with self._wake:
                while not self._to_check:
                    self._wake.wait()
                found = next(iter(self._to_check.values()))
            self.checked[found.run_name] = check(self.shelf, found)
            with self._wake:
                self._to_check.pop(found.run_name, None)

    def place(self, path: Path) -> str:
        """Return a path relative to the home: published pages never show folders of this machine."""
        root = self.shelf.home.work
        return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name

    def record(self, found: Set, phase: str) -> PhaseRecord | None:
        """Return the last record of a phase, or None before the first check."""
        checked = self.latest_check(found)
        return checked.records.get(phase) if checked else None

    def state(self, found: Set, files: PhaseFiles) -> State:
        """Return the state of a phase."""
        return state_of(files, self.record(found, files.address.phase))

    def holds(self, found: Set) -> str:
        """Return a note on unchecked states, or an empty string."""
        if not found.in_home:
            return ""
        if found.recipe is None:
            return UNKNOWN
        checked = self.latest_check(found)
        if checked is None:
            return CHECKING
        return f"The check for outdated results failed: {checked.problem}" if checked.problem else ""

    def plan(self, found: Set, phase: str) -> dict[str, Any] | None:
        """Return all values of a phase as in `phasewise show`, or None without its recipe."""
        if found.recipe is None or phase not in {one.name for one in found.recipe.phases}:
            return None
        key = (found.name, found.scale, phase)
        if key not in self._plans:
            described = describe_phase(found.recipe, found.recipe.phase(phase))
            self._plans[key] = described | {"tokenizer": describe_recipe(found.recipe)["tokenizer"]}
        return self._plans[key]

    def render(self, template: str, links: Links, **values: Any) -> str:
        """Render a page."""
        return environment().get_template(template).render(links=links, site=self, **values)

    def part(self, name: str, links: Links, **values: Any) -> str:
        """Render a part of a page, for updates in the browser."""
        module = environment().get_template("parts.html").make_module({"links": links, "site": self})
        return str(getattr(module, name)(**values))
