"""The state of a phase in words: what its files say, and whether that still holds."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from phasewise.flows.record import PhaseRecord
from phasewise.flows.site.address import GATE_WORDS, GATES, Gate
from phasewise.tasks.report.html import clipped
from phasewise.flows.site.files import Damaged
from phasewise.flows.site.shelf import PhaseFiles
from phasewise.trainer.base.decision import Decision, Ruling
from phasewise.trainer.base.wording import plural
from phasewise.validations.outcomes import sum_counts
from phasewise.validations.report.failures import failures_of
from phasewise.validations.verdict import Verdict

Kind = Literal["passed", "warned", "failed", "active", "waiting"]
MARKS: dict[Kind, str] = {"passed": "✓", "warned": "!", "failed": "✗", "active": "●", "waiting": "○"}


@dataclass(frozen=True)
class State:
    """A phase's state.

    Attributes:
        word: for people: `done`, `refused`, `training`.
        why: what a reader must know beside the word; empty where all is well.
        since: what has changed since it was found out, where it is out of date.
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
    """The state that its files give it; a record that finds something out of date has the last word on what is done."""
    for gate, verdict in files.judged:
        if not verdict.passes or not files.rulings[gate].lets_go_on:
            return _failed(files, gate, verdict, record)
    if asks := _asks(files):
        return asks
    if record and record.state not in ("done", "refused", "not reached"):
        return State("warned", record.state, "; ".join(record.lacks))
    if files.is_alive(time.time() if now is None else now):
        return State("active", "training")
    unread = [str(one) for one in files.verdicts.values() if isinstance(one, Damaged)]
    if files.damaged or unread:
        return State("failed", "damaged", "; ".join((*files.damaged, *unread)))
    said = _said(files)
    if record and record.state != "done" and said.word not in ("not begun", "half trained"):
        return State("warned", "out of date" if said.word.startswith("done") else said.word, "; ".join(record.lacks))
    return said


def _failed(files: PhaseFiles, gate: Gate, verdict: Verdict, record: PhaseRecord | None) -> State:
    """Of a phase with a verdict that fails, or that a person has to decide. A decision counts for the verdict that it was taken of."""
    failures = failures_of(verdict)
    what = "fails" if not verdict.passes else "warns"
    why = f"the verdict on its {GATE_WORDS[gate]} {what}: {failures[0].worst.what if failures else 'it gives no reason'}"
    if record and verdict not in record.verdicts:
        return State("failed", "refused, out of date", why, f"Since then: {'; '.join(record.lacks)}.")
    ruling = files.rulings[gate]
    decided = ruling.decision
    said = f"{clipped(decided.who, 80)}: {clipped(decided.reason, 300)}" if decided else clipped(ruling.void, 300)
    match ruling.state:
        case "approved":
            return State("warned", "let pass by a person", why, said)
        case "waits":
            return State("warned", "waits for a person", why, said)
        case "rejected":
            return State("failed", "rejected by a person", why, said)
        case _:
            return State("failed", "refused", why)


def _asks(files: PhaseFiles) -> State | None:
    """Of a phase whose training asks a person, or was rejected; once approved, it goes on as any other."""
    if files.result or files.asked is None or not isinstance(files.question, Verdict):
        return None
    why = f"its training: {files.question.reasons[0].what if files.question.reasons else 'it gives no reason'}"
    match files.asked:
        case Ruling(state="waits", void=void):
            return State("warned", "waits for a person", why, clipped(void, 300))
        case Ruling(state="rejected", decision=Decision() as decided):
            return State("failed", "rejected by a person", why, f"{clipped(decided.who, 80)}: {clipped(decided.reason, 300)}")
        case _:
            return None


def _said(files: PhaseFiles) -> State:
    """What the files alone say, of a phase that is neither refused nor at work."""
    judged = dict(files.judged)
    if files.result and files.evaluation and len(judged) == len(GATES):
        warned = sum_counts(verdict.counts for verdict in judged.values()).warned
        return State("warned", f"done, {plural(warned, 'warning')}") if warned else State("passed", "done")
    if files.result:
        missing = [GATE_WORDS[gate] for gate in GATES if gate not in judged]
        return State("waiting", "trained", f"not judged yet: {', '.join(missing)}" if missing else "not evaluated yet")
    if files.run:
        return State("warned", "half trained", "no sign of life for some time; started again, it goes on from its last checkpoint")
    if "data" in judged:
        return State("waiting", "data judged", "it has not begun to train")
    return State("waiting", "not begun")


def in_words(states: Iterable[State]) -> str:
    """`6 done`, `1 refused, 2 done, 3 not begun`: how many phases are in which state."""
    counts: dict[str, int] = {}
    for state in states:
        word = state.word.partition(",")[0]
        counts[word] = counts.get(word, 0) + 1
    return ", ".join(f"{count:,} {word}" for word, count in counts.items())
