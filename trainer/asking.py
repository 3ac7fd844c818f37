"""The question that a training puts to people where its loss jumped, or is no number, and its recovery is `ask`; and what they answered.

The question is `recovery.json` of the run's folder. It has the form of a verdict that a person may let pass, so whoever shows verdicts,
decides of them, and reads decisions does so with it. What was decided is in `recovery.decision.json` beside it.

A decision counts for what was seen: the run, the step, what was found, the checkpoint to go back to, and what was passed over before. The
question is made again from the run's folder as it is now; where the two differ, the question is no longer open.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from phasewise.trainer.base.decision import Ruling, question_of, read_decisions, ruling_of
from phasewise.trainer.base.errors import CheckpointError
from phasewise.trainer.base.identity import digest_of_file, digest_of_json, read_sealed
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.checkpoints.files import DIGESTS_NAME, is_committed, saved_steps
from phasewise.trainer.config import RunConfig, sequences_between
from phasewise.trainer.passed_over import PassedOver, window_of

TABLE, CHECK = "recovery", "expect_no_update_that_must_not_be_kept"
ASKS = "Every update has a loss and norms that are numbers, and no loss above the recipe's limit."


class Asked(NamedTuple):
    """A question, and what follows from what people decided of it.

    Attributes:
        step: the update that made this step must not be kept.
        what: what was found, in words.
    """

    step: int
    what: str
    ruling: Ruling


def question(run: RunConfig, step: int, what: str, passed_over: PassedOver) -> dict[str, Any]:
    """What is asked, in the form of a verdict. It names no place, so a home may be moved; only where its evidence lies is a path."""
    assert run.recovery is not None
    window = window_of(run, step, passed_over)
    sequences = sequences_between(run.batch, *window)
    check = {"name": CHECK, "table": TABLE, "asks": ASKS, "severity": "critical", "passes": False, "outcome": "failed", "observed": what}
    reason = {
        "expectation": CHECK,
        "severity": "critical",
        "what": f"{what} at step {step}",
        "found": what,
        "limit": _limit(run),
        "where": f"step {step} of {run.stop_step}",
        "what_to_do": f"Approve to go back to step {window.first} and to pass over {window} for good, with {sequences:,} sequences. Reject "
        "to stop the phase.",
    }
    return {
        "subject": f"{run.recipe}/{run.scale}/{run.phase} training",
        "suite": TABLE,
        "suite_version": "1",
        "passes": False,
        "judged": _checkpoint(run, window.first),
        "decided_by": {"run": run.digest, "passed over before": digest_of_json(passed_over.as_json())},
        "thresholds": {**run.recovery.model_dump(mode="json"), "step": step, "window": list(window)},
        "accepts": [],
        "asks_people": {"approvable": [{"table": TABLE, "check": CHECK, "phases": None}], "on_warnings": False},
        "reasons": [reason],
        "checks": [{**check, "accepted": []}],
        "evidence": run.output,
        "tables": {},
        "notes": [],
    }


def asked(run: RunConfig, passed_over: PassedOver) -> Asked | None:
    """The question that is open in the run's folder. None where nothing is asked, or it was asked of something else than is there now.

    Raises:
        CheckpointError: the question does not read.
        VerdictError: the decision beside it does not read.
    """
    path = RunFolder.at(run.output).question
    if run.recovery is None or run.recovery.action != "ask":
        return None
    try:
        written: Mapping[str, Any] = read_sealed(path, may_lack_seal=True)
        step, what = int(written["thresholds"]["step"]), str(written["reasons"][0]["found"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise CheckpointError(f"{path} must say what a person is asked, and does not read ({error}): delete it, and start again.") from None
    if not run.start_step < step <= run.stop_step:
        return None
    now = question(run, step, what, passed_over)
    if question_of(now) != question_of(written):
        return None
    return Asked(step, what, ruling_of(now, read_decisions(path)))


def _limit(run: RunConfig) -> str:
    assert run.recovery is not None
    limit = run.recovery.max_loss
    return "a finite number" if limit is None else f"mean + {limit.sigmas:g} deviations over up to {limit.window} updates"


def _checkpoint(run: RunConfig, step: int) -> dict[str, str]:
    """The newest checkpoint that is no later than the step, by the digest of all its files."""
    folder = RunFolder.at(run.output).checkpoints
    for saved in reversed(saved_steps(folder)):
        if saved <= step and is_committed(folder / str(saved)):
            return {f"checkpoint of step {saved}": digest_of_file(folder / str(saved) / DIGESTS_NAME)}
    return {f"the start at step {run.start_step}": run.digest}
