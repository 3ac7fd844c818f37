"""Items that come from the hub: named by their content once they are loaded."""

import tempfile
from pathlib import Path
from typing import Any

from phasewise.tasks.evaluation.suites.harness import load_tasks, quiet_harness
from phasewise.tasks.evaluation.suites.prepare import Hole, Prepared
from phasewise.trainer.base.identity import digest_of_json


def digest_of_hub_items(prepared: Prepared) -> str | Hole:
    """Digest of the items of all parts and of what their examples come from, or why they cannot be had."""
    with tempfile.TemporaryDirectory(prefix="phasewise-suite-") as temporary, quiet_harness(offline=False):
        tasks = load_tasks(prepared, Path(temporary))
        if isinstance(tasks, Hole):
            return tasks
        return digest_of_json([[name, _rows(task.eval_docs), _rows(task.fewshot_docs())] for name, task in sorted(tasks.items())])


def _rows(rows: Any) -> list[str]:
    return [repr(sorted(dict(row).items())) for row in rows]
