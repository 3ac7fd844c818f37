"""Decisions of people on a verdict, and whether a phase may then continue.

`GATE.decision.json` is valid for exactly the content of `GATE.json` that was seen: if any part has changed since, the decision is void.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field, ValidationError

from phasewise.trainer.base.errors import VerdictError
from phasewise.trainer.base.frozen import Frozen, in_one_line
from phasewise.trainer.base.identity import SEAL, NotAsWritten, digest_of_json, read_sealed
from phasewise.trainer.base.storage import as_path

Need = Literal["nobody", "a person", "mending"]
"""A verdict passes as it is; a person may waive it; or only other data or another model can pass."""
State = Literal["passes", "approved", "waits", "rejected", "fails"]
UNSEEN = ("evidence", "tables", SEAL)  # fields with the location or the digest of evidence, and no finding


class Decision(Frozen):
    """One decision."""

    approves: bool  # whether the phase may continue
    reason: str = Field(pattern=r"\S")
    who: str = Field(pattern=r"\S")
    when: str = Field(pattern=r"^\d{4}-\d\d-\d\dT")  # time in ISO format, UTC
    seen: dict[str, str] = Field(min_length=1)  # field of the decided verdict → digest of the field

    @property
    def words(self) -> str:
        """Who decided, when and why: `approved by Ada on 2026-11-23: the fall is chance`."""
        return f"{'approved' if self.approves else 'rejected'} by {self.who} on {self.when[:10]}: {self.reason}"


class Decisions(Frozen):
    """The content of a decision file: the valid decision, and earlier decisions, oldest first."""

    latest: Decision
    before: tuple[Decision, ...] = ()


class Ruling(NamedTuple):
    """The consequence of a verdict and its decision."""

    state: State
    decision: Decision | None = None  # the valid decision. None if the verdict needs no person, or has no decision
    void: str = ""  # why an existing decision does not count

    @property
    def lets_go_on(self) -> bool:
        """Whether the phase may continue."""
        return self.state in ("passes", "approved")


def decision_path(verdict: str | Path) -> Path:
    """Return the path of the decision on the verdict in a file."""
    return as_path(verdict).with_suffix(".decision.json")


def ruling_at(path: str | Path, verdict: Mapping[str, Any] | None = None) -> Ruling:
    """Return the ruling on the verdict in a file. Raises VerdictError if the verdict was changed, or its decision is not readable."""
    try:
        content = read_sealed(path) if verdict is None else verdict
    except NotAsWritten as error:
        raise VerdictError(f"{error}: judge again.") from None
    return ruling_of(content, read_decisions(path))


def ruling_of(verdict: Mapping[str, Any], decisions: Decisions | None) -> Ruling:
    """Return the ruling on a verdict, as JSON. A verdict that needs no person ignores decisions."""
    need = need_of(verdict)
    if need != "a person":
        return Ruling("passes" if need == "nobody" else "fails")
    if decisions is None:
        return Ruling("waits")
    latest, now = decisions.latest, seen_of(verdict)
    if changed := sorted(name for name in {*now, *latest.seen} if now.get(name) != latest.seen.get(name)):
        return Ruling("waits", void=f"{latest.words}. That was decided of another verdict: {', '.join(changed)} changed since")
    return Ruling("approved" if latest.approves else "rejected", latest)


def need_of(verdict: Mapping[str, Any]) -> Need:
    """Return the need of a verdict, as JSON.

    A person may waive a failure only if the recipe lists every failed check as `approvable`. A check that could not be made can never be
    waived: its finding is unknown. Warnings need a person if the recipe has `on_warnings`.
    """
    asked: Mapping[str, Any] = verdict.get("asks_people") or {}
    checks: Sequence[Mapping[str, Any]] = verdict.get("checks") or ()
    failed = [check for check in checks if check["outcome"] == "failed"]
    if verdict.get("passes") is True:
        warned = any(check["severity"] == "warning" for check in failed)
        return "a person" if warned and asked.get("on_warnings") is True else "nobody"
    stopping = [check for check in failed if check["severity"] != "warning"]
    listed = {(one["table"], one["check"]) for one in asked.get("approvable") or ()}
    is_broken = any(check["outcome"] == "broken" for check in checks)
    is_waivable = stopping and all((check["table"], check["name"]) in listed for check in stopping)
    return "a person" if is_waivable and not is_broken else "mending"


def read_decisions(verdict: str | Path) -> Decisions | None:
    """Return the decisions on the verdict in a file, or None. Raises VerdictError if the file is not readable as decisions."""
    path = decision_path(verdict)
    try:
        return Decisions.model_validate(read_sealed(path))
    except FileNotFoundError:
        return None
    except (ValidationError, ValueError) as error:
        raise VerdictError(
            f"{path} does not read as a decision: {in_one_line(error)}. Delete it and decide again with `phasewise approve RECIPE/PHASE`."
        ) from None


def seen_of(verdict: Mapping[str, Any]) -> dict[str, str]:
    """Return field → digest of everything in a verdict that a person sees. Folders of `judged` don't count: a home may be moved."""
    seen = {name: value for name, value in verdict.items() if name not in UNSEEN}
    if "judged" in seen:
        judged: Mapping[str, Any] = seen["judged"]
        seen["judged"] = sorted(
            [key.rpartition("/")[2] if key.startswith("/") or "://" in key else key, digest] for key, digest in judged.items()
        )
    return {name: digest_of_json(value) for name, value in seen.items()}
