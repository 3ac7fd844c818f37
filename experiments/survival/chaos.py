"""Kill processes of a real run at every stage. The result must equal an undisturbed run, and no file may be lost.

`python -m experiments.survival.chaos FOLDER --kills 60 [--json]`

FOLDER must not be there. A short recipe of `phasewise new` runs once undisturbed. Then it runs in separate homes. In each home, one
process is killed at each stage, and the command is repeated if it ended. Files of the home and running processes identify a stage, not
times. Prints a table: stage, party, kills, outcomes.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from phasewise.trainer.base.run_folder import ORBAX_WRITES, SUPERSEDED
from phasewise.trainer.metrics import OF_THE_CLOCK
from tests.tasks.evaluation.conftest import write_prose

ROOT = Path(__file__).parents[2]
RUN = "my-recipe-own"
PHASES = ("warm-up", "cooldown")
SHORTER = {
    "stop_step=100": "stop_step=16",
    "warmup=10": "warmup=4",
    "stop_step=150": "stop_step=24",
    "cooldown(100, 150": "cooldown(16, 24",
    "batch=8": "batch=4",
    "num_layers=4, d_model=128, seq_len=256": "num_layers=2, d_model=64, seq_len=128",
    "max_increase_bits_per_byte=0.05": "max_increase_bits_per_byte=9.0",
}
EVERY_STEPS = 2
"""Steps between checkpoints."""
SETTINGS = [f"--set={phase}.checkpoints.every_steps={EVERY_STEPS}" for phase in PHASES]
LOOK_SECONDS, FAMILY_SECONDS, MAX_SECONDS = 0.005, 0.5, 1800.0
ENDS_SECONDS = 60.0
"""So long may what a killed command started take to end."""
SIGNS = {
    "trainer": ("-m", "phasewise.trainer"),
    "server": ("-m", "phasewise.flows.prefect.server_process"),
    "Dask worker": ("--multiprocessing-fork",),
}
SIGNS["evaluation"] = SIGNS["Dask worker"]
"""What is in the command line of a party's processes. The command is the process that was started, `everything` it and all below it."""
ENDINGS = {"command": {-signal.SIGKILL}, "everything": {-signal.SIGKILL}}
OTHER_ENDINGS = {0, 1}
"""Exit codes of a command whose party was killed: it goes on, or says why it cannot."""


class Stage(NamedTuple):
    name: str
    parties: tuple[str, ...]
    is_now: Callable[[Path, float], bool]


def _run(home: Path, phase: str) -> Path:
    return next((home / "runs" / RUN).glob(f"{phase}-trial-*"), home / "runs" / RUN / phase)


def _rows(home: Path, phase: str) -> int:
    with suppress(OSError):
        return (_run(home, phase) / "metrics.jsonl").read_bytes().count(b"\n")
    return 0


def _has(home: Path, pattern: str) -> bool:
    with suppress(OSError):  # a folder that goes while it is looked through
        return next(home.glob(pattern), None) is not None
    return False


def _saves(run: Path, since: float) -> bool:
    with suppress(OSError):
        return any(path.stat().st_mtime > since for path in run.glob(f"checkpoints/*{ORBAX_WRITES}*"))
    return False


def _of_phase(phase: str) -> list[Stage]:
    model = f"verdicts/{RUN}/{phase}-trial-*/model.json"
    return [
        Stage(f"train {phase}", ("trainer", "command", "server", "everything"), lambda home, _: _rows(home, phase) >= EVERY_STEPS + 1),
        Stage(
            f"save {phase}",
            ("everything", "trainer", "trainer", "command"),
            lambda home, since: _saves(_run(home, phase), since),
        ),
        Stage(
            f"evaluate {phase}",
            ("evaluation", "everything", "command", "server"),
            lambda home, _: (_run(home, phase) / "result.json").exists() and not _has(home, model),
        ),
    ]


STAGES = [
    Stage("read documents", ("Dask worker", "command", "everything"), lambda home, _: _has(home, "documents/*/*/*")),
    Stage("encode tokens", ("everything", "Dask worker", "command"), lambda home, _: _has(home, "tokens/*/*/*")),
    Stage(
        "judge data",
        ("command", "server", "everything"),
        lambda home, _: _has(home, "evidence/*") and not _has(home, f"verdicts/{RUN}/{PHASES[0]}-trial-*/data.json"),
    ),
    *_of_phase(PHASES[0]),
    *_of_phase(PHASES[1]),
    Stage("report", ("command", "everything", "server"), lambda home, _: _has(home, f"verdicts/{RUN}/{PHASES[1]}-trial-*/model.json")),
]


class Kill(NamedTuple):
    stage: Stage
    party: str


@dataclass
class Struck:
    """A kill that was carried out: at how many rows of which phase, and whether a checkpoint was half written then."""

    stage: str
    party: str
    at: str
    outcome: str = ""


@dataclass
class Life:
    number: int
    home: Path
    struck: list[Struck] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    attempts: int = 0
    killed_at: float = 0.0


class Rig(NamedTuple):
    folder: Path
    recipe: Path
    environment: dict[str, str]

    def start(self, *words: object, log: Path) -> subprocess.Popen[bytes]:
        with open(f"{log}.out", "wb") as out, open(f"{log}.err", "wb") as err:
            command = [sys.executable, "-P", "-m", "phasewise.flows.cli.main", *map(str, words)]
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=self.folder, env=self.environment)

    def run(self, home: Path, log: Path) -> subprocess.Popen[bytes]:
        return self.start("run", self.recipe, "--home", home, "--json", *SETTINGS, log=log)


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.survival.chaos")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(words)
    rig = build_rig(given.folder.absolute())
    wanted = undisturbed(rig)
    lives: list[Life] = []
    for number, kills in enumerate(plan(given.kills)):
        life = Life(number, rig.folder / f"home-{number}")
        disturb(rig, life, kills)
        life.faults += differences(rig, life, wanted)
        lives.append(life)
        said = f"home {number}: {len(life.struck)} kills, {life.attempts} attempts, {life.faults or 'as undisturbed'}"
        print(said, file=sys.stderr, flush=True)
    print(json.dumps(summary(lives)) if given.json else table(lives))
    return 1 if any(life.faults or life.missed for life in lives) else 0


def build_rig(folder: Path) -> Rig:
    """Text and recipe in a new folder."""
    (folder / "text").mkdir(parents=True)
    for number in range(4):
        (folder / "text" / f"{number}.txt").write_text("\n\n".join(write_prose(100 * number + part, 120) for part in range(60)))
    ours = ("PHASEWISE_HOME", "PREFECT_API_URL", "XLA_FLAGS")
    settings = {"PYTHONPATH": str(ROOT), "PHASEWISE_DASK_WORKERS": "2", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    rig = Rig(folder, folder / "my_recipe.py", {name: value for name, value in os.environ.items() if name not in ours} | settings)
    assert rig.start("new", rig.recipe, "--text", "text", log=folder / "new").wait() == 0, (folder / "new.err").read_text()
    rig.recipe.write_text(shortened(rig.recipe.read_text()))
    return rig


def shortened(text: str) -> str:
    """The recipe that `phasewise new` writes, with fewer steps and weights."""
    for long, short in SHORTER.items():
        assert long in text, f"the recipe that `phasewise new` writes has no {long} any more: correct SHORTER"
        text = text.replace(long, short)
    return text


def undisturbed(rig: Rig) -> dict[str, Any]:
    home = rig.folder / "undisturbed"
    code = rig.run(home, rig.folder / "undisturbed-run").wait(MAX_SECONDS)
    assert code == 0, (rig.folder / "undisturbed-run.err").read_text()[-3000:]
    return outcome(home, rig.folder / "undisturbed-run.out")


def plan(kills: int) -> Iterator[list[Kill]]:
    every = iter(range(kills))
    number = 0
    while chosen := list(islice(every, len(STAGES))):
        spread = [one * len(STAGES) // len(chosen) for one in range(len(chosen))]
        yield [Kill(STAGES[one], STAGES[one].parties[(number + one) % len(STAGES[one].parties)]) for one in spread]
        number += 1


def disturb(rig: Rig, life: Life, kills: Sequence[Kill]) -> None:
    """Give the command until it ends well, and carry out the kills on the way."""
    planned = list(kills)
    while life.attempts < 2 * len(kills) + 2:
        life.attempts += 1
        log = rig.folder / f"home-{life.number}-attempt-{life.attempts}"
        before = len(life.struck)
        code = attempt(rig, life, planned, log)
        if "Traceback" in Path(f"{log}.err").read_text(errors="replace"):
            life.faults.append(f"{log.name} printed a traceback")
        latest = life.struck[before:]
        for one in latest[:-1]:
            one.outcome = "went on by itself"
        if latest:
            latest[-1].outcome = "went on by itself" if code == 0 else f"ended with {code}, given again"
            if code not in ENDINGS.get(latest[-1].party, OTHER_ENDINGS):
                life.faults.append(f"{log.name} ended with {code} after the {latest[-1].party} was killed")
        elif code != 0:
            life.faults.append(f"{log.name} ended with {code}, and nothing was killed")
        if code == 0:
            life.missed += [f"{kill.stage.name}: {kill.party}" for kill in planned]
            return
    life.faults.append(f"not done after {life.attempts} attempts")


def attempt(rig: Rig, life: Life, planned: list[Kill], log: Path) -> int:
    process = rig.run(life.home, log)
    seen: dict[int, psutil.Process] = {}
    everyone, is_struck_down = list[psutil.Process](), False
    looked, until = 0.0, time.monotonic() + MAX_SECONDS
    while process.poll() is None and time.monotonic() < until:
        if time.monotonic() - looked >= FAMILY_SECONDS:
            looked = time.monotonic()
            everyone = family(process.pid)
            seen |= {one.pid: one for one in everyone}
        may_strike = planned and not is_struck_down and planned[0].stage.is_now(life.home, life.killed_at)
        if may_strike and (chosen := members(planned[0].party, everyone)):
            for one in chosen:
                with suppress(psutil.NoSuchProcess):
                    one.kill()
            stage, party = planned.pop(0)
            life.killed_at = time.time()
            life.struck.append(Struck(stage.name, party, where(life.home)))
            is_struck_down = party in ENDINGS  # the command itself: ignore processes that outlive it briefly
            looked = 0.0
            continue
        time.sleep(LOOK_SECONDS)
    if process.poll() is None:
        life.faults.append(f"{log.name} did not end within {MAX_SECONDS:g} s")
        for one in family(process.pid):
            one.kill()
    _, left = psutil.wait_procs([one for one in seen.values() if one.pid != process.pid], timeout=ENDS_SECONDS)
    for one in left:
        life.faults.append(f"{log.name} left {line_of(one)[:120]} behind")
        one.kill()
    return process.wait()


def where(home: Path) -> str:
    """How far a home is, and whether a checkpoint is half written: for the table."""
    rows = ", ".join(f"{phase} {_rows(home, phase)}" for phase in PHASES if _rows(home, phase))
    return f"{rows or 'data'}{'; a checkpoint half written' if _has(home, f'runs/{RUN}/*/checkpoints/*{ORBAX_WRITES}*') else ''}"


def members(party: str, everyone: Sequence[psutil.Process]) -> list[psutil.Process]:
    """The processes of a party: of Dask's workers one."""
    if party == "everything":
        return list(everyone)
    if party == "command":
        return list(everyone[:1])
    found = [one for one in everyone[1:] if {*SIGNS[party]} <= {*words_of(one)}]
    return found[:1]


def family(root: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        first = psutil.Process(root)
        return [first, *first.children(recursive=True)]
    return []


def words_of(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return process.cmdline()
    return []


def line_of(process: psutil.Process) -> str:
    return " ".join(words_of(process))


def outcome(home: Path, said: Path) -> dict[str, Any]:
    phases = json.loads(said.read_text())["phases"]
    rows = {
        phase: [
            {name: value for name, value in json.loads(line).items() if name not in OF_THE_CLOCK}
            for line in (_run(home, phase) / "metrics.jsonl").read_text().splitlines()
        ]
        for phase in PHASES
    }
    names = ("name", "steps", "tokens", "final_loss", "bits_per_byte", "verdict", "params_digest")
    return {"phases": [{name: phase[name] for name in names} for phase in phases], "rows": rows}


def differences(rig: Rig, life: Life, wanted: dict[str, Any]) -> list[str]:
    said = rig.folder / f"home-{life.number}-attempt-{life.attempts}.out"
    try:
        found = outcome(life.home, said)
    except (OSError, ValueError, KeyError) as error:
        return [f"no outcome: {error!r}"]
    wrong = [f"{phase}: other rows" for phase in PHASES if found["rows"][phase] != wanted["rows"][phase]]
    pairs = zip(found["phases"], wanted["phases"], strict=True)
    wrong += [f"{one['name']}: {one}, undisturbed {other}" for one, other in pairs if one != other]
    log = rig.folder / f"home-{life.number}-status"
    rig.start("status", rig.recipe, "--home", life.home, "--json", *SETTINGS, log=log).wait(MAX_SECONDS)
    states = [phase["state"] for phase in json.loads(Path(f"{log}.out").read_text() or '{"phases": []}')["phases"]]
    wrong += [] if states == ["done"] * len(PHASES) else [f"status says {states}"]
    names = [path.relative_to(life.home).as_posix() for path in life.home.rglob("*")]
    wrong += [f"half written: {name}" for name in names if ORBAX_WRITES in name or name.endswith((".tmp", ".partial"))]
    return wrong + [f"set aside: {name}" for name in names if SUPERSEDED in name and name.count("/") == 2]


def summary(lives: Sequence[Life]) -> dict[str, Any]:
    """For programs."""
    return {
        "kills": sum(len(life.struck) for life in lives),
        "homes": [
            {
                "number": life.number,
                "attempts": life.attempts,
                "as_undisturbed": not life.faults,
                "faults": life.faults,
                "missed": life.missed,
                "kills": [vars(one) for one in life.struck],
            }
            for life in lives
        ],
    }


def table(lives: Sequence[Life]) -> str:
    """For people."""
    struck = [one for life in lives for one in life.struck]
    lines = ["| stage | killed | kills | what came of it |", "|---|---|---|---|"]
    for stage, party in dict.fromkeys((one.stage, one.party) for one in sorted(struck, key=_order)):
        of_it = [one for one in struck if (one.stage, one.party) == (stage, party)]
        came = "; ".join(f"{count} × {what}" for what, count in Counter(one.outcome for one in of_it).items())
        half = sum("half written" in one.at for one in of_it)
        lines.append(f"| {stage} | {party} | {len(of_it)} | {came}{f'; {half} with a checkpoint half written' if half else ''} |")
    well = sum(not life.faults for life in lives)
    lines += ["", f"{len(struck)} kills in {len(lives)} homes; {well} of {len(lives)} ended as the run that nobody disturbed."]
    lines += [f"home {life.number}: {fault}" for life in lives for fault in life.faults]
    lines += [f"home {life.number}: not met: {missed}" for life in lives for missed in life.missed]
    return "\n".join(lines)


def _order(one: Struck) -> tuple[int, str]:
    return [stage.name for stage in STAGES].index(one.stage), one.party


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
