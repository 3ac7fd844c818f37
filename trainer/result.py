"""`result.json`: what a phase came to, with a digest of itself, so that a damaged one is not taken for another result."""

from pathlib import Path
from typing import Any

from trainer.base.run_folder import RunFolder
from trainer.base.storage import digest_of_json, read_json

DIGEST = "digest"


def with_digest(result: dict[str, Any]) -> dict[str, Any]:
    """As it is written."""
    return {**result, DIGEST: digest_of_json(result)}


def read_result(folder: Path) -> dict[str, Any] | None:
    """The result of a run's folder; None where there is none, or what is there is not as it was written.

    One of before has no digest, and is taken as it is. A result that is lost is written again by the trainer, from the last checkpoint.
    """
    try:
        found = read_json(RunFolder(folder).result)
    except (FileNotFoundError, ValueError):
        return None
    if not isinstance(found, dict):
        return None
    claimed = found.get(DIGEST)
    rest = {name: value for name, value in found.items() if name != DIGEST}
    return found if claimed is None or claimed == digest_of_json(rest) else None
