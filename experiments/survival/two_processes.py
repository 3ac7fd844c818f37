"""A recipe written by hand on two processes by a plan of preflight: `python -m experiments.survival.two_processes FOLDER`.

The model has about 20 million weights, the home is on an object store. The rig kills one of the two trainers, and later the whole
machine. A second machine finishes the run. A second run in a local folder is undisturbed. The rig fails if the executed plan, the
batches or the weights differ. On two cores the rig takes about ten minutes, and up to 4 GB of memory for the objects of the store.
"""

import html
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from experiments.survival.runs import complete, kill_when, wait_until
from phasewise.flows.prefect.server import own_server
from phasewise.tasks.home import Home
from phasewise.tasks.store.publisher import Kept
from phasewise.tasks.training.execution import execution_summary
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.storage import as_path, read_json
from phasewise.trainer.metrics import OF_THE_CLOCK, read_metrics
from tests.ports import free_port
from tests.stores.emulator import BUCKET, the_emulator
from tests.tasks.evaluation.conftest import write_prose

HOME = f"gs://{BUCKET}/home"
RUN_NAME, PHASE, SLICE, PROCESSES = "by-hand-own", "only", "cpu-2", 2
MIN_PARAMETERS, MAX_PARAMETERS = 18e6, 22e6
TRAINER_DIES_AT, MACHINE_DIES_AT = 7, 13
"""Of the steps: where one trainer is killed, and where the machine is."""
STEPS = 24
RECIPE = '''"""One phase on made-up prose."""

from phasewise.flows.recipes.words import Recipe, Tokenizer, checkpoints, evaluated, from_scratch, gates, llama, text, wsd

MODEL = llama(num_layers=9, d_model=384, seq_len=64, vocab_size=2048)

ONLY = from_scratch(
    name="only",
    stop_step=24,
    model=MODEL,
    batch=4,
    mixture={"prose": 60, "letters": 40},
    learning_rate=wsd(stop_step=24, warmup=4, decay=8, peak=1e-3),
    slice="cpu-2",
    checkpoints=checkpoints(every_steps=4),
    evaluation=evaluated(loss_every_steps=12),
    gates=gates(max_epochs=None, must_beat_baseline=False, max_share_error_points=3.0),
)

RECIPE = Recipe(
    name="by-hand",
    tokenizer=Tokenizer(vocab_size=2048),
    phases=(ONLY,),
    sources={name: text(f"TEXT/{name}", "*.txt", format="paragraphs") for name in ("prose", "letters")},
)
'''


def main(root: Path) -> None:
    the_emulator()
    recipe = write_recipe(root)
    with own_server(Home(root / "server"), free_port(), "two processes") as server:
        environment = {
            **os.environ,
            "PREFECT_API_URL": server.url,
            "PREFECT_API_AUTH_STRING": server.auth,
            "PHASEWISE_DASK_WORKERS": "2",
            "PHASEWISE_PROCESSES": str(PROCESSES),
            "PHASEWISE_PUBLISH_SECONDS": "2",
            "PHASEWISE_LEASE_SECONDS": "10",
        }

        def start(machine: str, *words: str) -> subprocess.Popen[str]:
            command = [sys.executable, "-m", "phasewise.flows.cli.main", *words, "--json"]
            own = {**environment, "PHASEWISE_SCRATCH": str(root / machine)}
            errors = open(root / f"{machine}.log", "w")  # noqa: SIM115  # the process has it
            return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=own)

        def on_store(machine: str, command: str) -> subprocess.Popen[str]:
            return start(machine, command, str(recipe), "--home", HOME)

        planned = _timed("preflight", on_store("first", "preflight"))["phases"][0]
        print(f"{planned['parameters'] / 1e6:.1f} M parameters; the plan: {planned['plan']}; {json.dumps(planned['execution'])}")
        lose_a_trainer_and_a_machine(on_store("first", "run"), root / "first")
        elsewhere = _timed("ended on another machine", on_store("second", "run"))
        status = _timed("looked at from a third", on_store("third", "status"))
        local = root / "local"
        here = _timed("in a local folder, undisturbed", start("fourth", "run", str(recipe), "--home", str(local)))
    check(planned, Home(local).run(RUN_NAME, PHASE), run_below(root / "second"))
    check_outcomes(elsewhere, here, status)
    check_report(Path(elsewhere["report"]).read_text(), planned, execution_summary(run_below(root / "second"), SLICE))


def write_recipe(root: Path) -> Path:
    root.mkdir(parents=True)
    for place, name in enumerate(("prose", "letters")):
        (root / name).mkdir()
        for number in range(12):
            paragraphs = [write_prose(10_000 * place + 100 * number + part, 150) for part in range(40)]
            (root / name / f"{number}.txt").write_text("\n\n".join(paragraphs))
    path = root / "by_hand.py"
    path.write_text(RECIPE.replace("TEXT", str(root)))
    return path


def lose_a_trainer_and_a_machine(process: subprocess.Popen[str], machine: Path) -> None:
    """Kill the second trainer, wait until both are at work again and further, and kill everything."""
    wait_until(process, lambda: step_below(machine) >= TRAINER_DIES_AT)
    trainers = trainers_of(process)
    assert len(trainers) == PROCESSES, trainers
    os.kill(trainers[-1].pid, signal.SIGKILL)
    print(f"killed trainer {trainers[-1].pid} of {[one.pid for one in trainers]} at step {step_below(machine)}", flush=True)
    began = time.monotonic()
    head = Kept(machine / "none", as_path(HOME), RUN_NAME).head

    def is_further() -> bool:
        found = [int(name.split("/")[-2]) for name in head.read()[0].files if f"/{PHASE}/checkpoints/" in name]
        return max(found, default=0) >= MACHINE_DIES_AT - 1 and step_below(machine) >= MACHINE_DIES_AT

    kill_when(process, is_further)
    print(f"killed the machine {time.monotonic() - began:.0f} s later, at step {step_below(machine)}", flush=True)


def trainers_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    found = [
        one
        for one in psutil.Process(process.pid).children(recursive=True)
        if "phasewise.trainer" in one.cmdline() and "-m" in one.cmdline()
    ]
    return sorted(found, key=lambda one: int(one.environ().get("JAX_PROCESS_ID", "0")))


def run_below(machine: Path) -> Path:
    """The folder of the run in a machine's working folder."""
    return next(machine.glob("/".join(("phasewise", "*", "work", "runs", RUN_NAME, PHASE))), machine / "nothing yet")


def step_below(machine: Path) -> int:
    metrics = RunFolder(run_below(machine)).metrics
    rows = read_metrics(metrics) if metrics.exists() else []
    return rows[-1]["step"] if rows else 0


def check(planned: Mapping[str, Any], here: Path, elsewhere: Path) -> None:
    assert MIN_PARAMETERS < planned["parameters"] < MAX_PARAMETERS, planned["parameters"]
    for folder in (here, elsewhere):
        executed = read_json(RunFolder(folder).run_file)["execution"]
        assert executed == planned["execution"], (executed, planned["execution"])
    rows, others = ([without_clock(row) for row in read_metrics(RunFolder(folder).metrics)] for folder in (here, elsewhere))
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1)), [row["step"] for row in rows]
    print(f"{len(rows)} rows; but for times they {'are the same' if rows == others else 'DIFFER'}")
    assert rows == others
    events = [json.loads(line) for line in RunFolder(elsewhere).events.read_text().splitlines()]
    for event in events:
        print(f"  {event['kind']} at {event['step']}: {event['text']}")


def without_clock(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in OF_THE_CLOCK}


def check_outcomes(elsewhere: Mapping[str, Any], here: Mapping[str, Any], status: Mapping[str, Any]) -> None:
    """The same weights, bit for bit, and everything is done."""
    digests = [one["phases"][0]["params_digest"] for one in (elsewhere, here)]
    states = [phase["state"] for phase in status["phases"]]
    print(
        f"states {states}; the weights are {'the same' if digests[0] == digests[1] else 'OTHERS'}: {digests[0][:12]} and {digests[1][:12]}"
    )
    print(f"spent: {json.dumps(status['phases'][0]['spent'])}")
    assert digests[0] == digests[1]
    assert states == ["done"]


def check_report(page: str, planned: Mapping[str, Any], computed: str) -> None:
    text = html.unescape(re.sub(r"<[^>]+>", " ", page))
    for wanted in (computed, HOME):
        assert wanted in text, f"the report does not name {wanted!r}"
    assert computed.startswith(f"{SLICE}: {PROCESSES} devices (fsdp {PROCESSES})"), computed
    assert planned["plan"] in computed
    print(f"the report: {computed}")


def _timed(what: str, process: subprocess.Popen[str]) -> dict[str, Any]:
    started = time.monotonic()
    found = complete(process)
    print(f"{what}: {time.monotonic() - started:.0f} s", flush=True)
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
