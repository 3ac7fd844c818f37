"""Kills two random parties of a real proxy run at random moments, seed by seed: what is trained must be what nobody disturbed.

`python -m tests.pulse.chaos --seeds 10 --prepared HOME --work FOLDER [--phases kestrel,ocelot]`

HOME has the recipe trained by a run that nobody killed, by the same code and installation: its caches are copied, its digests are compared
with. Parties: the command (with its flows), the trainer, the server, a Dask worker or evaluation process, and everything at once. After
each kill the command is given again where it ended. Prints one JSON object a seed.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

RECIPE, RUN = "marin-8b", "marin-8b-proxy"
COPIED = ("documents", "tokens", "tokenizers", "sources", "evidence", "verdicts", "benchmarks", "digests.json")
PARTIES = ("command", "trainer", "server", "worker", "everything")
KILLS, MAX_ATTEMPTS = 2, 8
MOMENT_SECONDS = (3.0, 75.0)
LIMIT_SECONDS = 1500.0
SIGNS = {"trainer": "-m trainer ", "server": "flows.server", "worker": "multiprocessing"}


@dataclass
class Seed:
    """One life of a home: what was killed and when, and what came out."""

    number: int
    home: Path
    kills: list[str] = field(default_factory=list)
    attempts: int = 0
    codes: list[int] = field(default_factory=list)


def main(words: Sequence[str]) -> int:
    """Exit code 0 where every seed ended as if nothing had been."""
    parser = argparse.ArgumentParser(prog="python -m tests.pulse.chaos")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--prepared", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--phases", default="kestrel,ocelot")
    given = parser.parse_args(words)
    phases = given.phases.split(",")
    expected = {phase: digest_of(given.prepared, phase) for phase in phases}
    is_well = True
    for number in range(given.first, given.first + given.seeds):
        started = time.monotonic()
        seed = Seed(number, prepared_home(given.prepared, given.work / f"seed-{number}"))
        disturb(seed, phases)
        found = {phase: digest_of(seed.home, phase) for phase in phases}
        twice = sorted(path.name for path in (seed.home / "runs" / RUN).glob("*superseded*"))
        same = found == expected and not twice
        is_well &= same
        about = {"kills": seed.kills, "attempts": seed.attempts, "codes": seed.codes, "set_aside": twice}
        print(json.dumps({"seed": number, "same": same, **about, "seconds": round(time.monotonic() - started)}), flush=True)
    return 0 if is_well else 1


def prepared_home(prepared: Path, place: Path) -> Path:
    """A home with the data of another, and no run."""
    place.mkdir(parents=True)
    for name in COPIED:
        source = prepared / name
        if source.is_dir():
            shutil.copytree(source, place / name)
        elif source.exists():
            shutil.copy(source, place / name)
    return place


def digest_of(home: Path, phase: str) -> str | None:
    """The weights of a finished phase."""
    path = home / "runs" / RUN / phase / "result.json"
    return json.loads(path.read_text())["params_digest"] if path.exists() else None


def disturb(seed: Seed, phases: Sequence[str]) -> None:
    """Train the phases, with two kills over all of it."""
    chance = random.Random(seed.number)
    moments = [chance.uniform(*MOMENT_SECONDS) for _ in range(KILLS)]
    parties = chance.sample(PARTIES, KILLS)
    planned: list[tuple[float, str]] = list(zip(moments, parties, strict=True))
    until = time.monotonic() + LIMIT_SECONDS
    for phase in phases:
        while seed.attempts < MAX_ATTEMPTS and time.monotonic() < until:
            seed.attempts += 1
            code = attempt(seed, phase, planned)
            seed.codes.append(code)
            if code == 0:
                break


def attempt(seed: Seed, phase: str, planned: list[tuple[float, str]]) -> int:
    """One command to its end; kills that are due on the way are carried out, the next one counted from there."""
    command = [sys.executable, "-m", "flows.cli", "run", f"{RECIPE}/{phase}", "--home", str(seed.home), "--json"]
    with open(seed.home / "command.log", "ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        began = time.monotonic()
        while process.poll() is None:
            if planned and time.monotonic() - began >= planned[0][0]:
                moment, party = planned.pop(0)
                seed.kills.append(f"{phase} {moment:.0f} s: {kill(process.pid, party)}")
                began = time.monotonic()
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
    return process.returncode


def kill(root: int, party: str) -> str:
    """Kill the party, or, where there is none of that kind now, the command; says which."""
    everyone = family(root)
    chosen = [one for one in everyone if party in SIGNS and SIGNS[party] in line_of(one)]
    if party == "everything":
        chosen = everyone
    elif not chosen:
        party, chosen = f"command (no {party})" if party != "command" else party, everyone[:1]
    elif party == "worker":
        chosen = chosen[:1]
    for one in chosen:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    return party


def family(root: int) -> list[psutil.Process]:
    """A process and all below it, itself first."""
    with suppress(psutil.NoSuchProcess):
        first = psutil.Process(root)
        return [first, *first.children(recursive=True)]
    return []


def line_of(process: psutil.Process) -> str:
    """Its command line."""
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


if __name__ == "__main__":
    os.environ.setdefault("PHASEWISE_DASK_WORKERS", "2")
    sys.exit(main(sys.argv[1:]))
