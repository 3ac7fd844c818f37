"""Hours, bytes and dollars before a build: what they are computed from, and that a measurement measures."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from phasewise.flows.cli import main
from phasewise.tasks.data import projection
from phasewise.tasks.data.budget import assumed_tokens
from phasewise.tasks.data.plan import plan_data
from phasewise.tasks.data.projection import Speed, measure_speed, project
from phasewise.tasks.data.source import Source
from phasewise.tasks.home import Home
from tests.tasks.conftest import World, write_lines

SPEED = Speed(tokens_per_second=50_000, seconds=10, tokenizer="the recipe's tokenizer")


def test_hours_follow_from_files_speed_and_workers(tmp_path: Path):
    for number in range(8):
        write_lines(tmp_path / "web" / f"{number}.jsonl", ["some words " * 900] * 50)
    source = Source(url=(tmp_path / "web").as_uri(), include=("*.jsonl",), format="jsonl")
    size = (tmp_path / "web" / "0.jsonl").stat().st_size
    plan = plan_data({"web": source}, Home.open(str(tmp_path / "home")), vocab_size=500, budgets={"web": 200_000})
    found = project(plan, SPEED, workers=4, price_per_hour=3.0)
    files = plan.components["web"].listing.budget
    assert files is not None
    assert files.files == 3
    tokens = round(3 * assumed_tokens(source, "0.jsonl", size))
    assert (found["bytes"], found["tokens"]) == (3 * size, tokens)
    assert found["hours"] == pytest.approx(tokens / 200_000 / 3600)
    assert found["dollars"] == pytest.approx(3 * tokens / 200_000 / 3600)
    assert found["bytes_per_second"] == pytest.approx(3 * size / (tokens / 200_000))
    assert project(plan, SPEED, workers=4, price_per_hour=None)["dollars"] is None


def test_what_is_built_is_not_read_again(prepared: World):
    found = project(prepared.plan(), SPEED, workers=1, price_per_hour=3.0)
    assert (found["bytes"], found["tokens"], found["hours"], found["dollars"]) == (0, 0, 0, 0)


def test_a_measurement_says_how_long_and_with_what(tmp_path: Path, prepared: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(projection, "ROUND_BYTES", 50_000)
    monkeypatch.setattr(projection, "SAMPLE_VOCABULARY", 500)
    here = measure_speed(prepared.plan().tokenizer, seconds=0.2)
    assert here.tokens_per_second > 1000
    assert here.seconds >= 0.2
    assert here.tokenizer == "the recipe's tokenizer"
    assert "because the recipe's is not here" in measure_speed(tmp_path / "none.json", seconds=0.0).tokenizer


def test_a_price_without_a_plan_is_wrong_usage():
    result = CliRunner().invoke(main, ["data", "prepare", "marin-8b", "--price-per-hour", "3"])
    assert (result.exit_code, "--price-per-hour goes with --plan" in result.output) == (2, True)
