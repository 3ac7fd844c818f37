"""The material of every page: the home, the states of its phases, and whether they still hold, which is checked in the background."""

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
from phasewise.tasks.report.html import GATE_WORDS, clipped, environment
from phasewise.trainer.base.decision import Ruling
from phasewise.trainer.base.wording import plural
from phasewise.validations.outcomes import sum_counts
from phasewise.validations.failures import failures_of
from phasewise.validations.verdict import Verdict

Kind = Literal["passed", "warned", "failed", "active", "waiting"]
MARKS: dict[Kind, str] = {"passed": "✓", "warned": "!", "failed": "✗", "active": "●", "waiting": "○"}
CHECKING = "The page shows what the files say. Whether that still holds is being checked, and shown in a few seconds."
UNKNOWN = (
    "This installation does not know the recipe, so the page shows what its files say. Whether that still holds for the sources, the code "
    "and the limits of now is not checked."
)
RECHECK_SECONDS = 10.0


@dataclass(frozen=True)
class State:
    """A phase's state.

    Attributes:
        word: for people: `done`, `refused`, `training`.
        why: the reason; empty if all is well.
        since: changes since the state was found, if it is out of date.
    """

    kind: Kind
    word: str
    why: str = ""
    since: str = ""

    @property
    def mark(self) -> str:
        """The sign before the word: no colour is needed to read it."""
        return MARKS[self.kind]


def state_of(files: PhaseFiles, record: PhaseRecord | None, *, now: float | None = None) -> State:
    """The state by the files; a record that finds something out of date has the last word on finished phases."""
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
    if not files.result and files.asked is not None and isinstance(files.question, Verdict):
        reasons = files.question.reasons
        asked = _ruled(files.asked, f"its training: {reasons[0].what if reasons else 'it gives no reason'}")
        if asked and files.asked.state in ("waits", "rejected"):  # once approved, it goes on as any other
            return asked
    if record and record.state not in ("done", "refused", "not reached"):
        return State("warned", record.state, "; ".join(record.lacks))
    if files.is_alive(time.time() if now is None else now):
        return State("active", "training")
    unread = [str(one) for one in files.verdicts.values() if isinstance(one, Damaged)]
    if files.damaged or unread:
        return State("failed", "damaged", "; ".join((*files.damaged, *unread)))
    said = _by_files(files)
    if record and record.state != "done" and said.word not in ("not begun", "half trained"):
        return State("warned", "out of date" if said.word.startswith("done") else said.word, "; ".join(record.lacks))
    return said


def _ruled(ruling: Ruling, why: str) -> State | None:
    """The state after a person's decision, or while one is awaited; None if the checks alone decide."""
    decided = ruling.decision
    said = f"{clipped(decided.who, 80)}: {clipped(decided.reason, 300)}" if decided else clipped(ruling.void, 300)
    words: dict[str, tuple[Kind, str]] = {
        "approved": ("warned", "let pass by a person"),
        "waits": ("warned", "waits for a person"),
        "rejected": ("failed", "rejected by a person"),
    }
    return State(*words[ruling.state], why, said) if ruling.state in words else None


def _by_files(files: PhaseFiles) -> State:
    """The state of a phase that is neither refused nor at work."""
    judged = dict(files.judged)
    if files.result and files.evaluation and len(judged) == len(GATES):
        warned = sum_counts(verdict.counts for verdict in judged.values()).warned
        return State("warned", f"done, {plural(warned, 'warning')}") if warned else State("passed", "done")
    if files.result:
        missing = [GATE_WORDS[gate] for gate in GATES if gate not in judged]
        return State("waiting", "trained", f"not judged yet: {', '.join(missing)}" if missing else "not evaluated yet")
    if files.run:
        return State("warned", "half trained", "no sign of life for some time; started again, it goes on from its last checkpoint")
    return State("waiting", "data judged", "it has not begun to train") if "data" in judged else State("waiting", "not begun")


def in_words(states: Iterable[State]) -> str:
    """The number of phases in each state: `1 refused, 2 done, 3 not begun`."""
    counts: dict[str, int] = {}
    for state in states:
        word = state.word.partition(",")[0]
        counts[word] = counts.get(word, 0) + 1
    return ", ".join(f"{count:,} {word}" for word, count in counts.items())


class Checked(NamedTuple):
    """The result of checking a recipe at a time in seconds since 1970: phase → its record, and why nothing could be checked."""

    at: float
    records: dict[str, PhaseRecord]
    problem: str = ""


class Checker:
    """Checks recipes in a thread of its own, one after the other; a page never waits for it."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._found: dict[str, Checked] = {}
        self._wanted: dict[str, Set] = {}
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None

    def latest(self, found: Set) -> Checked | None:
        """The last result; None before the first one. An old result is checked again."""
        if found.recipe is None or not found.in_home:
            return None
        checked = self._found.get(found.run_name)
        if checked is None or time.time() - checked.at > RECHECK_SECONDS:
            with self._wake:
                self._wanted[found.run_name] = found
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, daemon=True, name="check the home")
                    self._thread.start()
                self._wake.notify()
        return checked

    def now(self, sets: Iterable[Set]) -> None:
        """Check in this thread."""
        for found in sets:
            if found.recipe is not None and found.in_home:
                self._found[found.run_name] = check(self._shelf, found)

    def _work(self) -> None:
        while True:
            with self._wake:
                while not self._wanted:
                    self._wake.wait()
                found = next(iter(self._wanted.values()))
            self._found[found.run_name] = check(self._shelf, found)
            with self._wake:
                self._wanted.pop(found.run_name, None)


def check(shelf: Shelf, found: Set) -> Checked:
    """Check every phase of the main line, and the branches in the home."""
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
    except Exception as error:  # a home may hold anything, and a thread that ended would leave every page "being checked"
        return Checked(time.time(), records, str(error) or type(error).__name__)
    return Checked(time.time(), records)


@dataclass
class Site:
    """A home to look at.

    Attributes:
        prefect: the address of Prefect's UI, if it is known.
        is_own_prefect: whether that is the server of this home, which a link may give its auth string (`flows.own_address.opened`).
        reads_within: seconds for which a page may read metrics before it is drawn from a part of them.
        written: ISO time at which the pages were written as files.
    """

    shelf: Shelf
    prefect: str = ""
    is_own_prefect: bool = False
    reads_within: float = 0.25
    written: str = ""
    metrics: Metrics = field(default_factory=Metrics)
    checker: Checker = field(init=False)
    _plans: dict[tuple[str, str, str], dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.checker = Checker(self.shelf)

    def place(self, path: Path) -> str:
        """A path in the home: pages that are published name no folder of this machine."""
        root = self.shelf.home.work
        return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name

    def record(self, found: Set, phase: str) -> PhaseRecord | None:
        """The last record of a phase; None before the first check."""
        checked = self.checker.latest(found)
        return checked.records.get(phase) if checked else None

    def state(self, found: Set, files: PhaseFiles) -> State:
        """The state of a phase."""
        return state_of(files, self.record(found, files.address.phase))

    def holds(self, found: Set) -> str:
        """A note on how far the states of a recipe can be relied on; empty if everything was checked."""
        if not found.in_home:
            return ""
        if found.recipe is None:
            return UNKNOWN
        checked = self.checker.latest(found)
        if checked is None:
            return CHECKING
        return f"Whether the results still hold cannot be checked: {checked.problem}" if checked.problem else ""

    def plan(self, found: Set, phase: str) -> dict[str, Any] | None:
        """Every number of a phase, as in `phasewise show`; None if its recipe is not known."""
        if found.recipe is None or phase not in {one.name for one in found.recipe.phases}:
            return None
        key = (found.name, found.scale, phase)
        if key not in self._plans:
            described = describe_phase(found.recipe, found.recipe.phase(phase))
            self._plans[key] = described | {"tokenizer": describe_recipe(found.recipe)["tokenizer"]}
        return self._plans[key]

    def render(self, template: str, links: Links, **values: Any) -> str:
        """A page."""
        return environment().get_template(template).render(links=links, site=self, **values)

    def part(self, name: str, links: Links, **values: Any) -> str:
        """A part of a page, for a reader who has the rest of it already."""
        module = environment().get_template("parts.html").make_module({"links": links, "site": self})
        return str(getattr(module, name)(**values))
