"""Dask inside a stage: order, errors, and the same bytes however many workers there are."""

import logging
import operator
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from dask.distributed import LocalCluster

from tasks.data import cluster
from tasks.data.cluster import SCHEDULER_VARIABLE, WORKERS_VARIABLE, run_all
from tasks.data.documents import read_texts
from tasks.data.source import Source
from tasks.home import Home
from trainer import errors


def test_a_cluster_of_its_own_has_as_many_processes_as_asked_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(SCHEDULER_VARIABLE, raising=False)
    monkeypatch.setenv(WORKERS_VARIABLE, "2")
    with cluster.cluster() as client:
        workers: Any = client.run(os.getpid)
    processes = set(workers.values())
    assert len(processes - {os.getpid()}) == 2
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


@pytest.mark.usefixtures("on_scheduler")
def test_results_come_in_the_order_of_the_calls():
    calls = [(number, 3) for number in range(40)]
    assert run_all("multiply", operator.mul, calls) == [3 * number for number in range(40)]


@pytest.mark.usefixtures("on_scheduler")
def test_equal_calls_are_all_made():
    """Dask would take a pure function's equal calls for one."""
    assert len(set(run_all("random", os.urandom, [(8,)] * 5))) == 5


@pytest.mark.usefixtures("on_scheduler")
def test_the_error_is_the_one_that_was_raised(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text("{}\n")
    source = Source(url=tmp_path.as_uri(), include=("*",), exclude=(), format="jsonl", text_key="text")
    with pytest.raises(errors.DataError, match=r"a\.jsonl, line 1: expected a JSON object with a field 'text'"):
        run_all("read", read_all, [(source, (tmp_path / "a.jsonl").as_uri())])
    with pytest.raises(ZeroDivisionError):
        run_all("divide", operator.truediv, [(1, 1), (1, 0), (1, 2)])


def read_all(source: Source, url: str) -> list[str]:
    return list(read_texts(source, url))


@pytest.mark.parametrize("kind", ["ConfigError", "DataError", "VerdictError", "CheckpointError", "TrainingError", "TrainingDiverged"])
def test_every_refusal_can_come_from_a_worker(kind: str):
    sent = getattr(errors, kind)("what was found, and what to do")
    received = pickle.loads(pickle.dumps(sent))
    assert (type(received), str(received), received.exit_code) == (type(sent), str(sent), sent.exit_code)


def test_nothing_to_do_starts_no_cluster(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(cluster, "cluster")
    assert run_all("nothing", operator.mul, []) == []


@pytest.mark.usefixtures("on_scheduler")
def test_progress_is_told(monkeypatch: pytest.MonkeyPatch):
    told: list[tuple[object, ...]] = []
    monkeypatch.setattr(cluster, "advance", lambda *progress: told.append(progress))
    run_all("multiply", operator.mul, [(1, 1), (2, 2)])
    assert told == [("multiply", 1, 2), ("multiply", 2, 2)]


def test_one_worker_and_two_give_the_same_bytes(prepared: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    alone = type(prepared)(Home.open(str(tmp_path)), prepared.sources)
    with LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        processes=False,
        dashboard_address=":0",
        silence_logs=logging.ERROR,
    ) as one:
        monkeypatch.setenv(SCHEDULER_VARIABLE, str(one.scheduler_address))  # pyright: ignore[reportAttributeAccessIssue]  # typed as awaitable or not
        alone.prepare()
    found = contents(tmp_path)
    assert len(found) > 3 * 2 * 3
    assert found == contents(prepared.home.root)


def contents(root: Path) -> dict[str, bytes]:
    parts = ("documents", "tokenizers", "tokens", "benchmarks")
    return {str(path.relative_to(root)): path.read_bytes() for part in parts for path in (root / part).rglob("*") if path.is_file()}
