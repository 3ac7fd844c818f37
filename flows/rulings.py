"""What a verdict means for its phase: it goes on, it is refused, or it waits for a person."""

from pathlib import Path

from phasewise.flows.recipes.phase import Phase
from phasewise.flows.resolved import Resolved
from phasewise.tasks.site import gate_address
from phasewise.trainer.base.decision import Ruling, read_decisions, ruling_of
from phasewise.trainer.base.errors import VerdictError, WaitsForPerson
from phasewise.validations.report.failures import lines_of
from phasewise.validations.verdict import Verdict


def raise_unless_let_pass(verdict: Verdict, path: str | Path, approving: str) -> None:
    """Turn a verdict that does not let its phase go on into the error that ends it.

    Args:
        path: the verdict's file; what people decided of it is beside it.
        approving: the command by which a person decides.

    Raises:
        WaitsForPerson: a person may let it pass, and nobody has decided yet; it says which command does.
        VerdictError: it fails, in three lines: what is wrong and where, what was found against which limit, what to do; and where the
            page of the verdict is, if it is served. Or it was rejected, with the reason and the name.
    """
    ruling = ruling_of(verdict.model_dump(mode="json"), read_decisions(path))
    if ruling.lets_go_on:
        return
    lines = list(lines_of(verdict))
    if page := gate_address(verdict.subject, Path(path).stem):
        lines.append(f"  see {page}")
    if ruling.decision:
        raise VerdictError("\n".join([f"{verdict.subject} was {ruling.decision.words}", *lines]))
    if ruling.state == "waits":
        lines += [f"  void: {ruling.void}"] if ruling.void else []
        raise WaitsForPerson("\n".join([*lines, f"  a person decides: {approving}"]), str(path))
    raise VerdictError("\n".join(lines))


def approving_command(resolved: Resolved, phase: Phase) -> str:
    """What to type so that the phase goes on, or is refused."""
    return f"`phasewise approve {resolved.recipe_name}/{phase.name} {resolved.options} --reason TEXT`, or the same with --reject"


def why_not(verdict: Verdict, ruling: Ruling, path: str | Path) -> str:
    """Why a verdict does not let its phase go on, to follow its name: `fails: next_word is at its baseline`."""
    worst = verdict.reasons[0].what if verdict.reasons else f"see {path}"
    match ruling.state:
        case "waits":
            return f"waits for a person: {worst}{f' ({ruling.void})' if ruling.void else ''}"
        case "rejected" if ruling.decision:
            return f"was {ruling.decision.words}"
        case _:
            return f"fails: {worst}"
