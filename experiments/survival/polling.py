"""Poll the states of a recipe while its runs are killed and resumed. No state may be false.

`python -m experiments.survival.polling FOLDER --runs 10`

FOLDER must not be there. A tiny recipe runs in separate homes. In each home a trainer and a command are killed at random moments, and the
command is repeated until it ends. Meanwhile `status` and the page are read about every second. A state is false if it is not a stage,
queued or done while the command lives and holds the home, if it is a stage without a process, or if it goes backwards in one command.
A poll in which a process starts or ends has no expectation. Prints the numbers of polls and of false states, and each false state.
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from experiments.survival.chaos import ROOT, Rig, family, members
from experiments.survival.runs import COMPONENTS, tiny_recipe
from phasewise.flows.cli.status import describe
from phasewise.flows.prefect.server import own_server
from phasewise.flows.site.pages import live
from phasewise.flows.site.shelf import Links, Set, Shelf
from phasewise.flows.site.site import Site
from phasewise.tasks.data.stand_ins import RECORD_NAME
from phasewise.tasks.home import Home
from phasewise.tasks.locks import holder_of
from phasewise.tasks.phase_state import AT_WORK, PENDING, State
from tests.ports import free_port
from tests.tasks.conftest import write_lines, write_prose

RUN, PHASES = "tiny-proxy", ("kestrel", "ocelot")
LOOK_SECONDS, END_SECONDS = 0.02, 600.0
COMMAND_EVERY = 20
"""Every so many polls `phasewise status --json` is read as a process of its own."""
RANKS = {state: rank for rank, state in enumerate((*AT_WORK, State.DONE), start=1)}
"""A phase that waits or is queued has rank 0."""


@dataclass
class Poll:
    """Reads the states of one home in a thread. `process`: the command at work, `attempt`: its number."""

    home: Path
    recipe: Path
    every_seconds: float
    process: subprocess.Popen[bytes] | None = None
    attempt: int = 0
    counts: Counter[str] = field(default_factory=Counter[str])
    seen: Counter[str] = field(default_factory=Counter[str])
    false: list[str] = field(default_factory=list)
    ranks: dict[tuple[str, int, str], int] = field(default_factory=dict)
    started: set[psutil.Process] = field(default_factory=set[psutil.Process])
    ended: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        """Poll, and count an end of the readers by an error as a false state."""
        try:
            self.work()
        except Exception as error:
            self.false.append(f"the readers ended: {error!r}")
            raise

    def work(self) -> None:
        opened = Home.at(str(self.home), reads_only=True)
        site = Site(Shelf(opened, [str(self.recipe)]))
        while not self.ended.is_set():
            began = time.monotonic()
            found = site.shelf.find(*RUN.rsplit("-", 1))
            reads: dict[str, Callable[[], dict[str, str]]] = {"status": self.status}
            if found and found.in_home:
                reads |= {"page": partial(page_states, site, found), "live": partial(live_states, site, found)}
            if self.counts["polls"] % COMMAND_EVERY == COMMAND_EVERY - 1:
                reads["command"] = self.command
            for reader, read in reads.items():
                before = self.truth()
                states = read()
                self.judge(reader, states, before if self.truth() == before else None)
            self.counts["polls"] += 1
            self.ended.wait(max(0.0, self.every_seconds - (time.monotonic() - began)))

    def status(self) -> dict[str, str]:
        return {phase["name"]: phase["state"] for phase in describe(str(self.recipe), "proxy", str(self.home))["phases"]}

    def command(self) -> dict[str, str]:
        command = [sys.executable, "-m", "phasewise.flows.cli.main", "status", str(self.recipe), "--home", str(self.home), "--json"]
        answer = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT, check=False).stdout
        return {phase["name"]: phase["state"] for phase in json.loads(answer)["phases"]}

    def truth(self) -> tuple[int, str]:
        """The number of the command, and `live` if it holds the home, `free` without a process, or `between`."""
        process, attempt = self.process, self.attempt
        found = (one for one in psutil.process_iter(["cmdline"]) if str(self.home) in " ".join(one.info["cmdline"] or ()))
        self.started.update(found)  # an ending process loses its command line before its locks
        if process is not None and process.poll() is None:
            holder = holder_of(self.home / "lock")
            return attempt, "live" if holder and holder.pid == process.pid else "between"
        return attempt, "between" if any(map(is_alive, self.started)) else "free"

    def judge(self, reader: str, states: dict[str, str], truth: tuple[int, str] | None) -> None:
        attempt, now = truth or (self.attempt, "between")
        self.counts[f"{reader}, {now}"] += len(states)
        for phase, word in states.items():
            self.seen[word] += 1
            state, name = State(word), (reader, attempt, phase)
            problem = ""
            if now == "live" and state not in (*PENDING, State.DONE):
                problem = "while the command lives"
            elif now == "free" and state in PENDING:
                problem = "without a process"
            elif now == "live" and RANKS.get(state, 0) < self.ranks.get(name, 0):
                problem = "backwards"
            if now == "live":
                self.ranks[name] = max(RANKS.get(state, 0), self.ranks.get(name, 0))
            if problem:
                self.false.append(f"{self.home.name}, command {attempt}, {reader}: {phase} is {word} {problem}")
                print(self.false[-1], file=sys.stderr, flush=True)


def is_alive(process: psutil.Process) -> bool:
    """A process keeps its locks until its last thread ends, also if its first thread is a zombie."""
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and (process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1)
    return False


def page_states(site: Site, found: Set) -> dict[str, str]:
    return {phase: state.word for phase, state in site.states(found, site.shelf.phases(found)).items()}


def live_states(site: Site, found: Set) -> dict[str, str]:
    return {one.address.phase: live(site, Links(""), found, one)["state"] for one in site.shelf.phases(found)}


def main(words: Sequence[str]) -> int:
    """Return exit code 1 if a state was false, or a run did not end."""
    parser = argparse.ArgumentParser(prog="python -m experiments.survival.polling")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--every-seconds", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(words)
    folder, draw = given.folder.absolute(), random.Random(given.seed)
    for place, name in enumerate(COMPONENTS):
        texts = [write_prose(10_000 * place + number, 20) for number in range(150)]
        write_lines(folder / "sources" / name / "part.jsonl", texts)
    (folder / "sources" / RECORD_NAME).write_text("{}")
    recipe = folder / "tiny.json"
    recipe.write_text(tiny_recipe().model_dump_json())
    counts, seen, false = Counter[str](), Counter[str](), list[str]()
    with own_server(Home.open(str(folder / "server")), free_port(), "the poll") as server:
        prefect = {"PREFECT_API_URL": server.url, "PREFECT_API_AUTH_STRING": server.auth}
        settings = {"PYTHONPATH": str(ROOT), "PHASEWISE_DASK_WORKERS": "1", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
        rig = Rig(folder, recipe, dict(psutil.Process().environ()) | prefect | settings)
        for number in range(given.runs):
            home = folder / f"home-{number}"
            shutil.copytree(folder / "sources", home / "sources")
            compiled = Path("runs", RUN, "compilation-cache")
            if number:
                shutil.copytree(folder / f"home-{number - 1}" / compiled, home / compiled)
            poll = Poll(home, recipe, given.every_seconds)
            thread = threading.Thread(target=poll.watch)
            thread.start()
            try:
                poll.counts["kills"] += run_with_kills(rig, poll, draw)
                time.sleep(3 * given.every_seconds)
            finally:
                poll.ended.set()
                thread.join()
            counts, seen, false = counts + poll.counts, seen + poll.seen, false + poll.false
            print(f"{home.name}: {dict(poll.counts)}, {len(poll.false)} false", file=sys.stderr, flush=True)
    about: dict[str, Any] = {"runs": given.runs, **dict(sorted(counts.items())), "states": dict(seen), "false": false}
    print(json.dumps(about, indent=2))
    return bool(false)


def run_with_kills(rig: Rig, poll: Poll, draw: random.Random) -> int:
    """Repeat the command until it ends well, with a kill of a trainer and of two commands. Return the number of kills."""
    run = poll.home / "runs" / RUN

    def rows(phase: str, least: int) -> Callable[[], bool]:
        return lambda: (run / phase / "metrics.jsonl").exists() and (run / phase / "metrics.jsonl").read_bytes().count(b"\n") >= least

    def verdict(phase: str, gate: str) -> Callable[[], bool]:
        return (poll.home / "verdicts" / RUN / phase / f"{gate}.json").exists

    moments = [rows("kestrel", draw.randint(1, 35)), verdict("kestrel", "data"), verdict("kestrel", "health"), rows("ocelot", 4)]
    planned: list[tuple[str, Callable[[], bool]]] = [
        ("trainer", rows(draw.choice(PHASES), draw.randint(2, 10))),
        *(("command", moment) for moment in draw.sample([*moments, lambda: any(poll.home.glob("tokens/*/*/*.bin"))], 2)),
    ]
    kills = 0
    for attempt in range(1, 7):
        poll.process, poll.attempt = rig.start("run", poll.recipe, "--home", poll.home, "--json", log=poll.home / f"run-{attempt}"), attempt
        while poll.process.poll() is None:
            due = next((one for one in planned if one[1]()), None)
            if due and (chosen := members(due[0], family(poll.process.pid))):
                everyone = family(poll.process.pid)
                planned.remove(due)
                kills += 1
                for one in chosen:
                    one.kill()
                if due[0] == "command":
                    poll.process.wait()
                    psutil.wait_procs(everyone[1:], timeout=END_SECONDS)
                    time.sleep(2.5 * poll.every_seconds)
            time.sleep(LOOK_SECONDS)
        if poll.process.returncode == 0:
            return kills
    raise SystemExit(f"{poll.home}: no command ended well: {(poll.home / 'run-6.err').read_text()[-2000:]}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
