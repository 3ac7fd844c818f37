import json
import os
import subprocess
from pathlib import Path

import pytest

from experiments.survival.runs import tiny_recipe
from phasewise.trainer.process.child_process import python_command
from tests.survival.disks import small_disk

HOOK = Path(__file__).with_name("full_disk")
POINTS = {
    "server log": "*/prefect/server.log", "Prefect's database": "*/prefect/prefect.db*", "source stand-ins": "*/sources/*",
    "documents": "*/documents/*part-*", "tokenizer": "*/tokenizers/*", "shards": "*/tokens/*", "index": "*/evidence/indexes/*.npy",
    "scan evidence": "*/evidence/leakage/*", "verdict": "*/verdicts/*/data*", "run.json": "*/runs/*/*run.json*",
    "metrics": "*/runs/*metrics.jsonl*", "checkpoint": "*/runs/*/checkpoints/*", "evaluation": "*/runs/*/*evaluation*",
    "report": "*/reports/*",
}  # fmt: skip
"""What is written → its name on the disk, in the order of a run."""


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_a_full_disk_ends_a_run_in_one_line_and_the_same_command_goes_on(tmp_path: Path):
    recipe = tmp_path / "tiny.json"
    recipe.write_text(tiny_recipe().model_dump_json())
    settings = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "PHASEWISE_DASK_WORKERS": "1"}
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"} | settings

    def run(home: Path, more: dict[str, str]) -> "subprocess.CompletedProcess[str]":
        command = python_command("phasewise.flows.cli.main", "run", str(recipe), "--home", str(home), "--json")
        return subprocess.run(command, env=environment | more, capture_output=True, text=True, check=False, timeout=900)

    with small_disk(tmp_path / "disk", "100m") as disk:
        for what, name in POINTS.items():
            ended = run(disk / "home", {"PYTHONPATH": str(HOOK), "PHASEWISE_TEST_FULL": name, "PHASEWISE_TEST_DISK": str(disk)})
            print(what, ended.returncode, ended.stderr[-1500:], flush=True)
            assert (disk / "filler").exists(), f"nothing wrote {what}"
            assert ended.returncode == 7, f"{what}: {ended.stderr[-3000:]}"
            assert "Traceback" not in ended.stderr, f"{what}: {ended.stderr[-3000:]}"
            last = ended.stderr.splitlines()[-1]
            assert last.startswith("phasewise: "), last
            assert str(disk) in last, last
            assert "No space left on device" in last, last
            assert " MiB are free on the disk at " in last, last
            (disk / "filler").unlink()
        resumed = run(disk / "home", {})
        assert resumed.returncode == 0, resumed.stderr[-3000:]
    undisturbed = run(tmp_path / "home", {})
    found, expected = (json.loads(ended.stdout)["phases"] for ended in (resumed, undisturbed))
    assert [phase["params_digest"] for phase in found] == [phase["params_digest"] for phase in expected]
