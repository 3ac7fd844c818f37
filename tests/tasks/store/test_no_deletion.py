"""A store that forbids every deletion (retention, a role without the right to delete): a run does its work, and one line says so."""

import logging
import re
import time
from pathlib import Path
from typing import Any, cast

import pytest

from phasewise.tasks.home import Home
from phasewise.tasks.locks import held
from phasewise.tasks.store.publisher import keeper_of
from phasewise.tasks.training.hosts import take_back
from phasewise.trainer.base import storage
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.storage import file_system_of, remove_strays, write_atomically
from phasewise.trainer.checkpoints.files import find_damage, remove_checkpoint
from tests.stores.emulator import the_emulator
from tests.stores.fixtures import FaultyStore
from tests.tasks.store.machine import RUN_NAME, Machine

ROOT = Path(__file__).parents[3]
DELETES = re.compile(r'\.rm_file\(|\.rm\(|"DELETE"|\.mv\(|\.delete_file\(')
PLACES = {
    "tasks/home.py": 1,  # the probe
    "tasks/locks.py": 1,  # a lease
    "tasks/store/content.py": 1,  # content that no head names any more
    "tasks/training/hosts.py": 1,  # heartbeats and meetings of hosts
    "trainer/base/storage.py": 2,  # strays, and an object that the store says is damaged
}
"""Where something on a store is deleted, and how often; the test below goes through each but the last."""


@pytest.fixture
def forbidding(faulty_store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> FaultyStore:
    monkeypatch.setattr(storage, "_warned", set())
    faulty_store.faults.refuse(method="DELETE", status=403, times=10**9)
    return faulty_store


def test_every_place_that_deletes_on_a_store_is_known_here():
    found = {
        str(path.relative_to(ROOT)): len(hits)
        for package in ("trainer", "tasks", "validations", "flows", "deployments")
        for path in sorted((ROOT / package).rglob("*.py"))
        if (hits := DELETES.findall(path.read_text()))
    }
    assert found == PLACES, "deletion is clean-up: go through it within trainer.base.storage.cleaning_up, and name it here"


def test_a_run_does_its_work_where_nothing_can_be_deleted(
    forbidding: FaultyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, "phasewise")

    def work(step: int, scratch: str) -> Machine:
        monkeypatch.setenv("PHASEWISE_SCRATCH", str(tmp_path / scratch))
        home = Home.open(str(forbidding.root))
        one = Machine(home.work, forbidding.root)
        with home.held("a run"), home.kept(RUN_NAME):
            if step not in [int(path.name) for path in one.run.checkpoints.glob("*")]:
                one.train_to(step)
                keeper = keeper_of(one.run.path)
                assert keeper
                assert keeper.publish()
                remove_checkpoint(one.run.checkpoint(step - 1))
            write_atomically(forbidding.root / "documents" / "stray", b"1")
            remove_strays(forbidding.root / "documents", ())
            keeper = keeper_of(one.run.path)
            assert keeper
            keeper.publish()
            take_back(keeper, one.run, needs_weights=False)
        return one

    write_atomically(forbidding.root / "runs" / RUN_NAME / "launches" / "gone" / "0", b"{}")
    work(4, "one")
    first = work(5, "one")
    second = work(5, "another")
    assert second.files() == first.files()
    assert find_damage(second.run.checkpoint(5)) is None
    assert not second.run.checkpoint(4).exists()
    assert len(first.objects()) > len(second.files())  # the weights of step 4 are still there
    (line,) = [record.getMessage() for record in caplog.records if "warning" in record.getMessage()]
    assert re.fullmatch(r"warning: gs://phasewise-tests does not let files be deleted \(Forbidden: .*\): those that .* stay there\.", line)
    refused = " ".join(request for kind, request in forbidding.faults.happened if kind == "refuse")
    for deleted in (".probe-", "/lock", "/objects/", "/stray", "/launches/gone/0"):
        assert deleted in refused, deleted


def test_a_lease_that_cannot_be_deleted_is_given_back_and_found_dead(forbidding: FaultyStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PHASEWISE_LEASE_SECONDS", "60")
    lock = forbidding.root / "lock"
    began = time.monotonic()
    for _ in range(3):
        with held(lock, wait=False):
            pass
    assert time.monotonic() - began < 30  # nobody waits for a lease of 60 s
    with held(lock, wait=False) as still_held:
        file_system, name = cast(tuple[Any, str], file_system_of(lock))
        before = the_emulator().describe(lock)["metageneration"]
        file_system.call("PATCH", "b/{}/o/{}", *name.split("/", 1), json={"metadata": {"beat": "1", "lease_seconds": "1", "free": "no"}})
        assert the_emulator().describe(lock)["metageneration"] != before
        assert still_held()
    monkeypatch.setenv("PHASEWISE_LEASE_SECONDS", "1")
    with held(lock, wait=False), pytest.raises(ConfigError, match="another run is at work"), held(lock, wait=False):
        pass
