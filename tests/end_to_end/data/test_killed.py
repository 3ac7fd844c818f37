"""A process of a build is killed: what is finished stays, and what is built in the end is what would have been built.

Who builds, how many they are and in which order they finish decides nothing.

`python -m experiments.survival.data.kill_matrix` does it as often as wished.
"""

import json
import os
from pathlib import Path

import pytest

from experiments.survival.data.folders import contents, differences, files, finished, written_again
from experiments.survival.data.kill_matrix import KINDS, disturb
from experiments.survival.data.processes import Processes, kill, wait_for
from phasewise.trainer.base.storage import write_atomically
from phasewise.trainer.data.manifest import MANIFEST_NAME
from tests.end_to_end.data.conftest import Undisturbed
from tests.stores.emulator import the_emulator

pytestmark = pytest.mark.timeout(600)  # a guard against hanging: each takes 5 to 10 s where nothing else runs
GONE = "the Dask scheduler went away. Start it and run again: what is finished is kept."


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, len(KINDS)))])
def test_killed_at_a_random_moment(seed: int, undisturbed: Undisturbed, corpus: Path, tmp_path: Path):
    trial = disturb(seed, tmp_path, corpus, undisturbed.contents, tmp_path / "home")
    assert trial.is_whole, trial


@pytest.mark.long
def test_killed_on_an_object_store(undisturbed: Undisturbed, corpus: Path, gcs: Path, tmp_path: Path):
    trial = disturb(KINDS.index(("own", "driver")), tmp_path, corpus, undisturbed.contents, gcs)
    assert trial.is_whole, trial


@pytest.mark.long
def test_without_its_scheduler_a_build_ends_and_a_half_built_cache_is_finished_later(
    started: Processes, undisturbed: Undisturbed, corpus: Path, tmp_path: Path
):
    home = tmp_path / "home"
    cluster = started.cluster()
    driver = started.driver(home, corpus, cluster=cluster)
    wait_for(lambda: sum("/shard-" in name and name.endswith(".json") for name in files(home)) >= 8, driver)
    kill(cluster.scheduler.pid)
    assert driver.ended() == 1
    assert driver.errors.read_text() == f"phasewise: token caches: {GONE}\n"
    before = files(home)
    half_built = {name.rpartition("/")[0] for name in finished(before) if f"{name.rpartition('/')[0]}/{MANIFEST_NAME}" not in before}
    assert half_built
    again = started.driver(home, corpus, workers=1)
    assert json.loads(again.succeeded()) == {"documents": 0, "tokenizers": 0, "caches": 6}
    assert written_again(before, files(home)) == []
    assert differences(undisturbed.contents, contents(home)) == []


EVERYTHING = {"documents": 3, "tokenizers": 1, "caches": 6}
BARE = {"PATH": os.environ["PATH"]}  # workers know nothing of the driver's environment


@pytest.mark.long
def test_four_workers_in_another_order(started: Processes, undisturbed: Undisturbed, corpus: Path, tmp_path: Path):
    started.driver(tmp_path / "home", corpus, "--shuffle=1", workers=4).succeeded()
    assert differences(undisturbed.contents, contents(tmp_path / "home")) == []


def test_two_builders_of_the_same_caches(started: Processes, undisturbed: Undisturbed, corpus: Path, tmp_path: Path):
    drivers = [started.driver(tmp_path / "home", corpus, workers=1) for _ in range(2)]
    first, second = (json.loads(driver.succeeded()) for driver in drivers)
    assert [{first[task], second[task]} for task in EVERYTHING] == [{0, done} for done in EVERYTHING.values()]
    assert differences(undisturbed.contents, contents(tmp_path / "home")) == []


@pytest.mark.long
def test_two_workers_that_share_nothing_but_an_object_store(started: Processes, corpus: Path, gcs: Path, tmp_path: Path):
    """The sources lie there, too. What these workers build there is what another makes of the same sources in a folder here."""
    for path in corpus.rglob("*.*"):
        write_atomically(gcs / "corpus" / path.relative_to(corpus).as_posix(), path.read_bytes())
    cluster = started.cluster("--nthreads=2", environment=BARE | the_emulator().variables)
    there = started.driver(gcs / "home", gcs / "corpus", cluster=cluster)
    here = started.driver(tmp_path / "home", gcs / "corpus", workers=1)
    assert json.loads(there.succeeded()) == json.loads(here.succeeded()) == EVERYTHING
    assert differences(contents(tmp_path / "home"), contents(gcs / "home")) == []
