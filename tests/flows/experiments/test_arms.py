"""The plan of an experiment: forks of a phase, their seeds, what they declare, and what is refused before any work."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from phasewise.flows.experiments.arms import Experiment, plan_experiment
from phasewise.flows.recipes.assignments import setting
from phasewise.flows.recipes.phase import FromScratch, HandOff
from phasewise.flows.recipes.python_file import allow_code
from phasewise.trainer.base.errors import PhasewiseError
from tests.flows.commands import Run

FILE = """
from phasewise.flows.recipes.words import Recipe, Tokenizer, continued, evaluated, from_scratch, gates, llama, linear, order, text, wsd

FIRST = from_scratch(
    name="first", stop_step=20, model=llama(num_layers=1, d_model=32, seq_len=128, vocab_size=512), batch=8, mixture={"all": 100},
    order=order(seed=7, block_sequences=32), learning_rate=wsd(stop_step=20, warmup=4, decay=0, peak=2e-3),
    evaluation=evaluated(benchmarks=["word_order"], loss_every_steps=None),
    gates=gates(max_increase_bits_per_byte=5, max_epochs=None, must_beat_baseline=False),
)
FALL = continued(FIRST, name="fall", stop_step=40, declares=["schedule"], learning_rate=(linear(20, 40, 2e-3, 2e-4),))
STEEP = continued(FIRST, name="steep", stop_step=30, declares=["schedule"], branch=True, learning_rate=(linear(20, 30, 2e-3, 2e-4),))
LAST = continued(FALL, name="last", stop_step=50, declares=["learning_rate"], learning_rate=(linear(40, 50, 1e-3, 1e-4),))
RECIPE = Recipe(
    name="forked", tokenizer=Tokenizer(vocab_size=512), phases=(FIRST, FALL, STEEP, LAST),
    sources={"all": text("TEXT", "*.md", format="paragraphs")},
)
"""
HOT = 'hot:learning_rate=[{"kind": "linear", "start_step": 20, "end_step": 40, "start": 4e-3, "end": 2e-4}]'
DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(FILE.replace("TEXT", str(shutil.copytree(DOCS, tmp_path / "docs"))))
    return path


def plan(file: Path, phase: str, *arms: str, seeds: int = 2, control: str | None = None) -> Experiment:
    with allow_code():
        return plan_experiment(f"{file}/{phase}", "own", str(file.parent / "home"), arms, seeds, control)


def test_arms_and_control_fork_from_one_checkpoint_with_the_same_orders(file: Path):
    found = plan(file, "fall", HOT, "steep:steep", "linear:order.permutation=linear", "other:seed=50")
    assert {arm.name: [run.seed for run in arm.runs] for arm in found.arms} == {
        "control": [8, 9], "hot": [8, 9], "steep": [8, 9], "linear": [8, 9], "other": [50, 51],
    }  # fmt: skip
    assert {arm.name: arm.variables for arm in found.arms} == {
        "control": (), "hot": ("learning_rate",), "steep": ("stop_step", "learning_rate"), "linear": ("order",), "other": ("order",),
    }  # fmt: skip
    runs = [(arm, run) for arm in found.arms for run in arm.runs]
    for arm, run in runs:
        start = run.phase.start
        assert isinstance(start, HandOff)
        assert (start.parent, start.step, run.phase.order.seed) == ("first", 20, run.seed)
        expected = {"schedule", "order", "coverage"} | ({"learning_rate"} if arm.name == "hot" else set())
        assert set(start.declares) == expected, arm.name  # without a word of the user
        assert [phase.name for phase in run.resolved.recipe.phases if phase.name in dict(run.resolved.home.trials)] == [run.phase.name]
    assert len({run.folder for _, run in runs}) == 10
    assert found.name == plan(file, "fall", HOT, "steep:steep", "linear:order.permutation=linear", "other:seed=50").name


def test_a_phase_from_scratch_draws_its_weights_by_the_seed_and_takes_over_other_settings(file: Path):
    with setting(("first.batch=4",)):
        found = plan(file, "first", "hot:peak=4e-3", "hot:warmup=2")
    runs = [run for arm in found.arms for run in arm.runs]
    starts: list[Any] = [run.phase.start for run in runs]
    assert all(isinstance(start, FromScratch) for start in starts)
    assert [start.seed for start in starts] == [7, 8, 7, 8]
    assert [run.phase.batch.at(0) for run in runs] == [4] * 4
    assert found.arms[1].variables == ("learning_rate",)
    assert {field for field, *_ in found.arms[1].differences} >= {"learning_rate 1.end", "learning_rate 1.end_step"}


def test_an_arm_that_its_recipe_refuses_by_design_is_a_row(tmp_path: Path):
    found = plan_experiment("marin-8b/dessert-v3", "proxy", str(tmp_path), ["first:dessert-v1"], 1)
    control, first = found.arms
    assert (len(control.runs), first.runs) == (1, ())
    assert "must have a sequence of every component in every block" in first.refusal


@pytest.mark.parametrize(
    ("phase", "arms", "said"),
    [
        ("fall", ["hot"], "--arm takes NAME:FIELD=VALUE or NAME:PHASE"),
        ("fall", ["control:batch=4"], "with a name other than control"),
        ("fall", ["Hot:batch=4"], "found 'Hot:batch=4'"),
        ("fall", ["hot:bacth=4"], "has no field 'bacth', did you mean batch or branch?"),
        ("fall", ["hot:batch=8"], "the arm hot: expected a change of the training of fall, found the same settings and seeds."),
        ("fall", ["hot:gates.data.max_epochs=9"], "expected a change of the training"),
        ("fall", ["other:seed=9"], "set a seed of at least 10"),
        ("fall", ["other:seed=soon"], "seed: expected a whole number, found 'soon'"),
        ("fall", ["late:last"], "expected a phase that starts from step 20 of first as fall, found last, from step 40 of fall."),
        ("fall", ["late:lost"], "forked has no phase 'lost', did you mean last"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_any_work(file: Path, phase: str, arms: list[str], said: str):
    with pytest.raises(PhasewiseError) as refusal:
        plan(file, phase, *arms)
    assert said in str(refusal.value)
    assert not (file.parent / "home").exists()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_an_experiment_trains_each_run_once_and_a_diverged_arm_is_a_row(file: Path, phasewise: Run):
    home = file.parent / "home"
    mad = HOT.replace("hot", "mad").replace("4e-3", "4e5")
    given = ("try", f"{file}/fall", "--home", home, "--arm", HOT, "--arm", mad, "--seeds", "2")
    first = phasewise(*given, "--json")
    assert first.exit_code == 0, first.stderr
    results = {path: path.stat().st_mtime_ns for path in home.glob("runs/*/*/result.json")}
    again = phasewise(*given, "--json")
    assert again.stdout == first.stdout
    assert {path: path.stat().st_mtime_ns for path in home.glob("runs/*/*/result.json")} == results
    assert len(list(home.glob("experiments/forked-own/fall-*/*.svg"))) == 4
    assert "mad, seed 8:" in phasewise(*given).stdout
