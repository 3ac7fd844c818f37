"""The trainer's check of the verdict on its data, with the decisions of people."""

from phasewise.trainer.base.decision import ruling_at
from phasewise.trainer.base.errors import VerdictError
from phasewise.trainer.base.identity import NotAsWritten, read_sealed
from phasewise.trainer.config import RunConfig
from phasewise.trainer.data.manifest import read_manifest


def check_verdict(run: RunConfig) -> None:
    """Raise `VerdictError` unless the verdict names exactly the caches of the run, and passes or was approved in its current state."""
    try:
        verdict = read_sealed(run.verdict)
    except FileNotFoundError:
        raise VerdictError(f"phase {run.phase} has no verdict at {run.verdict}: validate its data first.") from None
    except NotAsWritten as error:
        raise VerdictError(f"the verdict {error}: validate the data again.") from None
    judged = verdict.get("judged")
    if not isinstance(judged, dict):
        raise VerdictError(f"{run.verdict} is not a verdict, it must say `passes` and `judged`: validate the data again.")
    try:
        ruling = ruling_at(run.verdict, verdict)
    except (KeyError, TypeError, AttributeError) as error:
        raise VerdictError(f"{run.verdict} is not a verdict ({error!r}): validate the data again.") from None
    if not ruling.lets_go_on:
        if ruling.decision:
            raise VerdictError(f"the verdict {run.verdict} was {ruling.decision.words}. Phase {run.phase} must not train.")
        if ruling.state == "waits":
            void = f" ({ruling.void})" if ruling.void else ""
            raise VerdictError(
                f"the verdict {run.verdict} waits for a person's decision{void}: phase {run.phase} must not train before it."
            )
        raise VerdictError(f"the verdict {run.verdict} does not pass: phase {run.phase} must not train.")
    for component, folder in sorted(run.caches.items()):
        digest = read_manifest(folder).digest
        if judged.get(component) != digest:
            raise VerdictError(
                f"the verdict {run.verdict} was given for other bytes of {component}: it names "
                f"{str(judged.get(component))[:12]}, the cache is {digest[:12]}. Validate the data again."
            )
