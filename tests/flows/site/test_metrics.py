import json
import math
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from phasewise.flows.site.metrics import Curves, Metrics
from phasewise.tasks.report.charts import thinned
from tests.flows.site.homes import row, write_rows


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "metrics.jsonl"
    write_rows(path, [row(step) for step in range(1, 101)])
    return path


def read(metrics: Metrics, path: Path) -> Curves:
    found = metrics.read(path)
    assert found is not None
    return found


def test_only_what_came_since_is_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics()
    read(metrics, file)
    parsed: list[bytes] = []
    loads = __import__("orjson").loads
    monkeypatch.setattr("phasewise.flows.site.metrics.orjson.loads", lambda line: (parsed.append(line), loads(line))[1])
    with file.open("a") as opened:
        opened.write(json.dumps(row(101, loss=9.5)) + "\n")
    found = read(metrics, file)
    assert len(parsed) == 1
    assert found.steps.tolist() == list(range(1, 102))
    assert found.columns["loss"][-1] == found.last["loss"] == 9.5


def test_a_row_being_written_waits_and_a_file_that_was_written_again_is_read_again(file: Path) -> None:
    metrics = Metrics()
    whole = json.dumps(row(101)) + "\n"
    with file.open("a") as opened:
        opened.write(whole[:30])
        opened.flush()
        assert len(read(metrics, file).steps) == 100
        opened.write(whole[30:])
        opened.flush()
    assert len(read(metrics, file).steps) == 101
    metrics = Metrics()
    read(metrics, file)
    again = file.with_name("again")
    write_rows(again, [*(row(step) for step in range(1, 51)), *(row(step, loss=1.0) for step in range(51, 121))])
    os.replace(again, file)
    found = read(metrics, file)
    assert found.steps.tolist() == list(range(1, 121))
    assert found.columns["loss"][60] == 1.0


def test_what_is_not_finite_or_no_row_is_counted_and_leaves_a_gap(file: Path) -> None:
    write_rows(file, [row(1), row(2, loss=None), row(3), row(4)])
    with file.open("a") as opened:
        opened.write("not JSON\n[1]\n")
    found = read(Metrics(), file)
    assert (found.not_finite, found.unreadable, len(found.steps)) == (1, 2, 4)
    assert math.isnan(found.columns["loss"][1])
    assert [[x for x, _ in line] for line in thinned(found.steps, found.columns["loss"])] == [[1], [3, 4]]


def test_a_spike_of_one_step_survives_thinning() -> None:
    values = np.full(100_000, 2.0)
    values[77_777] = 50.0
    values[12_345] = -3.0
    points = [point for line in thinned(np.arange(100_000), values) for point in line]
    assert len(points) <= 500
    assert (77_777.0, 50.0) in points
    assert (12_345.0, -3.0) in points
    assert [x for x, _ in points] == sorted(x for x, _ in points)


def test_a_file_that_takes_too_long_is_drawn_from_rows_all_over_it_and_read_on(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phasewise.flows.site.metrics.READ_BYTES", 1000)
    write_rows(file, [row(step) for step in range(1, 5001)])
    metrics = Metrics()
    first = metrics.read(file, seconds=0)
    assert first is not None
    assert not first.is_whole
    assert first.last["step"] == 5000
    assert 300 < len(first.steps) < 1300
    assert (np.diff(first.steps) >= 0).all()
    reader = next((thread for thread in threading.enumerate() if thread.name == "read metrics"), None)
    if reader is not None:
        reader.join(20)
    whole = metrics.read(file, seconds=0.2)
    assert whole is not None
    assert whole.is_whole
    assert whole.steps.tolist() == list(range(1, 5001))
