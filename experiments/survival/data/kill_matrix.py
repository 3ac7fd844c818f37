"""Builds in which one process is killed at a random moment: `python -m experiments.survival.data.kill_matrix --seeds 20` prints a table.

Progress determines the moment, not time: a number of complete files, and in half of the cases an open temporary file.
"""

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from random import Random

from experiments.survival.data.corpus import write_corpus
from experiments.survival.data.folders import Files, contents, differences, files, finished, half_done, is_temporary, whole, written_again
from experiments.survival.data.processes import Cluster, Processes, Running, kill, processes, stops_while_writing, wait_for
from tests.stores.emulator import BUCKET, the_emulator

KINDS = (("scheduler", "driver"), ("scheduler", "worker"), ("scheduler", "scheduler"), ("own", "driver"), ("own", "worker"))
"""Where the workers come from, a scheduler's address or the driver itself, and who is killed."""
MAX_FILES_WAITED = 6


@dataclass(frozen=True)
class Moment:
    files: int
    writing: bool

    def has_come(self, found: Files) -> bool:
        return len(whole(found)) >= self.files and (not self.writing or any(map(is_temporary, found)) or self.has_passed(found))

    def has_passed(self, found: Files) -> bool:
        """Whether too many files came since for waiting on: a store never shows one that is being written."""
        return len(whole(found)) >= self.files + MAX_FILES_WAITED

    def __str__(self) -> str:
        return f"{self.files} files{' and a half' if self.writing else ''}"


@dataclass(frozen=True)
class Trial:
    seed: int
    workers_of: str
    victim: str
    moment: Moment
    half_written: int
    kept: int
    made: int
    written_again: list[str]
    half_done: list[str]
    differences: list[str]

    @property
    def is_whole(self) -> bool:
        return not (self.written_again or self.half_done or self.differences)

    def __str__(self) -> str:
        left = f"{self.half_written} half written, {self.kept} finished and kept, {self.made} made, {len(self.written_again)} written again"
        end = "identical" if self.is_whole else "; ".join(["DIFFERENT", *self.written_again, *self.half_done, *self.differences])
        return f"{self.seed:>4}  {self.workers_of:<9}  {self.victim:<9}  {self.moment!s:<20}  {left:<70}  {end}"


def disturb(seed: int, folder: Path, corpus: Path, undisturbed: dict[str, str], home: str | Path) -> Trial:
    draw = Random(seed)
    workers_of, victim = KINDS[seed % len(KINDS)]
    moment = Moment(draw.randrange(1, len(undisturbed) - 2 * MAX_FILES_WAITED), draw.random() < 0.5)
    with processes(folder) as started:
        cluster = started.cluster() if workers_of == "scheduler" else None
        driver = started.driver(home, corpus, cluster=cluster)

        def strikes() -> bool:
            found = files(home)
            amid_writing = victim == "worker" and moment.writing and not moment.has_passed(found)
            return moment.has_come(found) and _kill_one(draw, _victims(victim, driver, cluster), amid_writing=amid_writing)

        wait_for(strikes, driver)
        before = files(home)
        _recover(victim, driver, cluster, started, home, corpus)
    after = files(home)
    return Trial(
        seed=seed,
        workers_of=workers_of,
        victim=victim,
        moment=moment,
        half_written=sum(map(is_temporary, before)),
        kept=len(finished(before)),
        made=len(whole(after) - finished(before).keys()),
        written_again=written_again(before, after),
        half_done=half_done(after),
        differences=differences(undisturbed, contents(home)),
    )


def build_undisturbed(folder: Path, corpus: Path, workers: int = 1) -> dict[str, str]:
    with processes(folder) as started:
        started.driver(folder / "home", corpus, workers=workers).succeeded()
    return contents(folder / "home")


def _kill_one(draw: Random, pids: list[int], *, amid_writing: bool) -> bool:
    for pid in draw.sample(pids, len(pids)):
        if not amid_writing or stops_while_writing(pid):
            kill(pid)
            return True
    return False


def _victims(victim: str, driver: Running, cluster: Cluster | None) -> list[int]:
    if victim == "driver":
        return [driver.pid]
    if cluster is None:
        return [process.pid for process in driver.workers()]
    return [cluster.scheduler.pid] if victim == "scheduler" else [worker.pid for worker in cluster.workers]


def _recover(victim: str, driver: Running, cluster: Cluster | None, started: Processes, home: str | Path, corpus: Path) -> None:
    if victim == "worker":
        driver.succeeded()
        return
    code = driver.ended()
    if victim == "scheduler":
        assert cluster is not None
        said = driver.errors.read_text()
        assert code == 0 or (said.startswith("phasewise: ") and "scheduler" in said), driver.said()  # 0: it was done already
        for worker in cluster.workers:
            worker.is_gone()
        cluster = started.cluster()
    started.driver(home, corpus, cluster=cluster).succeeded()


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill a process of a build at a random moment, and compare what is built in the end.")
    parser.add_argument("--seeds", type=int, default=20, help="how many trials")
    parser.add_argument("--first", type=int, default=0, help="the first trial's seed")
    parser.add_argument("--store", choices=("local", "gcs"), default="local", help="where is built: in a folder, or on an emulated store")
    chosen = parser.parse_args()
    if chosen.store == "gcs":
        the_emulator()
    with tempfile.TemporaryDirectory(prefix="phasewise-kills-") as name:
        folder = Path(name)
        write_corpus(folder / "corpus")
        undisturbed = build_undisturbed(folder / "undisturbed", folder / "corpus")
        print(f"undisturbed: {len(undisturbed)} files\nseed  workers    killed     when", flush=True)
        seeds = range(chosen.first, chosen.first + chosen.seeds)
        good = sum(_try(seed, folder, undisturbed, on_store=chosen.store == "gcs") for seed in seeds)
    print(f"{good} of {len(seeds)} builds are whole and identical")
    return 0 if good == len(seeds) else 1


def _try(seed: int, folder: Path, undisturbed: dict[str, str], *, on_store: bool) -> bool:
    place = folder / f"seed-{seed}"
    home = f"gs://{BUCKET}/seed-{seed}" if on_store else place / "home"
    try:
        trial = disturb(seed, place, folder / "corpus", undisturbed, home)
    except AssertionError as error:
        print(f"{seed:>4}  {error}", flush=True)
        return False
    print(trial, flush=True)
    return trial.is_whole


if __name__ == "__main__":
    sys.exit(main())
