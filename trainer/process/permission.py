"""Nothing trains on bytes that nobody judged: the trainer asks for the verdict itself."""

from trainer.base.errors import VerdictError
from trainer.base.storage import read_json
from trainer.config import RunConfig
from trainer.data.manifest import read_manifest


def check_permission(run: RunConfig) -> None:
    """Refuse unless the verdict passes and names exactly the caches that the run would read.

    Raises:
        VerdictError: no verdict, one that fails, or one that was given for other bytes.
    """
    try:
        verdict = read_json(run.verdict)
    except FileNotFoundError:
        raise VerdictError(f"phase {run.phase} has no verdict at {run.verdict}: validate its data first.") from None
    except ValueError as error:
        raise VerdictError(f"the verdict {run.verdict} does not read as JSON ({error}): validate the data again.") from None
    if not isinstance(verdict, dict) or not isinstance(verdict.get("judged"), dict):
        raise VerdictError(f"{run.verdict} is not a verdict, it must say `passes` and `judged`: validate the data again.")
    if verdict.get("passes") is not True:
        raise VerdictError(f"the verdict {run.verdict} does not pass: phase {run.phase} must not train.")
    judged: dict[str, str] = verdict["judged"]
    for component, folder in sorted(run.caches.items()):
        digest = read_manifest(folder).digest
        if judged.get(component) != digest:
            raise VerdictError(
                f"the verdict {run.verdict} was given for other bytes of {component}: it names "
                f"{str(judged.get(component))[:12]}, the cache is {digest[:12]}. Validate the data again."
            )
