"""A run is put together of what was measured: what goes in comes out again, and what is not known is said."""

import random
from pathlib import Path
from typing import Any

import pytest

from tasks.prediction.account import read_account, words_of_account
from tasks.prediction.costs import Costs, costs_of, saves_of, step_keys
from tasks.prediction.predict import Prediction, note_prediction, predict, predict_slice, price_per_hour, read_prediction, words_of
from tasks.training.spent import LifeSpent
from tests.tasks.prediction.runs import tiny_run
from trainer.base.errors import ConfigError
from trainer.base.run_folder import RunFolder
from trainer.base.storage import write_json
from trainer.config import Execution, RunConfig

STEP = {2: 0.1, 6: 0.3}
FIRST = {2: 3.0, 6: 4.0}
SAVE, LAST_SAVE, EVALUATION, FIRST_EVALUATION = 0.25, 0.75, 0.2, 1.0
AROUND = {"process": 3.0, "start": 0.5, "restore": 1.5, "finish": 0.25}
NOW = 1_000_000.0


def measured_rows(run: RunConfig) -> list[dict[str, Any]]:
    """As the trainer would write them: a new batch size compiles while the update before is waited for."""
    rows: list[dict[str, Any]] = []
    seen: set[int] = set()
    clock, evaluated = 0.0, False
    for step in range(run.start_step + 1, run.stop_step + 1):
        size = run.batch.at(step - 1)
        seconds = STEP[size] if size in seen or rows else FIRST[size]
        if rows and size not in seen:
            rows[-1]["step_seconds"] += FIRST[size] - STEP[size]
            rows[-1]["seconds"] += FIRST[size] - STEP[size]
            clock += FIRST[size] - STEP[size]
        seen.add(size)
        row: dict[str, Any] = {"step": step, "sequences": size, "step_seconds": seconds}
        clock += seconds
        if run.evaluation and (step % run.evaluation.every_steps == 0 or step == run.stop_step):
            row["evaluation_seconds"] = EVALUATION + (0.0 if evaluated else FIRST_EVALUATION)
            clock += row["evaluation_seconds"]
            evaluated = True
        row["seconds"] = clock
        rows.append(row)
        if step in saves_of(run) and step != run.stop_step:
            clock += SAVE
    return rows


def measured(run: RunConfig, *, compiled: bool = True, measured_at: float = NOW, source: str = "a test") -> tuple[Costs, float]:
    """What a run of these figures cost, and its wall time."""
    rows = measured_rows(run)
    saves = len(saves_of(run))
    work = {
        "start": AROUND["start"], "restore": AROUND["restore"], "finish": AROUND["finish"],
        "step": sum(row["step_seconds"] for row in rows), "evaluation": sum(row.get("evaluation_seconds", 0.0) for row in rows),
        "save": (saves - 1) * SAVE + LAST_SAVE,
    }  # fmt: skip
    wall = sum(work.values()) + AROUND["process"]
    life = LifeSpent(
        wall_seconds=wall, pause_seconds=0, seconds=work, from_step=run.start_step, to_step=run.stop_step, peak_memory_bytes=500,
        conditions="here", compiled=compiled,
    )  # fmt: skip
    costs = costs_of(run, rows, life, source=source, measured_at=measured_at, sizes=(1000, 10 * len(rows)))
    assert costs is not None
    return costs, wall


def test_what_was_measured_is_predicted_of_the_same_run():
    run = tiny_run(stop_step=100, batch=[[0, 2], [55, 6]])
    costs, wall = measured(run, compiled=False)
    prediction = predict(run, [costs], is_from_scratch=True)
    assert prediction.parts["compile"] == pytest.approx(sum(FIRST.values()) - sum(STEP.values()))
    assert prediction.parts["step"] == pytest.approx(55 * STEP[2] + 45 * STEP[6])
    assert prediction.seconds == pytest.approx(wall)
    assert sum(prediction.parts.values()) == pytest.approx(wall)
    assert prediction.left_out == ()
    assert prediction.low_seconds is not None
    assert prediction.high_seconds is not None
    assert prediction.low_seconds < wall < prediction.high_seconds
    assert (prediction.memory_bytes, prediction.checkpoints) == (500, 10)
    assert (prediction.bytes_written, prediction.bytes_kept) == (10 * 1000 + 100 * 10, 2 * 1000 + 100 * 10)


@pytest.mark.parametrize("stop", [40, 250])
def test_another_length_of_the_same_shapes_is_predicted(stop: int):
    costs, _ = measured(tiny_run(stop_step=100), compiled=False)
    longer = tiny_run(stop_step=stop)
    _, wall = measured(longer, compiled=False)
    assert predict(longer, [costs], is_from_scratch=True).seconds == pytest.approx(wall)


def test_a_compiled_step_that_is_there_is_only_read():
    run = tiny_run(stop_step=100)
    costs, wall = measured(run, compiled=True)
    again = predict(run, [costs], is_from_scratch=True)
    assert again.parts["compile"] == pytest.approx(0.2 * (FIRST[2] - STEP[2]))
    assert again.is_most_memory
    elsewhere = predict(run, [costs.but(recipe="another-proxy")], is_from_scratch=True)
    assert elsewhere.seconds == pytest.approx(wall)
    assert not elsewhere.is_most_memory


@pytest.mark.parametrize(
    "changes",
    [
        {"batch": [[0, 6]]},
        {"batch": [[0, 2], [60, 6]]},
        {"execution": Execution(remat="full")},
        {"model": tiny_run(stop_step=100).model.but(d_ff=48)},
        {"optimizer": {"kind": "muon"}},
        {"instrumentation": {"layer_norms_every": 10}},
        {"stability": {"ema_decay": [[0, 0.9]]}},
        {"stability": {"max_update_rms": [[0, None], [50, 1.0]]}},
    ],
)
def test_nothing_is_predicted_of_another_step(changes: dict[str, Any]):
    costs, _ = measured(tiny_run(stop_step=100))
    other = tiny_run(stop_step=100, **changes)
    prediction = predict(other, [costs], is_from_scratch=True)
    assert prediction.seconds is None
    assert "no update like its own" in words_of(prediction)


@pytest.mark.parametrize("changes", [{"stability": {"z_loss": [[0, 1e-4]]}}, {"seed": 1}, {"stop_step": 50}, {"recovery": None}])
def test_what_costs_nothing_changes_no_key(changes: dict[str, Any]):
    other: dict[str, Any] = {"stop_step": 100, **changes}
    assert step_keys(tiny_run(**other)) == step_keys(tiny_run(stop_step=100))


def in_turn(run: RunConfig, process_seconds: list[float]) -> list[Costs]:
    """Measurements one after the other, told apart by one part."""
    found = [measured(run, source=f"number {number}", measured_at=NOW + number)[0] for number in range(len(process_seconds))]
    return [costs.but(process_seconds=seconds) for costs, seconds in zip(found, process_seconds, strict=True)]


@pytest.mark.parametrize(
    ("process_seconds", "used", "of"),
    [([9.0], 9.0, 1), ([9.0, 1.0, 2.0], 2.0, 3), ([90.0, 90.0, 90.0, 1.0, 5.0, 2.0, 4.0, 3.0], 3.0, 5)],
)
def test_the_middle_of_the_last_five_measurements_counts_and_the_newest_is_named(process_seconds: list[float], used: float, of: int):
    run = tiny_run(stop_step=100)
    known = in_turn(run, process_seconds)
    others = f", the middle of {of} measurements of which this is the newest" if of > 1 else ""
    for order in (known, known[::-1]):
        prediction = predict(run, order, is_from_scratch=True)
        assert (prediction.source, prediction.parts["process"]) == (f"number {len(known) - 1}{others}", used)


def test_one_phase_that_was_disturbed_moves_neither_time_nor_what_is_beside_it():
    run = tiny_run(stop_step=100)
    calm, wall = measured(run)
    key = step_keys(run)[2]
    slow = {key: calm.steps[key].but(seconds=5.0, high_seconds=6.0)}
    disturbed = calm.but(steps=slow, save_seconds=9.0, last_save_seconds=9.0, evaluation_seconds=9.0, finish_seconds=9.0, start_seconds=9.0)
    known = [calm.but(measured_at=NOW), calm.but(measured_at=NOW + 1), disturbed.but(measured_at=NOW + 2)]
    prediction = predict(run, known, is_from_scratch=True)
    assert prediction.seconds == pytest.approx(predict(run, [calm], is_from_scratch=True).seconds)
    assert prediction.high_seconds is not None
    assert prediction.high_seconds > 6 * 99 > wall  # what happened may happen again


def test_what_was_measured_before_a_calibration_is_out_of_date():
    run = tiny_run(stop_step=100)
    known = in_turn(run, [1.0, 2.0, 3.0, 30.0, 40.0])
    known[3] = known[3].but(is_calibration=True)
    assert predict(run, known, is_from_scratch=True).parts["process"] == 35.0


def test_what_was_not_measured_is_named_as_left_out():
    bare, _ = measured(tiny_run(stop_step=9, evaluates=False))
    run = tiny_run(stop_step=100)
    prediction = predict(run, [bare], is_from_scratch=False)
    assert prediction.left_out == ("reading the weights that it starts from", "checkpoints before the last", "evaluation")
    assert "evaluation" not in prediction.parts
    assert "without reading the weights" in words_of(prediction)


def test_updates_that_vary_widen_the_range():
    run = tiny_run(stop_step=100)
    rows = measured_rows(run)
    rng = random.Random(0)
    for row in rows[1:]:
        row["step_seconds"] *= 0.5 if row["step"] < 50 else 1.5 + rng.random() / 100
    life = LifeSpent(wall_seconds=40, pause_seconds=0, seconds={"step": 30.0}, from_step=0, to_step=100, conditions="here", compiled=False)
    costs = costs_of(run, rows, life, source="a test", measured_at=NOW, sizes=(None, 10))
    assert costs is not None
    prediction = predict(run, [costs], is_from_scratch=True)
    assert prediction.high_seconds is not None
    assert prediction.high_seconds > 1.4 * prediction.parts["step"]
    assert (prediction.bytes_written, prediction.bytes_kept) == (None, None)


def test_a_slice_has_what_preflight_reports_and_a_price():
    reports = [
        {"slice": "v5p-8", "steps": 10, "step_seconds": 2.0, "estimated": False, "gib_per_chip": {"peak": 10.0}},
        {"slice": "v5p-8", "steps": 5, "step_seconds": 4.0, "estimated": False, "gib_per_chip": {"peak": 12.0}},
    ]
    prediction = predict_slice(tiny_run(stop_step=15), reports, usd_per_hour=90.0)
    assert (prediction.seconds, prediction.usd, prediction.memory_bytes) == (40.0, 1.0, 12 * 2**30)
    assert words_of(prediction) == (
        "about 40 s, 12.9 GB of memory a chip, $1.00 at $90 an hour; by preflight's roofline for v5p-8, "
        "without start, compilation, evaluation, checkpoints"
    )


def test_a_slice_without_a_time_of_a_step_is_not_predicted():
    reports = [{"slice": "v5p-8", "steps": 10, "step_seconds": None, "estimated": False, "gib_per_chip": {"peak": None}}]
    assert words_of(predict_slice(tiny_run(stop_step=10), reports)) == "not predicted: preflight has no time of a step for v5p-8"


def test_several_slices_are_named_and_updates_that_preflight_has_no_time_of():
    shared = {"step_seconds": 2.0, "estimated": False, "gib_per_chip": {"peak": 10.0}}
    reports = [{"slice": "4x v5p-512", "steps": 10, **shared}, {"slice": "v4-2048", "steps": 5, **shared}]
    assert "by preflight's roofline for 4x v5p-512 and v4-2048, " in words_of(predict_slice(tiny_run(stop_step=15), reports))
    others = predict_slice(tiny_run(stop_step=18), reports)
    assert others.seconds is None
    assert others.source.startswith("3 updates are made on this machine, and preflight has a time of those on 4x v5p-512 and v4-2048")


@pytest.mark.parametrize("text", ["much", "-1", "nan", "inf"])
def test_a_price_that_is_none_is_refused(text: str):
    assert price_per_hour({}) is None
    assert price_per_hour({"PHASEWISE_USD_PER_HOUR": "2.5"}) == 2.5
    with pytest.raises(ConfigError, match="dollars an hour"):
        price_per_hour({"PHASEWISE_USD_PER_HOUR": text})


def test_the_account_compares_with_what_it_took(tmp_path: Path):
    run = tiny_run(stop_step=100)
    assert read_account(tmp_path) is None
    prediction = Prediction(run_digest=run.digest, steps=100, seconds=40.0, source="a test", memory_bytes=500_000_000)
    note_prediction(tmp_path, prediction)
    life = LifeSpent(wall_seconds=50, pause_seconds=0, seconds={}, from_step=0, to_step=100, peak_memory_bytes=520_000_000)
    RunFolder(tmp_path).spent.write_text(life.model_dump_json() + "\n")
    before = read_account(tmp_path)
    assert before is not None
    assert before.took is None, "it has no result yet"
    write_json(RunFolder(tmp_path).result, {"run_digest": "of another run"})
    assert (other := read_account(tmp_path)) is not None
    assert other.took is None
    write_json(RunFolder(tmp_path).result, {"run_digest": run.digest})
    account = read_account(tmp_path)
    assert account is not None
    assert account.ratio == 1.25
    said = "predicted about 40 s, took about 50 s (25 % more); memory 0.50 GB, measured 0.52 GB; by a test"
    assert words_of_account(account) == said


def test_what_was_predicted_before_it_first_began_stays(tmp_path: Path):
    first = Prediction(run_digest="a", steps=100, seconds=40.0, source="a test")
    note_prediction(tmp_path, first)
    note_prediction(tmp_path, first.but(seconds=50.0))
    assert read_prediction(tmp_path) == first
    of_another = first.but(run_digest="b")
    note_prediction(tmp_path, of_another)
    assert read_prediction(tmp_path) == of_another
    RunFolder(tmp_path).prediction.write_text("{")
    assert read_prediction(tmp_path) is None
