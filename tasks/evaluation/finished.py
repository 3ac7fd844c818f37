"""The evaluation that a phase has already. Importing this module is cheap."""

from pathlib import Path
from typing import Any

from tasks.evaluation.benchmark_folder import read_benchmarks
from trainer.config import RunConfig
from trainer.storage import read_json

EVALUATION_NAME = "evaluation.json"


def finished_evaluation(run: RunConfig, params_digest: str, benchmarks: Path) -> dict[str, Any] | None:
    """The evaluation of exactly these weights by exactly these benchmarks, if there is one.

    Raises:
        DataError: the benchmarks are missing, or are not what their manifest says.
    """
    path = Path(run.output) / EVALUATION_NAME
    if not path.exists():
        return None
    evaluation = read_json(path)
    wanted = {"params_digest": params_digest, "benchmarks_digest": read_benchmarks(benchmarks).digest}
    return evaluation if {name: evaluation.get(name) for name in wanted} == wanted else None
