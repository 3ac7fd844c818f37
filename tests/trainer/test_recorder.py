import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from phasewise.trainer import recorder as module
from phasewise.trainer.base.errors import TrainingDiverged
from phasewise.trainer.config import ModelConfig
from phasewise.trainer.metrics import ALL_GROUPS, PARAM_GROUPS, MetricsFile, Row, read_metrics
from phasewise.trainer.model.params import param_specs
from phasewise.trainer.recorder import Recorder, scheduled_row, values_of
from phasewise.trainer.step import StepMetrics, slot_names
from tests.trainer.conftest import METRICS_PAGE, TABLE, MakeRun, metric_of
from tests.trainer.model.families import AFMOE, EXPERTS


def append(path: Path, steps: range, *, restored_step: int) -> None:
    metrics = MetricsFile(path, restored_step=restored_step)
    for step in steps:
        metrics.append({"step": step, "loss": step / 3})
        assert read_metrics(path)[-1]["step"] == step  # before the file is closed
    metrics.close()


def rows_of_steps(steps: range) -> list[Row]:
    return [{"step": step, "loss": step / 3} for step in steps]


@pytest.mark.parametrize("cut", [1, 2, 10])
def test_going_on_overwrites_what_is_trained_again_and_a_row_that_a_kill_cut_short(tmp_path: Path, cut: int):
    path = tmp_path / "metrics.jsonl"
    append(path, range(1, 8), restored_step=0)
    append(path, range(4, 5), restored_step=3)
    path.write_bytes(path.read_bytes()[:-cut])
    whole = 4 if cut == 1 else 3  # only the line's end is missing: the row is whole
    assert read_metrics(path) == rows_of_steps(range(1, whole + 1))
    append(path, range(4, 6), restored_step=3)
    assert read_metrics(path) == rows_of_steps(range(1, 6))
    assert [each.name for each in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_the_page_has_each_name_once_and_the_weights_of_each_group(model: ModelConfig):
    weights: dict[str, dict[str, None]] = {group: {} for group in ALL_GROUPS}
    sparse = model.but(**AFMOE | {"experts": EXPERTS.but(num_dense_layers=1)})
    for path, spec in jax.tree_util.tree_leaves_with_path(param_specs(sparse)):
        weights[spec.group][f"`{path[-1].key}`"] = None
    groups = [f"| {group} | {', '.join(names)} |" for group, names in weights.items()]
    page = METRICS_PAGE.read_text(encoding="utf-8").splitlines()
    assert [line for line in page if line.startswith("| ") and not line.startswith(("| `", "| name", "| group |"))] == groups
    assert len({metric.name for metric in TABLE}) == len(TABLE) > 60
    assert all(metric.what for metric in TABLE)


def test_a_name_is_found_in_the_table():
    for name, entry in {
        "loss": "loss", "grad_norm/mlp": "grad_norm/GROUP", "param_norm/query/31": "param_norm/WEIGHT/LAYER",
        "update_norm/head": "update_norm/WEIGHT", "eval_loss/web/common crawl": "eval_loss/COMPONENT",
        "losses": None, "grad_norm/Q/1": None, "param_norm/query/x": None, "eval_loss/": None,
    }.items():  # fmt: skip
        found = metric_of(name)
        assert (found.name if found else None) == entry


OFF = {name: [[0, None]] for name in ("max_grad_norm", "max_update_rms", "max_update_norm", "skip_step", "z_loss", "ema_decay")}
KINDS = ("grad", "update", "param", "first_moment", "second_moment")


def measured(slots: int = 3, **changes: Any) -> StepMetrics:
    one: Any = np.float32(1)
    norms: dict[str, Any] = {f"{kind}_norm": one for kind in KINDS}
    norms |= {f"{kind}_norms": np.arange(len(PARAM_GROUPS)) for kind in KINDS}
    norms |= {f"{kind}_slots": np.arange(slots) for kind in KINDS}
    values = {"loss": one, "log_z_squared": one, **norms, "grad_clip_factor": one, **changes}
    return StepMetrics(**{name: values.get(name) for name in StepMetrics._fields})  # pyright: ignore[reportArgumentType]


def test_measurements_and_what_clips_and_skips_decided_get_their_names_and_limits_once_they_hold():
    expected = {"loss": 1, "log_z_squared": 1, "grad_clip_factor": 1}
    for kind in KINDS:
        expected |= {f"{kind}_norm": 1} | {f"{kind}_norm/{name}": number for number, name in enumerate(PARAM_GROUPS)}
        expected |= {f"{kind}_norm/query/0": 0, f"{kind}_norm/query/1": 1, f"{kind}_norm/head": 2}
    assert values_of(measured(), ("query/0", "query/1", "head")) == expected
    one = np.float32(1)
    clips = {"direction_norm": one, "max_update_norm": np.inf * one, "update_clip_factor": one, "ema_distance": one / 2}
    values = values_of(measured(3, **clips, skipped=np.bool_(True), max_loss=4 * one, max_skip_grad_norm=np.inf * one))
    assert {"direction_norm": 1, "update_clip_factor": 1, "skipped": 1, "max_loss": 4, "ema_distance": 0.5}.items() <= values.items()
    assert values.keys().isdisjoint({"rms_clip_factor", "max_update_norm", "max_skip_grad_norm"})


def test_every_scheduled_value_is_in_its_row(make_run: MakeRun):
    limits = {"max_grad_norm": [[0, None], [5, 0.5]], "max_update_rms": [[0, 1.5]]}
    on = {**OFF, **limits, "z_loss": [[0, None], [16, 1e-4]], "ema_decay": [[0, 0.9]]}
    adamc = {"kind": "adamc", "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1, "peak_learning_rate": 3e-3}
    run = make_run("scheduled rows", stability=on, optimizer=adamc)
    assert scheduled_row(run, 3) == {
        "learning_rate": pytest.approx(1.5e-3), "z_loss": 0.0, "max_update_rms": 1.5, "ema_decay": 0.9, "weight_decay": pytest.approx(0.05),
        "sequences": 4, "tokens": 4 * 32, "mixture_since": 0,
    }  # fmt: skip
    assert {"max_grad_norm": 0.5, "z_loss": 1e-4, "sequences": 8, "mixture_since": 14}.items() <= scheduled_row(run, 16).items()
    assert scheduled_row(make_run("bare", stability=OFF), 3).keys() == {"learning_rate", "z_loss", "sequences", "tokens", "mixture_since"}


def test_a_mixture_is_reported_where_it_begins_to_hold(make_run: MakeRun):
    rate = [{"kind": "constant", "start_step": 2, "end_step": 24, "start": 1e-3, "end": 1e-3}]
    run = make_run("mixtures", start_step=2, learning_rate=rate)
    said = {step: {name: share for name, share in scheduled_row(run, step).items() if name.startswith("mixture/")} for step in range(2, 24)}
    later = {"mixture/books": 30, "mixture/code": 30, "mixture/web": 40}
    assert {step: shares for step, shares in said.items() if shares} == {2: {"mixture/books": 60, "mixture/code": 40}, 14: later}


class Time:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_time_of_an_update_is_without_saving_and_evaluation(make_run: MakeRun):
    run, time = make_run("timed"), Time()
    with Recorder(run, restored_step=0, clock=time) as recorder:
        time.now += 2
        recorder.write(1, measured(), {"data_seconds": 0.25})
        time.now += 1
        with recorder.stopped_clock():
            time.now += 50  # evaluation
            recorder.write(2, measured(), {"data_seconds": 0.25})
            time.now += 30  # saving
        time.now += 4
        recorder.write(3, measured(), {"data_seconds": 0.25})
    rows, names = read_metrics(Path(run.output) / "metrics.jsonl"), ("step_seconds", "tokens_per_second", "seconds", "data_seconds")
    assert [tuple(row[name] for name in names) for row in rows] == [(2, 64, 2, 0.25), (1, 128, 53, 0.25), (4, 32, 87, 0.25)]
    assert "mfu" not in rows[0]  # nobody knows a CPU's peak


def test_mfu_is_there_where_the_peak_is_known(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch):
    run, time = make_run("known peak"), Time()
    monkeypatch.setattr(module, "peak_flops", lambda kind, dtype: 1e9)
    with Recorder(run, restored_step=0, clock=time) as recorder:
        time.now += 0.5
        recorder.write(1, measured(), {})
    flops = 4 * 32 * 6 * (2 * 32 * (2 * 32 + 2 * 16 + 3 * 48) + 32 * 256) + 12 * 2 * 32 * 4 * (32 * 33 // 2)
    assert read_metrics(Path(run.output) / "metrics.jsonl")[0]["mfu"] == pytest.approx(flops / 0.5 / 1e9)


NAN = np.float32(math.nan)


@pytest.mark.parametrize("name", ["loss", "grad_norm", "param_norm"])
def test_numbers_that_are_none_end_the_run_and_are_written_as_null(make_run: MakeRun, name: str):
    run = make_run(f"not finite {name}")
    with Recorder(run, restored_step=0) as recorder, pytest.raises(TrainingDiverged, match=f"{name} is nan at step 4"):
        recorder.write(4, measured(len(slot_names(run.model)), **{name: NAN}), {"eval_loss": math.nan})
    (row,) = read_metrics(Path(run.output) / "metrics.jsonl")
    assert row[name] is row["eval_loss"] is None


def test_an_update_that_was_skipped_may_have_no_number_but_the_weights_may_not(make_run: MakeRun):
    run = make_run("skipped")
    slots, skipped = len(slot_names(run.model)), {"skipped": np.bool_(True), "loss": NAN, "grad_norm": NAN}
    with Recorder(run, restored_step=0) as recorder:
        recorder.write(1, measured(slots, **skipped), {})
        with pytest.raises(TrainingDiverged, match="param_norm is nan at step 2"):
            recorder.write(2, measured(slots, **skipped, param_norm=NAN), {})
