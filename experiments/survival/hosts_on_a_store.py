"""A recipe on two hosts that share nothing but the store: `python -m experiments.survival.hosts_on_a_store FOLDER`.

`phasewise run` with the launcher `tpu_vm` and its home on the emulator. The hosts are reached by ssh on loopback, with a folder each.
One of their trainers is killed. Then the same recipe is trained on the same hosts in a home that both see, undisturbed. The command
prints its findings. It fails if weights or rows differ, or if the report does not describe the launch. On two cores it takes some
minutes.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from experiments.survival.runs import complete, wait_until
from experiments.survival.two_processes import run_below, step_below, without_clock, write_recipe
from phasewise.flows.prefect.server import own_server
from phasewise.tasks.home import Home
from phasewise.tasks.store.publisher import Kept
from phasewise.trainer.base.identity import HOUSE
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.storage import as_path
from phasewise.trainer.metrics import read_metrics
from tests.ports import free_port
from tests.stores.emulator import BUCKET, the_emulator
from tests.tasks.training.ssh_hosts import SshHosts, ssh_hosts

HOME, SLICE, HOSTS = f"gs://{BUCKET}/home", "2x cpu-1", 2
RUN_NAME, PHASE, STEPS, DIES_AT = "by-hand-own", "only", 24, 10
SMALLER = {"num_layers=9, d_model=384": "num_layers=2, d_model=64", 'slice="cpu-2"': f'slice="{SLICE}"'}
PYTHON = """#!/bin/sh
export PYTHONPATH={house} STORAGE_EMULATOR_HOST={store} GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT=false JAX_PLATFORMS=cpu TF_CPP_MIN_LOG_LEVEL=3
export XLA_FLAGS=--xla_force_host_platform_device_count=1
exec {python} "$@"
"""


def main(root: Path) -> None:
    emulator = the_emulator()
    recipe = write_small_recipe(root)
    (root / "hosts").mkdir()
    with ssh_hosts(root / "hosts", HOSTS) as machines, own_server(Home(root / "server"), free_port(), "hosts on a store") as server:
        environment = {
            **os.environ,
            **launched_by_ssh(machines, python_of_hosts(root, emulator.url)),
            "PREFECT_API_URL": server.url,
            "PREFECT_API_AUTH_STRING": server.auth,
            "PHASEWISE_DASK_WORKERS": "2",
            "PHASEWISE_PUBLISH_SECONDS": "1",
            "PHASEWISE_SCRATCH": str(root / "launcher"),
        }

        def start(name: str, home: str) -> subprocess.Popen[str]:
            command = [sys.executable, "-m", "phasewise.flows.cli.main", "run", str(recipe), "--home", home, "--json"]
            errors = open(root / f"{name}.log", "w")  # noqa: SIM115  # the process has it
            return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)

        process = start("away", HOME)
        lose_a_trainer(process, root / "launcher")
        on_hosts = complete(process)
        print("ended on two hosts", flush=True)
        here = complete(start("here", str(root / "local")))
    compare(on_hosts, here, run_below(root / "launcher"), Home(root / "local").run(RUN_NAME, PHASE))
    check_report(Path(on_hosts["report"]).read_text())
    check_store(root)


def write_small_recipe(root: Path) -> Path:
    recipe = write_recipe(root)
    text = recipe.read_text()
    for before, now in SMALLER.items():
        text = text.replace(before, now)
    recipe.write_text(text)
    return recipe


def launched_by_ssh(machines: SshHosts, python: Path) -> dict[str, str]:
    return {
        "PHASEWISE_LAUNCHER": "tpu_vm",
        "PHASEWISE_TPU_HOSTS": ";".join(machines.names),
        "PHASEWISE_TPU_PYTHON": str(python),
        "PHASEWISE_TPU_PROJECT": str(HOUSE.parent),
        "PHASEWISE_TPU_KNOWN_HOSTS": str(machines.known_hosts),
        "PHASEWISE_TPU_KEY": str(machines.key),
    }


def python_of_hosts(root: Path, store: str) -> Path:
    path = root / "hosts" / "python"
    path.write_text(PYTHON.format(house=HOUSE.parent, store=store, python=sys.executable))
    path.chmod(0o755)
    return path


def lose_a_trainer(process: subprocess.Popen[str], launcher: Path) -> None:
    wait_until(process, lambda: step_below(launcher) >= DIES_AT)
    [call] = sorted(RunFolder(run_below(launcher)).roll_calls.iterdir(), key=lambda path: path.stat().st_mtime)[-1:]
    pid = json.loads((call / "1.json").read_text())["pid"]
    assert "phasewise.trainer" in psutil.Process(pid).cmdline()
    os.kill(pid, signal.SIGKILL)
    print(f"killed the trainer of host 1 ({pid}) at step {step_below(launcher)}", flush=True)


def compare(on_hosts: Mapping[str, Any], here: Mapping[str, Any], away: Path, local: Path) -> None:
    for event in RunFolder(away).events.read_text().splitlines():
        said = json.loads(event)
        print(f"  {said['kind']} at {said['step']}: {said['text']}")
    rows, others = ([without_clock(row) for row in read_metrics(RunFolder(folder).metrics)] for folder in (away, local))
    digests = [one["phases"][0]["params_digest"] for one in (on_hosts, here)]
    print(f"{len(rows)} rows, {'the same' if rows == others else 'OTHERS'}; weights {[digest[:12] for digest in digests]}")
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert rows == others
    assert digests[0] == digests[1]


def check_report(page: str) -> None:
    for wanted in (f"{SLICE}: {HOSTS} devices (replica {HOSTS})", "it went on from step", HOME):
        print(f"the report {'names' if wanted in page else 'DOES NOT NAME'} {wanted}")
        assert wanted in page


def check_store(root: Path) -> None:
    kept = Kept(root / "third", as_path(HOME), RUN_NAME)
    kept.look(checkpoints=True)
    found = {path.name for path in kept.objects.folder.iterdir()}
    head, _ = kept.head.read()
    print(f"head number {head.number}, launch '{head.launch}', {len(head.files)} files named, {len(found)} objects")
    assert (run_below_third := kept.work / "runs" / RUN_NAME / PHASE).joinpath("result.json").exists(), run_below_third
    assert not list((as_path(HOME) / "runs" / RUN_NAME / "launches").glob("*"))


if __name__ == "__main__":
    started = time.monotonic()
    main(Path(sys.argv[1]))
    print(f"{time.monotonic() - started:.0f} s, beside whatever else was at work")
