"""`phasewise run` on prepared data, from the command to the first update: `python -m experiments.bench launch`.

The recipe is that of `phasewise new` over real text. Warm is the compilation cache of a whole training, cold is an empty one.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from experiments.bench.measure import Options, Row
from experiments.bench.real_text import write_json_lines
from phasewise.tasks.home import Home
from phasewise.trainer.base.run_folder import RunFolder
from tests.ports import free_port

MAX_SECONDS = {"warm": 6, "cold": 15, "warm, next to `phasewise up`": 6}
TEXT_BYTES = 3 * 10**6
PARTS = {
    "imports of the command and of Prefect": r"(starting|using) .* Prefect server", "server, beside imports of the flow": "phase 1 of",
    "checks and verdict on the data": "data passed", "its page, and the plan": "trains on",
}  # fmt: skip
"""Part of a launch → pattern of the line that ends it. Further parts are the trainer's."""


def rows(options: Options) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        recipe = prepared_recipe(Path(folder))
        phasewise("run", str(recipe), home=recipe.parent / "home")
        for state, limit in MAX_SECONDS.items():
            with up(recipe.parent) if state.endswith("up`") else nullcontext():
                found = [first_update(recipe, is_cold=state == "cold") for _ in range(options.repeats)]
            whole = sorted(sum(one.values()) for one in found)
            name, spread = f"`phasewise run` to the first update, seconds, {state}", f"{whole[0]:.1f} to {whole[-1]:.1f}"
            yield Row(name, whole[len(whole) // 2], at_most=limit, note=spread)
            for part in found[0]:
                yield Row(f"  {part}", float(np.median([one[part] for one in found])))


@contextmanager
def up(folder: Path) -> Iterator[None]:
    """Run `phasewise up` in the home of a folder within the context, until it has started everything."""
    log = folder / "up.log"
    with (
        open(log, "wb") as output,
        phasewise_process("up", "--port", str(free_port()), "--recipe", "marin-8b", home=folder / "home", output=output) as process,
    ):
        while "Ctrl-C" not in log.read_text():
            if process.poll() is not None:
                raise RuntimeError(f"`phasewise up` ended:\n{log.read_text()}")
            time.sleep(0.1)
        try:
            yield
        finally:
            process.send_signal(signal.SIGINT)


def first_update(recipe: Path, *, is_cold: bool, phase: str = "warm-up") -> dict[str, float]:
    """Train the first phase anew up to its first update. Return part → seconds, in order."""
    home, log = recipe.parent / "home", recipe.with_name("log")
    run = RunFolder(Home(home).run(f"{recipe.stem}-own", phase))
    shutil.rmtree(run.path, ignore_errors=True)
    if is_cold:
        shutil.rmtree(run.compilation_cache, ignore_errors=True)
    parts, left, last = dict[str, float](), dict(PARTS), time.perf_counter()
    with open(log, "wb") as output, phasewise_process("run", f"{recipe}/{phase}", home=home, output=output) as process:
        while not (run.metrics.exists() and run.metrics.stat().st_size):
            if process.poll() is not None:
                raise RuntimeError(f"the command ended first:\n{log.read_text()}")
            ended = [part for part, pattern in left.items() if re.search(pattern, log.read_text())]
            if run.heartbeat.exists() and not left and len(parts) == len(PARTS):
                ended.append("imports of the trainer")
            for part in ended:
                parts[part], last = (now := time.perf_counter()) - last, now
                left.pop(part, None)
            time.sleep(0.005)
        parts["state, program, first update"] = time.perf_counter() - last
        process.send_signal(signal.SIGINT)
    return parts


def prepared_recipe(folder: Path) -> Path:
    """A recipe of two phases over real text, with prepared data in the home next to it."""
    write_json_lines(folder / "text", TEXT_BYTES, num_files=4)
    recipe = folder / "my.py"
    phasewise("new", str(recipe), "--text", str(folder / "text"), home=folder / "home")
    phasewise("data", "prepare", str(recipe), home=folder / "home")
    return recipe


def phasewise(*arguments: str, home: Path) -> None:
    with phasewise_process(*arguments, home=home, output=subprocess.DEVNULL):
        pass


def phasewise_process(*arguments: str, home: Path, output: Any) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "phasewise.flows.cli.main", *arguments]
    return subprocess.Popen(command, env={**os.environ, "PHASEWISE_HOME": str(home)}, stdout=output, stderr=output)
