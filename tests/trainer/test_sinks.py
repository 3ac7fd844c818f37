import importlib.util
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from phasewise.trainer.base.identity import write_sealed
from phasewise.trainer.base.storage import write_json
from phasewise.trainer.config import RunConfig
from phasewise.trainer.metrics import Row
from phasewise.trainer.recorder import open_sinks, read_tensorboard, send
from phasewise.trainer.run import main
from tests.trainer.conftest import MakeRun

needs_tensorboard = pytest.mark.skipif(importlib.util.find_spec("tensorboardX") is None, reason="the extra 'tensorboard' is not installed")
needs_mlflow = pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="the extra 'mlflow' is not installed")
needs_wandb = pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="the extra 'wandb' is not installed")


def rows(steps: range) -> list[Row]:
    return [{"step": step, "loss": 1 / step, "grad_norm": None if step == 2 else float(step), "skipped": 0.0} for step in steps]


def points(steps: range) -> dict[tuple[int, str], float]:
    found = ((row["step"], name, value) for row in rows(steps) for name, value in row.items())
    return {(step, name): round32(value) for step, name, value in found if name != "step" and value is not None}


def round32(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]


def deliver(run: RunConfig, steps: range) -> None:
    sinks = open_sinks(run)
    send(sinks, rows(steps))
    for sink in sinks:
        sink.close()


class MemorySink:
    def __init__(self, last_step: int) -> None:
        self.last_step, self.steps = last_step, list[int]()

    def write(self, row: Row) -> None:
        self.last_step = row["step"]
        self.steps.append(row["step"])


def test_a_sink_gets_what_it_does_not_have():
    ahead, behind = MemorySink(4), MemorySink(1)
    send([ahead, behind], rows(range(1, 7)))  # pyright: ignore[reportArgumentType]  # sinks of this test
    assert (ahead.steps, behind.steps) == ([5, 6], [2, 3, 4, 5, 6])


@pytest.mark.parametrize("extra", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_extra_is_refused_before_any_work(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], extra: str
):
    monkeypatch.setattr("phasewise.trainer.config.execution.find_spec", lambda name: None)
    run = make_run(f"without {extra}", instrumentation={extra: {"wandb": "offline", "mlflow": "sqlite:///x"}.get(extra, True)})
    write_sealed(Path(run.output) / "run.json", run.model_dump(mode="json"))
    assert main([str(Path(run.output) / "run.json")]) == 2
    said = capsys.readouterr().err
    assert f"instrumentation.{extra} needs the package" in said
    assert f"pip install 'phasewise[{extra}]'" in said
    assert {path.name for path in Path(run.output).iterdir()} == {"run.json", "verdict.json"}


def board(run: RunConfig) -> list[tuple[int, str, float]]:
    found = list[tuple[int, str, float]]()
    for path in sorted((Path(run.output) / "tensorboard").iterdir()):
        first, *events = read_tensorboard(path)
        assert first.file_version == "brain.Event:2"
        found += [(event.step, value.tag, value.simple_value) for event in events for value in event.summary.value]
    return found


@needs_tensorboard
def test_tensorboard_has_every_point_once_over_three_lives(make_run: MakeRun):
    run = make_run("on the board", instrumentation={"tensorboard": True})
    deliver(run, range(1, 5))
    deliver(run, range(1, 7))  # the file's rows are offered again, and two were written and never sent
    deliver(run, range(5, 9))  # trained again from step 4
    found = board(run)
    assert len(found) == len({(step, name) for step, name, _ in found})
    assert {(step, name): value for step, name, value in found} == points(range(1, 9))


@needs_tensorboard
@pytest.mark.parametrize("cut", [1, 3, 30])
def test_an_event_that_a_kill_cut_short_is_sent_again(make_run: MakeRun, cut: int):
    run = make_run(f"cut {cut}", instrumentation={"tensorboard": True})
    deliver(run, range(1, 5))
    (path,) = (Path(run.output) / "tensorboard").iterdir()
    path.write_bytes(path.read_bytes()[:-cut])
    (sink,) = open_sinks(run)
    assert sink.last_step == 3
    sink.close()


@needs_mlflow
def test_mlflow_has_every_point_once_over_three_attempts_and_rows_wait_for_its_server(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]  # an extra
    from mlflow.exceptions import MlflowException  # pyright: ignore[reportMissingImports]  # an extra

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    run = make_run("in mlflow", instrumentation={"mlflow": uri})
    deliver(run, range(1, 5))
    (sink,) = open_sinks(run)

    def away(*_: object, **__: object) -> None:
        raise MlflowException("the server is away")

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "log_batch", away)
        send([sink], rows(range(1, 6)))
    send([sink], rows(range(5, 7)))  # the waiting row, then this one
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "log_batch", away)
        send([sink], rows(range(7, 8)))
        sink.close()
    deliver(run, range(5, 9))
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name(run.recipe)
    assert experiment
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.tags["run_digest"] == run.digest
    history = {name: client.get_metric_history(found.info.run_id, name) for name in ("loss", "grad_norm", "skipped")}
    assert sum(len(values) for values in history.values()) == len(points(range(1, 9)))
    assert {(one.step, name): round32(one.value) for name, values in history.items() for one in values} == points(range(1, 9))


@needs_wandb
def test_weights_and_biases_offline_keeps_one_run_with_every_point_once(make_run: MakeRun):
    run = make_run("in the cloud", instrumentation={"wandb": "offline"})
    path = Path(run.output) / "run.json"
    write_json(path, run.model_dump(mode="json"))
    environment, said = {**os.environ, "WANDB_ERROR_REPORTING": "false", "HOME": run.output}, list[str]()
    for call in (f"deliver({str(path)!r}, range(1, 6))", f"deliver({str(path)!r}, range(4, 9)); show({run.output!r})"):
        command = [sys.executable, "-c", f"from tests.trainer.wandb_process import *; {call}"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert said[0] == ""
    histories = [json.loads(line) for line in said[1].splitlines()]
    assert [row["step"] for row in histories] == list(range(1, 9))
    assert {(row["step"], name): round32(value) for row in histories for name, value in row["values"].items()} == points(range(1, 9))
    assert len({row["run"] for row in histories}) == 1
