import logging
import operator
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from dask.distributed import Client, LocalCluster

from phasewise.tasks.data import cluster
from phasewise.tasks.data.cluster import SCHEDULER_VARIABLE, WORKERS_VARIABLE, run_all
from phasewise.tasks.home import Home
from phasewise.trainer.base import errors

pytestmark = pytest.mark.timeout(240)  # a guard against hanging


def fail_twice(log: Path, error: Exception) -> str:
    with log.open("a") as file:
        file.write("called\n")
    if len(log.read_text().splitlines()) < 3:
        raise error
    return "answered"


@pytest.mark.usefixtures("on_scheduler")
def test_results_come_in_order_a_refusal_is_not_tried_again_and_a_transient_error_is(tmp_path: Path):
    with pytest.raises(errors.DataError, match=r"a\.jsonl is broken"):
        run_all("read", fail_twice, [(tmp_path / "refusal", errors.DataError("a.jsonl is broken"))])
    assert (tmp_path / "refusal").read_text() == "called\n"
    assert run_all("read", fail_twice, [(tmp_path / "transient", OSError("503"))]) == ["answered"]
    calls = [(number, 3) for number in range(40)]
    assert run_all("multiply", operator.mul, calls) == [3 * number for number in range(40)]


@pytest.mark.usefixtures("on_scheduler")
def test_what_shares_a_cluster_starts_it_when_it_is_needed_and_once(monkeypatch: pytest.MonkeyPatch):
    started: list[Client] = []
    new_client = cluster.cluster

    @contextmanager
    def counted() -> Iterator[Client]:
        with new_client() as client:
            started.append(client)
            yield client

    monkeypatch.setattr(cluster, "cluster", counted)
    with cluster.one_cluster() as shared:
        assert (run_all("nothing", operator.mul, [], shared=shared), started) == ([], [])
        assert ([run_all("multiply", operator.mul, [(2, number)], shared=shared) for number in (3, 4)], len(started)) == ([[6], [8]], 1)
        assert started[0].status == "running"
    assert started[0].status == "closed"
    run_all("multiply", operator.mul, [(1, 1)])
    assert len(started) == 2


def test_no_scheduler_one_without_workers_and_a_number_of_workers_that_is_none_are_clear_errors(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(SCHEDULER_VARIABLE, "tcp://127.0.0.1:1")
    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 1)
    with pytest.raises(errors.DataError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:1"):
        run_all("multiply", operator.mul, [(1, 1)])
    monkeypatch.undo()
    monkeypatch.setattr(cluster, "FIRST_WORKER_SECONDS", 1)
    with LocalCluster(n_workers=0, processes=False, dashboard_address=":0", silence_logs=logging.ERROR) as empty:
        monkeypatch.setenv(SCHEDULER_VARIABLE, str(empty.scheduler_address))  # pyright: ignore[reportAttributeAccessIssue]  # typed as awaitable or not
        with pytest.raises(errors.DataError, match="must have a worker, found none in 1 seconds"):
            run_all("multiply", operator.mul, [(1, 1)])
    monkeypatch.delenv(SCHEDULER_VARIABLE, raising=False)
    for number in ("0", "-1", "abc", "1.5"):
        monkeypatch.setenv(WORKERS_VARIABLE, number)
        with pytest.raises(errors.ConfigError, match=f"{WORKERS_VARIABLE} must be a whole number of at least 1, found '{number}'"):
            run_all("multiply", operator.mul, [(1, 1)])


def test_every_refusal_can_come_from_a_worker():
    for kind in ("ConfigError", "DataError", "VerdictError", "CheckpointError", "TrainingError", "TrainingDiverged"):
        sent = getattr(errors, kind)("what was found, and what to do")
        received = pickle.loads(pickle.dumps(sent))
        assert (type(received), str(received), received.exit_code) == (type(sent), str(sent), sent.exit_code)


def test_one_worker_and_two_give_the_same_bytes(prepared: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    alone = type(prepared)(Home.open(str(tmp_path)), prepared.sources)
    with LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0", silence_logs=logging.ERROR) as one:
        monkeypatch.setenv(SCHEDULER_VARIABLE, str(one.scheduler_address))  # pyright: ignore[reportAttributeAccessIssue]  # typed as awaitable or not
        alone.prepare()
    assert len(contents(tmp_path)) > 3 * 2 * 3
    assert contents(tmp_path) == contents(prepared.home.root)


def contents(root: Path) -> dict[str, bytes]:
    parts = ("documents", "tokenizers", "tokens", "benchmarks")
    return {str(path.relative_to(root)): path.read_bytes() for part in parts for path in (root / part).rglob("*") if path.is_file()}
