"""Variants of a recipe: which ones, before any work, and the table of real runs."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from experiments.survival.runs import kill_when
from phasewise.flows.cli.sweep import marked, print_sweep, settings_of
from tests.flows.commands import Run

FILE = """
from phasewise.flows.recipes.words import Recipe, Tokenizer, evaluated, from_scratch, gates, llama, text, wsd

PHASE = from_scratch(
    name="my", stop_step=20, model=llama(num_layers=1, d_model=32, seq_len=128, vocab_size=512), batch=8, mixture={"all": 100},
    learning_rate=wsd(stop_step=20, warmup=4, decay=0, peak=2e-3), evaluation=evaluated(benchmarks=["word_order"], loss_every_steps=None),
    gates=gates(max_increase_bits_per_byte=5, max_epochs=None, must_beat_baseline=False),
)
RECIPE = Recipe(
    name="swept", tokenizer=Tokenizer(vocab_size=512), phases=(PHASE,), sources={"all": text("TEXT", "*.md", format="paragraphs")},
)
"""
DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(FILE.replace("TEXT", str(shutil.copytree(DOCS, tmp_path / "docs"))))
    return path


def test_every_combination_is_a_variant_once():
    rates = ["peak=0.001", "peak=0.002"]
    assert settings_of(["peak=1e-3, 2e-3,0.001"], 2) == [((rate,), seed) for rate in rates for seed in (0, 1)]
    assert settings_of(["peak=1e-3,2e-3", "my.batch=4,8"], None) == [
        ((rate, f"my.batch={size}"), None) for rate in rates for size in (4, 8)
    ]
    assert settings_of([], 2) == [((), 0), ((), 1)]
    assert settings_of(['my.mixture={"a": 50, "b": 50},{"a": 100}'], None)[0] == (('my.mixture={"a": 50, "b": 50}',), None)
    assert settings_of(["my.order.permutation=linear,feistel"], None)[1] == (("my.order.permutation=feistel",), None)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--sweep", "peak"], 2, "--sweep takes NAME=VALUE,VALUE or PHASE.NAME=VALUE,VALUE, found 'peak'"),
        (["--sweep", "peak=1e-3,,2e-3"], 2, "--sweep takes NAME=VALUE,VALUE"),
        (["--sweep", "peak=1e-3", "--sweep", "peak=2e-3"], 2, "expected each name once, found peak again"),
        (["--sweep", "seed=1,2", "--seeds", "2"], 2, "expected each name once, found seed again"),
        (["--sweep", "peek=1e-3"], 1, "my has no field 'peek', did you mean peak?"),
        (["--sweep", "peak=1e-3,soon"], 1, "peak: expected a number, found 'soon'"),  # before the first variant trains
        (["--sweep", "my.gates.data.max_epochs=8,9"], 2, "expected a changed training of phase my, found the same as the recipe"),
        (["--sweep", "warmup=4,4.0"], 2, "the variant warmup=4.0: expected a changed training of phase my, found the same as warmup=4."),
        (["--seeds", "2", "--extend", "my"], 2, "--extend: expected no --sweep and no --seeds"),
        (["--seeds", "2", "--retrain", "mine"], 2, "--retrain names mine: expected phases of this run (my)"),
    ],
)  # fmt: skip
def test_a_sweep_is_refused_before_any_work(phasewise: Run, file: Path, tmp_path: Path, arguments: list[str], code: int, said: str):
    result = phasewise("run", file, "--home", tmp_path / "home", *arguments)
    assert said in result.stderr
    assert (result.exit_code, result.stdout) == (code, "")
    assert not (tmp_path / "home" / "runs").exists()


def row(name: str, loss: float | None, deviation: float | None = 0.01) -> dict[str, Any]:
    measured = {"final_loss": loss, "final_loss_deviation": deviation, "bits_per_byte": None, "bits_per_byte_deviation": None}
    return {"name": name, "settings": [name], "passed": 3, "runs": [{"settings": [name], "refusal": None}] * 3, **measured}


def test_the_best_row_and_the_rows_within_the_error_are_marked(capsys: pytest.CaptureFixture[str]):
    rows = marked([row("a", 2.0), row("b", 2.01), row("c", 2.5), row("d", None, None)])
    assert [one["name"] for one in rows if one["is_best"]] == ["a"]
    assert [one["name"] for one in rows if one["is_tied"]] == ["b"]
    assert not any(one["is_best"] for one in marked([row("d", None, None)]))
    assert [one["is_tied"] for one in marked([row("a", 2.0, None), row("b", 2.0001, None)])] == [False, False]  # one seed tells no error
    print_sweep({"recipe": "swept", "scale": "own", "phase": "my", "seeds": 3, "variants": rows})
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "swept · own · my"
    assert lines[3:5] == ["a 2.000 ± 0.010 – 3 of 3 best", "b 2.010 ± 0.010 – 3 of 3 as good, within the error"]
    assert "Mean ± standard deviation over 3 seeds." in lines


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_killed_sweep_resumes_and_leaves_the_recipe_s_run_alone(file: Path, tmp_path: Path, phasewise: Run):
    home = tmp_path / "home"

    def start(*arguments: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-P", "-m", "phasewise.flows.cli.main", "run", str(file), "--home", str(home), *arguments, "--json"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ))

    assert json.loads(start().communicate()[0])["phases"][0]["verdict"] == "passed"
    runs = home / "runs" / "swept-own"
    own = {path: path.stat().st_mtime_ns for path in (runs / "my").rglob("*")}
    sweep = ("--sweep", "peak=2e-3,8e-3")
    kill_when(start(*sweep), lambda: len(list(runs.glob("my-trial-*/result.json"))) == 1)
    (first,) = runs.glob("my-trial-*/result.json")
    written = first.stat().st_mtime_ns
    table = json.loads(start(*sweep).communicate()[0])
    assert [(one["name"], one["passed"], one["is_best"]) for one in table["variants"]] == [
        ("peak=0.002", 1, False),
        ("peak=0.008", 1, True),
    ]
    folders = [Path(run["folder"]) for one in table["variants"] for run in one["runs"]]
    assert len(set(folders)) == 2
    assert first.parent in folders
    assert first.stat().st_mtime_ns == written
    assert {path: path.stat().st_mtime_ns for path in (runs / "my").rglob("*")} == own
    for variant in ("0.002", "0.008"):
        status = phasewise("status", file, "--home", home, "--set", f"peak={variant}")
        assert status.exit_code == 0, status.output
    with open(folders[1] / "metrics.jsonl", "a") as metrics:
        metrics.write("{}\n")
    damaged, other = (phasewise("status", file, "--home", home, "--set", f"peak={variant}") for variant in ("0.008", "0.002"))
    assert f"changed after they were written: runs/swept-own/{folders[1].name}/metrics.jsonl" in damaged.output
    assert (damaged.exit_code, other.exit_code) == (1, 0)
