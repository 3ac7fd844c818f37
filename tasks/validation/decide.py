"""Decisions of people on verdicts."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from phasewise.tasks.locks import held
from phasewise.trainer.base.decision import Decision, Decisions, decision_path, need_of, read_decisions, seen_of
from phasewise.trainer.base.errors import VerdictError
from phasewise.trainer.base.identity import NotAsWritten, digest_of_json, read_sealed, write_sealed


def decide(path: Path, *, approves: bool, reason: str, who: str, question: str | None = None) -> Decision:
    """Write a decision next to the verdict, after earlier decisions.

    `question` is the digest of `seen_of` the verdict when the person saw it. If it has changed, or the verdict needs no decision of a
    person, raise `VerdictError`.
    """
    with held(path.with_suffix(".decision.lock")):
        verdict = read_verdict_file(path)
        need = need_of(verdict)
        if need == "nobody":
            raise VerdictError(f"the verdict {path} passes: there is nothing to decide.")
        if need == "mending":
            reasons = verdict.get("reasons") or [{"what": "see its checks"}]
            raise VerdictError(
                f"the verdict {path} fails by a check that people can't waive: {reasons[0]['what']}. People can waive only checks that the "
                "recipe lists as `approvable`. Correct the cause and run again."
            )
        if question is not None and question != digest_of_json(seen_of(verdict)):
            raise VerdictError(f"{path} changed since it was shown, so the decision of {who} does not count: look at it again and decide.")
        before = read_decisions(path)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        decision = Decision(approves=approves, reason=" ".join(reason.split()), who=" ".join(who.split()), when=now, seen=seen_of(verdict))
        kept = (*before.before, before.latest) if before else ()
        write_sealed(decision_path(path), Decisions(latest=decision, before=kept).model_dump(mode="json"))
    return decision


def read_verdict_file(path: Path) -> dict[str, Any]:
    """Return a verdict as JSON, or raise `VerdictError` if it is missing or was changed."""
    try:
        return read_sealed(path)
    except FileNotFoundError:
        raise VerdictError(f"there is no verdict at {path}, so there is nothing to decide: run the phase first.") from None
    except NotAsWritten as error:
        raise VerdictError(f"{error}: run the phase again, which judges again.") from None
