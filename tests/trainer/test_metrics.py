"""Rows once each and in order, through cuts and restarts."""

from pathlib import Path

import pytest

from phasewise.trainer.metrics import TABLE, MetricsFile, Row, as_markdown, metric_of, of_the_clock, read_metrics


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def append(path: Path, steps: range, *, restored_step: int) -> None:
    metrics = MetricsFile(path, restored_step=restored_step)
    for step in steps:
        metrics.append({"step": step, "loss": step / 3})
    metrics.close()


def rows(steps: range) -> list[Row]:
    return [{"step": step, "loss": step / 3} for step in steps]


def test_no_file_has_no_rows(path: Path):
    assert read_metrics(path) == []


def test_rows_come_back_bit_for_bit_and_in_order(path: Path):
    append(path, range(1, 8), restored_step=0)
    assert read_metrics(path) == rows(range(1, 8))


def test_each_row_is_in_the_file_as_soon_as_it_is_appended(path: Path):
    metrics = MetricsFile(path, restored_step=0)
    metrics.append({"step": 1, "loss": 1 / 3})
    assert read_metrics(path) == rows(range(1, 2))
    metrics.close()


def test_going_on_forgets_what_will_be_trained_again(path: Path):
    append(path, range(1, 8), restored_step=0)
    append(path, range(5, 10), restored_step=4)
    assert read_metrics(path) == rows(range(1, 10))
    assert [each.name for each in path.parent.iterdir()] == ["metrics.jsonl"]


def test_starting_again_forgets_everything(path: Path):
    append(path, range(1, 8), restored_step=0)
    append(path, range(1, 3), restored_step=0)
    assert read_metrics(path) == rows(range(1, 3))


@pytest.mark.parametrize("cut", [1, 2, 10])
def test_a_row_that_a_kill_cut_short_is_left_out_and_then_overwritten(path: Path, cut: int):
    append(path, range(1, 5), restored_step=0)
    path.write_bytes(path.read_bytes()[:-cut])
    whole = 4 if cut == 1 else 3  # only the line's end is missing: the row is whole
    assert read_metrics(path) == rows(range(1, whole + 1))
    append(path, range(4, 6), restored_step=3)
    assert read_metrics(path) == rows(range(1, 6))


def test_the_page_is_printed_from_the_table():
    page = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
    assert page.read_text() == as_markdown(), "run: python -m phasewise.trainer.metrics > docs/reference/metrics.md"


def test_each_name_is_there_once_and_says_what_it_is():
    names = [metric.name for metric in TABLE]
    assert len(names) == len(set(names))
    assert all(metric.what for metric in TABLE)


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("loss", "loss"), ("grad_norm/mlp", "grad_norm/GROUP"), ("param_norm/query/31", "param_norm/WEIGHT/LAYER"),
        ("update_norm/head", "update_norm/WEIGHT"), ("eval_loss/web/common crawl", "eval_loss/COMPONENT"),
        ("losses", None), ("grad_norm/Q/1", None), ("param_norm/query/x", None), ("eval_loss/", None),
    ],
)  # fmt: skip
def test_a_name_is_found_in_the_table(name: str, entry: str | None):
    found = metric_of(name)
    assert (found.name if found else None) == entry


def test_what_the_clock_measures_is_known():
    assert of_the_clock("step_seconds")
    assert of_the_clock("mfu")
    assert not of_the_clock("loss")
    assert not of_the_clock("unknown")
