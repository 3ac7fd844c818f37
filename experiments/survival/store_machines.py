"""A whole recipe with its home on an object store: `python -m experiments.survival.store_machines FOLDER`.

It is killed with its machine while it trains, ended on another, looked at from a third, and compared with a run in a local folder that
nothing disturbed. The command prints its findings and fails if the weights differ. On two cores that nothing else uses it takes some
minutes.
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from experiments.survival.runs import complete, kill_when, tiny_recipe
from phasewise.flows.prefect.server import own_server
from phasewise.tasks.home import Home
from phasewise.tasks.store.publisher import Kept
from phasewise.trainer.base.storage import as_path
from tests.ports import free_port
from tests.stores.emulator import BUCKET, the_emulator

HOME = f"gs://{BUCKET}/home"
KILLED_FROM, KILLED_TO = 10, 35
"""It is killed when a checkpoint between these steps of its 40 is committed."""


def main(root: Path) -> None:
    the_emulator()
    root.mkdir(parents=True)
    recipe = root / "tiny.json"
    recipe.write_text(tiny_recipe().model_dump_json())
    head = Kept(root / "none", as_path(HOME), "tiny-proxy").head

    def committed() -> list[int]:
        return [int(name.split("/")[-2]) for name in head.read()[0].files if "/kestrel/checkpoints/" in name]

    with own_server(Home(root / "server"), free_port(), "store machines") as server:
        environment = {
            **os.environ,
            "PREFECT_API_URL": server.url,
            "PREFECT_API_AUTH_STRING": server.auth,
            "PHASEWISE_DASK_WORKERS": "2",
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
            "PHASEWISE_PUBLISH_SECONDS": "1",
        }

        def start(machine: str, command: str, home: str) -> subprocess.Popen[str]:
            words = [sys.executable, "-m", "phasewise.flows.cli.main", command, str(recipe), "--home", home, "--json"]
            own = {**environment, "PHASEWISE_SCRATCH": str(root / machine)}
            return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=own)

        kill_when(start("first", "run", HOME), lambda: any(KILLED_FROM <= step <= KILLED_TO for step in committed()))
        print(f"killed; checkpoints on the store: {committed()}")
        elsewhere = _timed("ended on another machine", start("second", "run", HOME))
        status = _timed("looked at from a third", start("third", "status", HOME))
        here = _timed("in a local folder, undisturbed", start("fourth", "run", str(root / "local")))
    states = [phase["state"] for phase in status["phases"]]
    digests = [[phase["params_digest"] for phase in one["phases"]] for one in (elsewhere, here)]
    print(f"states {states}; the weights are {'the same' if digests[0] == digests[1] else 'OTHERS'}; heads taken: {head.read()[0].number}")
    assert digests[0] == digests[1]
    assert states == ["done", "done"]


def _timed(what: str, process: subprocess.Popen[str]) -> dict[str, Any]:
    started = time.monotonic()
    found = complete(process)
    print(f"{what}: {time.monotonic() - started:.0f} s", flush=True)
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
