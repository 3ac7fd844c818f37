"""What was measured of a suite, in a file beside the checkpoint: each benchmark under the key of everything that decides it."""

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

from phasewise.tasks.evaluation.suites.prepare import Prepared
from phasewise.tasks.evaluation.suites.result import Answer, SuiteResult
from phasewise.trainer.base.identity import NotAsWritten, code_digest, digest_of_json, read_sealed, write_sealed

MEASURING = (
    "tasks/evaluation/suites/*.py",
    "tasks/data/template.py",
    *(
        f"tasks/evaluation/{name}.py"
        for name in ("generation", "language_model", "needles", "requests", "rows", "sampling", "scoring", "setting")
    ),
)
"""The files that decide what is measured. The model's own code, which is the trainer's, is left out on purpose."""

CHECKPOINTS = "checkpoints"


class Kept(TypedDict):
    """A benchmark's result under its key, with the digest of the weights that gave it."""

    key: str
    params_digest: str
    result: SuiteResult
    answers: list[Answer]


def kept_path(place: Path, suite: str, weights: str, limit: int | None) -> Path:
    """The file of a suite, named by suite and weights, and by a limit.

    It is beside the checkpoint. A run's checkpoints are in a folder where nothing else belongs: there it is beside that folder.
    """
    name = f"{suite}-{weights}" if limit is None else f"{suite}-{weights}-first-{limit}"
    of_run = place.parent.name == CHECKPOINTS
    folder = place.parents[1] / "evaluations" / place.name if of_run else place.with_name(f"{place.name}.evaluations")
    return folder / f"{name}.json"


def result_key(prepared: Prepared, model: Mapping[str, Any], items_digest: str, limit: int | None) -> str:
    """The digest of everything that decides a result.

    Args:
        model: what names the model: its weights, its computation, its tokenizer.
        items_digest: of the items and of what examples come from.
    """
    return digest_of_json(
        {
            "benchmark": prepared.asked.label,
            "model": model,
            "items": items_digest,
            "definition": prepared.definition_digest,
            "limit": limit,
            "code": measuring_code(),
        }
    )


def read_kept(path: Path, params_digest: str) -> dict[str, Kept]:
    """Benchmark → what was measured of it with these weights; empty where nothing was. What was edited since is not among them."""
    try:
        benchmarks: dict[str, Kept] = read_sealed(path)["benchmarks"]
    except (FileNotFoundError, NotAsWritten, KeyError):
        return {}
    return {label: kept for label, kept in benchmarks.items() if kept["params_digest"] == params_digest}


def write_kept(path: Path, about: Mapping[str, Any], kept: Mapping[str, Kept], order: Iterable[str]) -> None:
    """All that is measured so far, in the suite's order. A cut-off evaluation goes on from it."""
    benchmarks = {label: kept[label] for label in order if label in kept}
    write_sealed(path, {**about, "benchmarks": benchmarks})


@cache
def measuring_code() -> str:
    """Digest of what the code of `MEASURING` does."""
    return code_digest(*MEASURING)
