"""What is kept of a suite holds for the weights that gave it, and as it was written."""

import json
from pathlib import Path
from typing import Any

from phasewise.tasks.evaluation.suites.definition import Asked
from phasewise.tasks.evaluation.suites.kept import Kept, read_kept, write_kept
from phasewise.tasks.evaluation.suites.known import find_definition
from phasewise.tasks.evaluation.suites.result import hole


def write(path: Path) -> Kept:
    result = hole(find_definition("arc_easy"), Asked(benchmark="arc_easy", shots=0, source="made up"), "") | {"value": 0.25, "seconds": 1.5}
    kept: Any = {"key": "k", "params_digest": "weights", "result": result, "answers": []}
    write_kept(path, {"suite": "core"}, {"arc_easy:0": kept}, ["arc_easy:0"])
    return kept


def test_what_was_written_is_read_for_the_same_weights_alone(tmp_path: Path) -> None:
    path = tmp_path / "core-last.json"
    assert read_kept(path, "weights") == {}
    kept = write(path)
    assert read_kept(path, "weights") == {"arc_easy:0": kept}
    assert read_kept(path, "others") == {}


def test_a_value_that_was_edited_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "core-last.json"
    write(path)
    found = json.loads(path.read_text())
    found["benchmarks"]["arc_easy:0"]["result"]["value"] = 0.75
    path.write_text(json.dumps(found))
    assert read_kept(path, "weights") == {}
