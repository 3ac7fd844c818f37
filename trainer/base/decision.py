"""What people decided of a verdict, and whether the verdict then lets a phase go on. Everybody asks `ruling_of`, the trainer too.

A verdict lies in `GATE.json`, and what people decided of it in `GATE.decision.json` beside it. A decision counts for exactly the verdict
that was seen: where any part of that has changed since, it is void.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field, ValidationError

from phasewise.trainer.base.errors import VerdictError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import SEAL, NotAsWritten, digest_of_json, read_sealed
from phasewise.trainer.base.problems import in_one_line
from phasewise.trainer.base.storage import as_path

Need = Literal["nobody", "a person", "mending"]
"""What a verdict asks for: it passes as it is; a person may let it pass; only other data or another model can pass."""
State = Literal["passes", "approved", "waits", "rejected", "fails"]
UNSEEN = ("evidence", "tables", SEAL)
"""Fields that say where something lies, or name its bytes, and nothing of what was found."""


class Decision(Frozen):
    """One decision.

    Attributes:
        approves: the phase may go on; else it is refused.
        reason: why, in a sentence.
        who: the name of the person who decided.
        when: time in ISO format, UTC.
        seen: field of the verdict → digest of what it held when it was decided.
    """

    approves: bool
    reason: str = Field(pattern=r"\S")
    who: str = Field(pattern=r"\S")
    when: str = Field(pattern=r"^\d{4}-\d\d-\d\dT")
    seen: dict[str, str] = Field(min_length=1)

    @property
    def words(self) -> str:
        """Who decided what, when and why: `approved by Ada on 2026-11-23: the fall is chance`."""
        return f"{'approved' if self.approves else 'rejected'} by {self.who} on {self.when[:10]}: {self.reason}"


class Decisions(Frozen):
    """What a decision file holds: the one that counts, and those that it took the place of, oldest first."""

    latest: Decision
    before: tuple[Decision, ...] = ()


class Ruling(NamedTuple):
    """What follows from a verdict and what people decided of it.

    Attributes:
        decision: the one that counts; None where nobody is asked, or nobody has decided of this verdict.
        void: why a decision that is there does not count; empty where none is there, or it counts.
    """

    state: State
    decision: Decision | None = None
    void: str = ""

    @property
    def lets_go_on(self) -> bool:
        """Whether the phase may go on."""
        return self.state in ("passes", "approved")


def decision_path(verdict: str | Path) -> Path:
    """Where the decision on the verdict in a file is."""
    return as_path(verdict).with_suffix(".decision.json")


def ruling_at(path: str | Path, verdict: Mapping[str, Any] | None = None) -> Ruling:
    """The ruling on the verdict in a file.

    Args:
        verdict: its content, where that was read already.

    Raises:
        FileNotFoundError: there is no verdict.
        VerdictError: the verdict was changed after it was written, or the decision beside it does not read.
    """
    try:
        content = read_sealed(path) if verdict is None else verdict
    except NotAsWritten as error:
        raise VerdictError(f"{error}: judge again.") from None
    return ruling_of(content, read_decisions(path))


def ruling_of(verdict: Mapping[str, Any], decisions: Decisions | None) -> Ruling:
    """What follows from a verdict, as JSON, and the decisions on it. A verdict that needs nobody takes no notice of them."""
    match need_of(verdict):
        case "nobody":
            return Ruling("passes")
        case "mending":
            return Ruling("fails")
        case "a person":
            pass
    if decisions is None:
        return Ruling("waits")
    if changed := _changed_since(decisions.latest, verdict):
        return Ruling("waits", void=f"{decisions.latest.words}. That was decided of another verdict: {', '.join(changed)} changed since")
    return Ruling("approved" if decisions.latest.approves else "rejected", decisions.latest)


def need_of(verdict: Mapping[str, Any]) -> Need:
    """What the verdict, as JSON, asks for.

    A person may let pass what failed only if every check that failed is one that the recipe lists as `approvable`. A check that could not
    be made can never be let pass: nobody knows what it would have found. Warnings ask for a person where the recipe says so.
    """
    asked: Mapping[str, Any] = verdict.get("asks_people") or {}
    checks: Sequence[Mapping[str, Any]] = verdict.get("checks") or ()
    if verdict.get("passes") is True:
        warned = any(check["outcome"] == "failed" and check["severity"] == "warning" for check in checks)
        return "a person" if warned and asked.get("on_warnings") is True else "nobody"
    stopping = [check for check in checks if check["outcome"] == "broken" or _stops(check)]
    listed = {(one["table"], one["check"]) for one in asked.get("approvable") or ()}
    if not stopping or any(check["outcome"] == "broken" or (check["table"], check["name"]) not in listed for check in stopping):
        return "mending"
    return "a person"


def _stops(check: Mapping[str, Any]) -> bool:
    return check["outcome"] == "failed" and check["severity"] != "warning"


def read_decisions(verdict: str | Path) -> Decisions | None:
    """The decisions on the verdict in a file; None where nobody has decided.

    Raises:
        VerdictError: the file does not read as decisions. Nothing goes on by it.
    """
    path = decision_path(verdict)
    try:
        return Decisions.model_validate(read_sealed(path, may_lack_seal=True))
    except FileNotFoundError:
        return None
    except (ValidationError, ValueError) as error:
        raise VerdictError(
            f"{path} does not read as a decision: {in_one_line(error)}. Delete it and decide again with `phasewise approve RECIPE/PHASE`."
        ) from None


def seen_of(verdict: Mapping[str, Any]) -> dict[str, str]:
    """Field → digest of everything in a verdict that was seen when it was decided; where its evidence lies is none of it."""
    return {name: digest_of_json(_without_folders(name, value)) for name, value in verdict.items() if name not in UNSEEN}


def question_of(verdict: Mapping[str, Any]) -> str:
    """Names the question that a verdict puts to people: the digest of all that they are shown of it."""
    return digest_of_json(seen_of(verdict))


def _changed_since(decision: Decision, verdict: Mapping[str, Any]) -> list[str]:
    now = seen_of(verdict)
    return sorted(name for name in {*now, *decision.seen} if now.get(name) != decision.seen.get(name))


def _without_folders(name: str, value: Any) -> Any:
    """What was judged may be named by a path: a home that is moved holds the same."""
    if name != "judged":
        return value
    return sorted([key.rpartition("/")[2] if key.startswith("/") or "://" in key else key, digest] for key, digest in value.items())
