"""The page on Python, executed as a notebook in a kernel of Jupyter, and its batches and updates against the trainer's."""

import json
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from phasewise.trainer.base.errors import ExitCode
from tests.tasks.evaluation.conftest import write_prose

ROOT = Path(__file__).parents[2]
CELLS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "how-to" / "python.md").read_text(), re.DOTALL)
LAST = """
import json, sys
from pathlib import Path

run = recipe.run(phase)
Path(run.output).mkdir(parents=True)
Path("run.json").write_text(run.but(until_step=8).model_dump_json())
print(json.dumps([run.output, "prefect" in sys.modules]))
"""


def outputs(folder: Path, cells: list[str]) -> list[str]:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=150, kernel_name="python3", resources={"metadata": {"path": str(folder)}}).execute()
    return ["".join(one.get("text", "") for one in cell.outputs if one.get("name") == "stdout") for cell in notebook.cells]


@pytest.mark.timeout(400)
def test_the_page_runs_as_a_notebook_and_trains_as_the_trainer_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "my_text").mkdir()
    (tmp_path / "my_text" / "notes.txt").write_text("\n\n".join(write_prose(part, 120) for part in range(120)))
    monkeypatch.setenv("PHASEWISE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    monkeypatch.setenv("PHASEWISE_DASK_WORKERS", "1")
    phasewise = Path(sys.executable).with_name("phasewise")
    subprocess.run([phasewise, "new", "my_recipe.py", "--text", "my_text"], cwd=tmp_path, check=True, capture_output=True)
    recipe = tmp_path / "my_recipe.py"
    recipe.write_text(recipe.read_text().replace("num_layers=4, d_model=128", "num_layers=1, d_model=32"))
    assert len(CELLS) == 5
    found = outputs(tmp_path, [*CELLS, LAST])
    assert found[1].startswith("True passed: ")
    assert found[2] == "(8, 256) int32\n"
    assert found[4].strip("\n") or found[4]
    output, has_prefect = json.loads(found[-1])
    assert not has_prefect
    trainer = subprocess.run([sys.executable, "-m", "phasewise.trainer", "run.json"], cwd=tmp_path, capture_output=True, text=True)
    assert trainer.returncode == ExitCode.MOVES, trainer.stderr
    rows = [json.loads(line) for line in (Path(output) / "metrics.jsonl").read_text().splitlines()]
    assert [[float(word) for word in line.split()] for line in found[3].splitlines()] == [
        [row["step"], row["loss"], row["grad_norm"]] for row in rows
    ]
