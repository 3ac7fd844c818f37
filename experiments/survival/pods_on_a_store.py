"""A recipe on two pods that share nothing but the store: `python -m experiments.survival.pods_on_a_store FOLDER`.

`phasewise run` with the launcher `jobset` and its home on the emulator. The cluster is the API server of the tests, found by a
kubeconfig as `kubectl` would find it. Its pods are processes with a disk each. One trainer is killed, then the launcher, and another
one on another machine ends it. Then the same recipe is trained on the same cluster in a home that all see, undisturbed. The command
prints its findings. It fails if weights or rows differ, or if the report does not describe the launch. On two cores it takes some
minutes.

`python -m experiments.survival.pods_on_a_store run …` is `phasewise run …` that takes nodes of CPUs for a slice.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from experiments.survival.hosts_on_a_store import (
    HOME,
    PHASE,
    RUN_NAME,
    check_report,
    check_store,
    compare,
    lose_a_trainer,
    python_of_hosts,
    write_small_recipe,
)
from experiments.survival.runs import complete, kill_when
from experiments.survival.two_processes import run_below, step_below
from phasewise.flows.prefect.server import own_server
from phasewise.tasks.home import Home
from phasewise.trainer.base.run_folder import RunFolder
from tests.ports import free_port
from tests.stores.emulator import the_emulator
from tests.tasks.training.api_server import ApiServer, api_server

LAUNCHER_DIES_AT = 16


def main(root: Path) -> None:
    emulator = the_emulator()
    recipe = write_small_recipe(root)
    (root / "hosts").mkdir()
    python_of_hosts(root, emulator.url)
    os.environ["PATH"] = f"{root / 'hosts'}:{os.environ['PATH']}"  # where pods find their Python
    with api_server(root / "nodes") as (cluster, address), own_server(Home(root / "server"), free_port(), "pods") as server:
        environment = {
            **os.environ,
            "PHASEWISE_LAUNCHER": "jobset",
            "PHASEWISE_GKE_IMAGE": "here",
            "KUBECONFIG": str(write_kubeconfig(root, address)),
            "PREFECT_API_URL": server.url,
            "PREFECT_API_AUTH_STRING": server.auth,
            "PHASEWISE_DASK_WORKERS": "2",
            "PHASEWISE_PUBLISH_SECONDS": "1",
            "PHASEWISE_LEASE_SECONDS": "5",
        }

        def start(name: str, home: str) -> subprocess.Popen[str]:
            command = [sys.executable, "-m", "experiments.survival.pods_on_a_store", "run", str(recipe), "--home", home, "--json"]
            errors = open(root / f"{name}.log", "w")  # noqa: SIM115  # the process has it
            scratch = {"PHASEWISE_SCRATCH": str(root / name)}
            return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment | scratch)

        process = start("first", HOME)
        lose_a_trainer(process, root / "first")
        kill_when(process, lambda: step_below(root / "first") >= LAUNCHER_DIES_AT)
        print(f"killed the launcher at step {step_below(root / 'first')}; {jobsets_of(cluster)}", flush=True)
        on_pods = complete(start("second", HOME))
        print(f"ended on two pods; {jobsets_of(cluster)}", flush=True)
        here = complete(start("here", str(root / "local")))
    compare(on_pods, here, run_below(root / "second"), Home(root / "local").run(RUN_NAME, PHASE))
    check_report(Path(on_pods["report"]).read_text())
    check_store(root)
    check_logs(run_below(root / "second"))
    assert not cluster.pods


def write_kubeconfig(root: Path, address: str) -> Path:
    """How to reach the cluster, in the file that `kubectl` reads."""
    path = root / "kubeconfig"
    said = {
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "clusters": [{"name": "here", "cluster": {"server": address}}],
        "users": [{"name": "me", "user": {}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
    }  # fmt: skip
    path.write_text(json.dumps(said))
    return path


def jobsets_of(cluster: ApiServer) -> str:
    codes = [code for pods in cluster.pods.values() for code in pods.codes]
    return f"{len(cluster.jobsets)} JobSets, {codes.count(None)} pods at work"


def check_logs(run: Path) -> None:
    for host in (0, 1):
        log = RunFolder(run).log(host).read_text()
        lives = log.count(f"host {host} of 2 (")
        print(f"{RunFolder(run).log(host).name}: {len(log.splitlines())} lines of {log.count('log of phasewise-')} pods, {lives} lives")
        assert lives == log.count("log of phasewise-") >= 2


def phasewise_on_cpus() -> None:
    from phasewise.flows.cli.main import main as phasewise
    from phasewise.tasks.training import jobset_manifest

    jobset_manifest._accelerator = lambda slices: "cpu"  # pyright: ignore[reportPrivateUsage]
    phasewise()


if __name__ == "__main__":
    if sys.argv[1] == "run":
        phasewise_on_cpus()
    else:
        started = time.monotonic()
        main(Path(sys.argv[1]))
        print(f"{time.monotonic() - started:.0f} s, beside whatever else was at work")
