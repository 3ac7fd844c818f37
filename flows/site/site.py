"""The content of all pages: the home, the states of its phases, and a background check of outdated results."""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import urlencode

from phasewise.flows.prefect.server import QueuedRun, RunForm, queued_runs, run_forms
from phasewise.flows.resolved import resolve, resolving_once
from phasewise.flows.show.describe import describe_phase, describe_recipe
from phasewise.flows.site.metrics import Metrics
from phasewise.flows.site.shelf import GATES, Links, PhaseFiles, Set, Shelf
from phasewise.flows.status.phase_status import PhaseRecord, read_at_rest
from phasewise.tasks.phase_state import AT_WORK, JUDGED, PENDING, PhaseState, Stage, State, settle, state_now
from phasewise.tasks.report.charts import cut
from phasewise.tasks.report.html import CHECKING, GATE_WORDS, environment
from phasewise.trainer.base.errors import PhasewiseError
from phasewise.trainer.base.wording import moment, plural
from phasewise.validations.failures import failures_of
from phasewise.validations.verdict import Verdict, sum_counts

Kind = Literal["passed", "warned", "failed", "active", "waiting"]
MARKS: dict[Kind, str] = {"passed": "✓", "warned": "!", "failed": "✗", "active": "●", "waiting": "○"}
UNKNOWN = (
    "This installation lacks the recipe, so states come only from files. The current sources, code and limits are not checked against them."
)
RECHECK_SECONDS = 10.0
FORMS_SECONDS = 60.0  # the page asks Prefect at most this often for its deployments
KINDS: dict[State, Kind] = {
    **dict.fromkeys(State, "waiting"),
    **dict.fromkeys(AT_WORK, "active"),
    **dict.fromkeys((State.WAITS_FOR_PERSON, State.INTERRUPTED, State.OUTDATED), "warned"),
    State.DONE: "passed",
    State.REFUSED: "failed",
}


@dataclass(frozen=True)
class ShownState:
    """The state of a phase on its page. `since`: a decision of a person, an earlier refusal, or the start of the stage."""

    kind: Kind
    word: State
    why: str = ""
    since: str = ""

    @property
    def mark(self) -> str:
        """A sign before the word: the state is readable without colours."""
        return MARKS[self.kind]


def state_of(
    files: PhaseFiles, record: PhaseRecord | None, *, parent: tuple[str, State] | None = None, queued: QueuedRun | None = None
) -> ShownState:
    """Return the state of a phase with the work that `files` name. The results come from `record`, or without a record from the files.

    `parent`: the parent's name and state, if the phase has a parent. `queued`: a due run of Prefect with the phase.
    """
    settled, decided = _settle(files)
    if record and (record.state != settled.state or record.state not in JUDGED):
        decided = f"Its verdict was: {settled.why}" if settled.state == State.REFUSED else ""
        settled = record.settled
    home, address = files.home, files.address
    now = state_now(home, address.run_name, address.phase, settled, work=files.work, parent=parent)
    if queued and now.state not in (*PENDING, State.DONE, State.WAITS_FOR_PERSON):
        now = PhaseState(state=State.QUEUED, why=f"the flow run '{queued.name}' waits for a worker", since=queued.since)
    kind = KINDS[now.state]
    if now.state == State.DONE and now.why:
        kind = "warned"
    elif now.state == State.OUTDATED and files.unreadable:
        kind = "failed"
    since = decided if now.state == settled.state and decided else f"Since {moment(now.since)}." if now.since else ""
    return ShownState(kind, now.state, now.words.partition(": ")[2], since)


def _settle(files: PhaseFiles) -> tuple[PhaseState, str]:
    """Return the state by the files, and the decision of a person as text."""
    stopped, whys, decided = None, list[str](), ""
    asked = [(files.rulings[gate], verdict, f"the verdict on its {GATE_WORDS[gate]}") for gate, verdict in files.judged]
    if not files.result and files.asked and isinstance(files.question, Verdict):
        asked.append((files.asked, files.question, "its training"))
    for ruling, verdict, name in asked:
        if ruling.decision or ruling.void:
            who = ruling.decision
            decided = f"{who.words.partition(' ')[0]} by {cut(who.who, 80)}: {cut(who.reason, 300)}" if who else cut(ruling.void, 300)
        if not ruling.lets_go_on:
            failures = failures_of(verdict)
            stopped = stopped or (State.WAITS_FOR_PERSON if ruling.state == "waits" else State.REFUSED)
            whys.append(f"{name}: {failures[0].worst.what if failures else 'it gives no reason'}")
    missing = [GATE_WORDS[gate] for gate in GATES if gate not in dict(files.judged)]
    is_complete = bool(files.result and files.evaluation and not missing)
    if stopped is None and files.unreadable:
        whys = list(files.unreadable)
    elif stopped is None and is_complete:
        warned = sum_counts(verdict.counts for _, verdict in files.judged).warned
        whys = [plural(warned, "warning")] if warned else ["a person approved it"] if decided else []
    elif stopped is None and files.result:
        whys = [f"not judged yet: {', '.join(missing)}" if missing else "not evaluated yet"]
    state = settle(stopped, is_complete=is_complete and not files.unreadable, is_outdated=bool(files.unreadable), is_begun=bool(files.run))
    return PhaseState(state=state, why="; ".join(whys), stop_step=files.stop_step), decided


def in_words(states: Iterable[ShownState]) -> str:
    """Count phases by state: `1 refused, 2 done, 3 not started`."""
    counts = Counter(state.word for state in states)
    return ", ".join(f"{count:,} {word}" for word, count in counts.items())


class Checked(NamedTuple):
    """A check of a recipe at a Unix time: phase → record with the stage at that time, or the problem of the check."""

    at: float
    records: dict[str, tuple[PhaseRecord, Stage | None]]
    problem: str = ""


def check(shelf: Shelf, found: Set) -> Checked:
    """Check all phases of the main line, and the branches in the home."""
    here = {name for name in shelf.phase_names(found) if shelf.home.run(found.run_name, name).exists()}
    branches = [phase.name for phase in found.recipe.phases if phase.branch and phase.name in here] if found.recipe else []
    records: dict[str, tuple[PhaseRecord, Stage | None]] = {}
    try:
        with resolving_once():
            for name in [found.target, *(f"{found.target}/{branch}" for branch in branches)]:
                resolved, _ = resolve(name, found.scale, str(shelf.home.root), reads_only=True)  # pyright: ignore[reportArgumentType]  # one of SCALES
                for phase in resolved.recipe.phases:
                    if phase.name not in records:
                        record, work = read_at_rest(resolved, phase)
                        records[phase.name] = record, work.stage
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
    queue: tuple[QueuedRun, ...] = ()
    _forms: tuple[float, tuple[RunForm, ...]] = (-FORMS_SECONDS, ())
    _to_check: dict[str, Set] = field(default_factory=dict)
    _wake: threading.Condition = field(default_factory=threading.Condition)
    _checks: bool = False
    _plans: dict[tuple[str, str, str], dict[str, Any]] = field(default_factory=dict)

    def latest_check(self, found: Set) -> Checked | None:
        """Return the last check, or None before the first. Request another check if it is old."""
        if found.recipe is None:
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
            with suppress(PhasewiseError):  # another user's server
                self.queue = tuple(queued_runs(self.shelf.home))
                if time.monotonic() - self._forms[0] > FORMS_SECONDS or not self._forms[1]:
                    self._forms = time.monotonic(), tuple(run_forms(self.shelf.home))
            self.checked[found.run_name] = check(self.shelf, found) if found.in_home else Checked(time.time(), {})
            with self._wake:
                self._to_check.pop(found.run_name, None)

    def place(self, path: Path) -> str:
        """Return a path relative to the home: published pages never show folders of this machine."""
        root = self.shelf.home.work
        return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name

    def record(self, found: Set, files: PhaseFiles) -> PhaseRecord | None:
        """Return the last record of a phase, or None before the first check, and after a new stage or decision."""
        checked = self.latest_check(found)
        record, stage = checked.records.get(files.address.phase, (None, None)) if checked else (None, None)
        if record is None or stage != files.work.stage:
            return None
        current = [files.rulings[gate].state for gate, verdict in files.judged if verdict in record.verdicts]
        return record if current == [ruling.state for ruling in record.rulings] else None

    def state(self, found: Set, files: PhaseFiles) -> ShownState:
        """Return the state of a phase."""
        before = self.shelf.phase(found, files.parent) if files.parent else None
        parent = (before.address.phase, self.state(found, before).word) if before else None
        return state_of(files, self.record(found, files), parent=parent, queued=self.queued(found, files))

    def queued(self, found: Set, files: PhaseFiles) -> QueuedRun | None:
        """Return a due run of Prefect for a phase, as of the last check. A run of a recipe has every phase of the main line."""
        names = (files.address.phase,) if files.phase is None or files.phase.branch else (files.address.phase, "")
        runs = (one for one in self.queue if (one.recipe, one.scale) == (found.target, found.scale) and one.phase in names)
        return next(runs, None)

    def prefect_page(self, path: str, **query: object) -> str:
        """Return the URL of a page of Prefect's present UI. Values are JSON, as its router reads them."""
        asked = urlencode({name: json.dumps(value) for name, value in query.items()})
        return f"{self.prefect}/v2/{path}" + (f"?{asked}" if asked else "")

    def forms_of(self, found: Set, phase: str) -> tuple[str, str] | None:
        """Return the URLs of Prefect's form for a run of the phase, or of `EVERY_PHASE`, and of the deployment. None if there is none."""
        for form in self._forms[1]:
            branches = [one.name for one in found.recipe.phases if one.branch] if found.recipe else []
            is_asked = not form.phase and phase in branches  # the form of the branches asks for one
            if (form.recipe, form.scale) == (found.target, found.scale) and (form.phase == phase or is_asked):
                path = f"deployments/deployment/{form.id}"
                return self.prefect_page(f"{path}/run", **({"parameters": {"phase": phase}} if is_asked else {})), self.prefect_page(path)
        return None

    def states(self, found: Set, phases: Iterable[PhaseFiles]) -> dict[str, ShownState]:
        """Return the states of phases, with parents before their children."""
        states: dict[str, ShownState] = {}
        for files in phases:
            parent = (files.parent, states[files.parent].word) if files.parent in states else None
            queued = self.queued(found, files)
            states[files.address.phase] = state_of(files, self.record(found, files), parent=parent, queued=queued)
        return states

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
