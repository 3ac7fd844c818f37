"""Who builds, how many they are and in which order they finish decides nothing."""

import json
import os
from pathlib import Path

import pytest

from experiments.survival.data.folders import contents, differences
from experiments.survival.data.processes import Processes
from phasewise.trainer.base.storage import write_atomically
from tests.end_to_end.data.conftest import Undisturbed
from tests.stores.emulator import the_emulator

pytestmark = pytest.mark.timeout(600)  # a guard against hanging: each takes 5 to 10 s where nothing else runs
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
