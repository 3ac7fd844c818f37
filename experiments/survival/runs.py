"""A tiny recipe, and actions of end-to-end tests on its processes."""

import json
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from experiments.survival.in_turn import Ended
from phasewise.flows.recipes import load_recipe
from phasewise.flows.recipes.recipe import Recipe

Start = Callable[..., subprocess.Popen[str]]
Finished = dict[str, Any]
MAX_SECONDS = 180  # a guard against hanging
COMPONENTS = {"medu_science_qa": 50.0, "dolmino_stackexchange": 30.0, "flan": 20.0}


def tiny_recipe() -> Recipe:
    proxy = load_recipe("marin-8b", "proxy").model_dump()
    first, second = proxy["phases"][:2]
    for phase, (start, stop) in ((first, (0, 40)), (second, (40, 52))):
        rate = 1e-3 if phase is first else 1.7e-3
        phase["stop_step"] = stop
        phase["model"] |= {"num_layers": 1, "d_model": 32, "d_ff": 64, "num_query_heads": 2, "num_kv_heads": 1, "head_dim": 16}
        phase["learning_rate"] = [{"kind": "constant", "start_step": start, "end_step": stop, "start": rate, "end": rate}]
        phase["batch"] = ((0, 2), (40, 6))
        phase["mixture"] = ((0, COMPONENTS),)
        phase["order"]["block_sequences"] = 20
        phase["checkpoints"]["every_steps"] = 5
        phase["gates"]["data"] |= {"max_share_error_points": 5.0, "max_epochs": 50}
        phase["gates"]["model"] = {"max_increase_bits_per_byte": 5.0, "must_beat_baseline": False, "floor_error_rate": None}
    second["start"] |= {"step": 40, "declares": [change for change in second["start"]["declares"] if change != "schedule"]}
    return Recipe.model_validate({**proxy, "name": "tiny", "phases": [first, second]})


def complete(process: subprocess.Popen[str] | Ended) -> Finished:
    out, err = process.communicate()
    assert process.returncode == 0, err[-3000:]
    return json.loads(out)


def wait_until(process: subprocess.Popen[str], reached: Callable[[], bool]) -> None:
    while not reached():
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.02)
        assert process.poll() is None or reached(), f"the run ended first: {process.communicate()[1][-3000:]}"


def kill_when(process: subprocess.Popen[str], reached: Callable[[], bool]) -> None:
    wait_until(process, reached)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    _, alive = psutil.wait_procs(children, timeout=MAX_SECONDS)
    assert not alive, f"left behind: {[child.cmdline() for child in alive]}"


def with_limits(recipe_file: Path, path: Path, phase: int, gate: str, **limits: Any) -> Path:
    raw = json.loads(recipe_file.read_text())
    raw["phases"][phase]["gates"][gate] |= limits
    path.write_text(json.dumps(raw))
    return path


def trained_files(home: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in (home / "runs").rglob("*")}
