"""One replay of an incident: its folder, its stage, a tiny training run, and a prepared home to spoil.

A replay is a function of a `Case`. It raises the error of Phasewise, or returns the sentence in which Phasewise names the incident. The
sound twin is the same function with `case.sound`: it must neither raise nor return a sentence.
"""

import io
import json
import logging
import os
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dask.distributed import LocalCluster

from experiments.survival.runs import tiny_recipe
from phasewise.flows import api
from phasewise.flows.cli.data import verify
from phasewise.tasks.data.cluster import LOOPBACK, SCHEDULER_VARIABLE
from phasewise.trainer.base.errors import DataError, refused_by_system
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.storage import write_json
from phasewise.trainer.config import RunConfig
from phasewise.trainer.metrics import read_metrics
from phasewise.trainer.run import execute
from tests.tasks.conftest import tiny_run, write_lines, write_prose
from tests.trainer.conftest import write_documents
from tests.trainer.token_caches import write_passing_verdict, write_token_cache

RECIPE, DATA, START, STEP, GATE = STAGES = ("recipe", "data", "start", "step", "gate")
"""When Phasewise can catch an incident: as it resolves the recipe, prepares and judges data, starts the trainer, trains, or judges."""
COMPONENTS = {"code": 50.0, "law": 25.0, "web": 25.0}
DOCUMENTS = 80
Raw = dict[str, Any]
Edit = Callable[[Raw], object]


@dataclass
class Case:
    """A replay in a folder of its own. `step` is the last update that was trained when the replay ended."""

    folder: Path
    shared: Path
    sound: bool
    stage: str = RECIPE
    step: int | None = None

    def run(self, name: str = "run", stop_step: int = 4, **changes: Any) -> RunConfig:
        """A run of a tiny model on hand-written caches, with a verdict that passes."""
        caches = {name: self.shared / "tokens" / name for name in COMPONENTS}
        for seed, folder in enumerate(caches.values()):
            if not folder.exists():
                write_token_cache(folder, [write_documents(seed, DOCUMENTS)])
        output = self.folder / name
        policy = {"every_steps": 2, "every_minutes": None, "keep_all": True}
        run = tiny_run(name, stop_step, caches, output / "verdict.json", output, checkpoints=policy).but(**changes)
        write_passing_verdict(run)
        return run

    def train(self, run: RunConfig) -> str:
        """Train in this process, and return the lines on standard error."""
        self.stage = START
        before = len(read_metrics(RunFolder(run.output).metrics))
        said = io.StringIO()
        try:
            with redirect_stderr(said), refused_by_system(Path(run.output).parent):
                execute(run)
        finally:
            rows = read_metrics(RunFolder(run.output).metrics)
            if len(rows) > before:
                self.stage, self.step = STEP, int(rows[-1]["step"])
        return said.getvalue()

    def named_at_start(self, run: RunConfig, *words: str) -> str | None:
        """Train, and return the trainer's line with all these words, which it writes before the first update."""
        said = self.train(run)
        self.stage, self.step = START, None
        return next((line for line in said.splitlines() if all(word in line for word in words)), None)

    def after(self, parent: RunConfig, name: str = "child", **changes: Any) -> RunConfig:
        """A run that starts from the last checkpoint of a trained run."""
        result = json.loads(RunFolder(parent.output).result.read_text())
        start = {"checkpoint": result["checkpoint"], "params_digest": result["params_digest"], "fresh": []}
        rate = [{"kind": "constant", "start_step": parent.stop_step, "end_step": parent.stop_step + 2, "start": 1e-2, "end": 1e-2}]
        fields = {"start_step": parent.stop_step, "start": start, "learning_rate": rate}
        return self.run(name, parent.stop_step + 2, **{**fields, **changes})

    def prepared(self) -> Path:
        """A copy of a prepared and judged home in the case's folder, with its text. Returns the recipe's file."""
        if not (self.shared / "world").exists():
            text = self.shared / "half" / "text"
            for place, name in enumerate(COMPONENTS):
                write_lines(text / name / "part.jsonl", [write_prose(1000 * place + number, 12) for number in range(120)])
            prepare(write_recipe(self.shared / "half"))
            (self.shared / "half").rename(self.shared / "world")
        shutil.copytree(self.shared / "world", self.folder, dirs_exist_ok=True)
        self.stage = DATA
        return write_recipe(self.folder)

    def prepare(self, recipe: Path) -> None:
        """Build the missing caches, and judge the data."""
        self.stage = DATA
        prepare(recipe)

    def check(self, recipe: Path) -> None:
        """Compare the caches with the recipe, as `phasewise data verify` does."""
        found = verify(str(recipe), "own", str(self.folder / "home"))
        differences = [f"{one['name']}: {difference}" for one in found["components"] for difference in map(in_words, one["differences"])]
        if differences:
            raise DataError("; ".join(differences))


def prepare(recipe: Path) -> None:
    """Prepare and judge the data of a recipe in the home beside it."""
    os.environ[SCHEDULER_VARIABLE] = scheduler()
    api.prepare(*api.open_recipe(str(recipe), home=str(recipe.parent / "home")))


@cache
def scheduler() -> str:
    """Start a Dask cluster in this process, and return its address."""
    logging.disable(logging.WARNING)
    cluster = LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=LOOPBACK)
    return str(cluster.scheduler_address)


def in_words(difference: dict[str, str]) -> str:
    """State a difference of a cache as `phasewise data verify` prints it."""
    return f"{difference['what']}: {difference['file']} (expected {difference['expected']}, found {difference['found']})"


def write_recipe(folder: Path, edit: Edit = lambda _: None, *, shares: dict[str, float] = COMPONENTS) -> Path:
    """Write a recipe of one tiny phase whose text is in `folder/text`."""
    raw = tiny_recipe().model_dump(mode="json")
    raw["phases"] = raw["phases"][:1]
    raw |= {"scale": "own", "accepts": [], "approvable": []}
    raw["phases"][0]["mixture"] = [[0, shares]]
    raw["sources"] = {name: {"url": str(folder / "text" / name), "include": ["*.jsonl"], "format": "jsonl"} for name in shares}
    edit(raw)
    write_json(folder / "recipe.json", raw)
    return folder / "recipe.json"
