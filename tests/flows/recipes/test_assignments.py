from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from phasewise.flows import resolved as module
from phasewise.flows.recipes import load_record, load_target
from phasewise.flows.recipes.assignments import setting, settings_in_force
from phasewise.flows.recipes.phase import HandOff, Phase
from phasewise.flows.recipes.python_file import allow_code
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.resolved import resolve, resolving_once
from phasewise.flows.validate_data import validate_data
from phasewise.trainer.base.errors import ConfigError, PhasewiseError, RecipeError

LAST = "deeper-starling"


def loaded(*settings: str) -> Recipe:
    with setting(settings):
        return load_target("marin-8b/kestrel", "proxy")[0]


def refusal(*settings: str, kind: type[PhasewiseError] = RecipeError) -> str:
    with pytest.raises(PhasewiseError) as refused:
        loaded(*settings)
    assert type(refused.value) is kind
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    ("given", "read", "value"),
    [
        ("gates.data.max_epochs=9", lambda phase: phase.gates.data.max_epochs, 9),
        ("gates.data.max_epochs=null", lambda phase: phase.gates.data.max_epochs, None),
        ("evaluation.benchmarks=[\"next_word\"]", lambda phase: phase.evaluation.benchmarks, ("next_word",)),
        ("instrumentation.wandb=offline", lambda phase: phase.instrumentation.wandb, "offline"),
        ("instrumentation.tensorboard = true ", lambda phase: phase.instrumentation.tensorboard, True),
        ("instrumentation.mlflow=sqlite:///m.db", lambda phase: phase.instrumentation.mlflow, "sqlite:///m.db"),
        ("forecast=true", lambda phase: phase.forecast, True),
        ("checkpoints.every_steps=7", lambda phase: phase.checkpoints.every_steps, 7),
        ("slice=local", lambda phase: phase.slice.root, ((0, "local"),)),
    ],
)  # fmt: skip
def test_a_value_is_set_where_it_says(given: str, read: Callable[[Any], Any], value: Any):
    recipe = loaded(f"{LAST}.{given}")
    assert read(recipe.phase(LAST)) == value
    others = [phase for phase in recipe.phases if phase.name != LAST]
    assert others == [phase for phase in loaded().phases if phase.name != LAST]


def test_a_number_for_a_value_by_steps_is_for_every_step():
    with setting(["mantis.stability.max_grad_norm=0.2"]):
        assert load_record("marin-32b", "proxy").phase("mantis").stability.max_grad_norm.root == ((0, 0.2),)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (f"{LAST}.optimzer.beta1=0.5", f"{LAST} has no field 'optimzer', did you mean optimizer?"),
        (f"{LAST}.optimizer.qqq=0.5", "has no field 'qqq', there are beta1, beta2"),
        ("kestral.batch=4", "marin-8b has no phase 'kestral', did you mean kestrel"),
        (f"{LAST}.stop_step.x=4", f"{LAST}.stop_step is 1420, and has no fields: set {LAST}.stop_step as a whole"),
        (f"{LAST}.learning_rate.7.end=4", "is a list of 1: take a number from 0 on"),
        (f"{LAST}.batch=soon", f"marin-8b is invalid with --set {LAST}.batch=soon: {LAST}.batch: expected a whole number, found 'soon'"),
        (f"{LAST}.batch=4", "makes a change that it does not declare. batch: 8 → 4. Name batch in `declares`"),
        ('recipe.name="NO"', "name: expected a text like ^[a-z0-9][a-z0-9-]*$, found 'NO'"),
        ("kestrel.stop_step=600", "phase ocelot starts from step 660 of kestrel, which would stop at step 600. Set ocelot.start.step and"),
        ("kestrel", "--set takes PHASE.NAME=VALUE, NAME=VALUE for every phase, or recipe.NAME=VALUE, found 'kestrel'"),
        ("kestrel..batch=4", "--set takes PHASE.NAME=VALUE"),
        ("peak=1e-3", "kestrel has no field 'peak', there are name, start, stop_step"),  # a scale computes values, and calls nothing
        ("recipe.phases=[]", "phases cannot be set this way. Instead, name a phase"),
        ("recipe.scale=full", "scale cannot be set this way. Instead, use --scale"),
    ],
)  # fmt: skip
def test_what_cannot_be_set_is_refused_and_what_is_no_setting_is_wrong_usage(given: str, said: str):
    assert said in refusal(given, kind=ConfigError if "--set takes" in said or "cannot be set this way" in said else RecipeError)


FILE = """
from phasewise.flows.recipes.words import AdamC, Recipe, Tokenizer, adamc, constant, continued, cooldown, first_phase, gates, linear, llama
from phasewise.flows.recipes.words import FromScratch, from_scratch, order, text, wsd, wsd_s

shared = dict(model=llama(num_layers=1, d_model=32), batch=8, mixture={"all": 100}, gates=gates())
WARM_UP = from_scratch(name="warm-up", stop_step=100, learning_rate=wsd(stop_step=100, warmup=10, decay=0, peak=2e-3), **shared)
COOLDOWN = continued(
    WARM_UP, name="cooldown", stop_step=150, declares=("schedule",), learning_rate=cooldown(100, 150, 2e-3, floor=2e-5),
)
SEGMENTS = first_phase(
    name="segments", start=FromScratch(seed=0), stop_step=100, optimizer=adamc(peak_learning_rate=1e-3), order=order(seed=0),
    learning_rate=(linear(0, 10, 0, 1e-3), constant(10, 100, 1e-3)), **shared,
)
CYCLES = from_scratch(
    name="cycles", stop_step=100, optimizer=adamc(peak_learning_rate=1e-3), **shared,
    learning_rate=wsd_s(stop_step=100, cycle=50, decay=10, warmup=5, peak=1e-3, floor=1e-4),
)
sources = {"all": text(".", "*.txt")}
TWO = Recipe(name="two", tokenizer=Tokenizer(vocab_size=4096), phases=(WARM_UP, COOLDOWN), sources=sources)
OTHERS = Recipe(name="others", tokenizer=Tokenizer(vocab_size=4096), phases=(SEGMENTS, CYCLES), sources=sources)
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("written") / "own.py"
    path.write_text(FILE)
    return path


def written(file: Path, name: str, *settings: str) -> Recipe:
    with allow_code(), setting(settings):
        return load_target(f"{file}:{name}", "own")[0]


def ends(phase: Phase) -> list[tuple[int, float]]:
    first = phase.learning_rate[0]
    return [(first.start_step, first.start), *((segment.end_step, segment.end) for segment in phase.learning_rate)]


RISE, FALL = [(0, 0.0), (10, 2e-3), (100, 2e-3)], [(100, 2e-3), (150, 2e-5)]


@pytest.mark.parametrize(
    ("settings", "rise", "fall"),
    [
        (["peak=1e-3"], [(0, 0.0), (10, 1e-3), (100, 1e-3)], [(100, 1e-3), (150, 2e-5)]),
        (["warm-up.warmup=20"], [(0, 0.0), (20, 2e-3), (100, 2e-3)], FALL),
        (["warm-up.warmup=0"], [(0, 2e-3), (100, 2e-3)], FALL),
        (["warm-up.stop_step=120"], [(0, 0.0), (10, 2e-3), (120, 2e-3)], [(120, 2e-3), (150, 2e-5)]),
        (["warm-up.stop_step=200", "cooldown.stop_step=250"], [(0, 0.0), (10, 2e-3), (200, 2e-3)], [(200, 2e-3), (250, 2e-5)]),
        (["cooldown.floor=1e-4"], RISE, [(100, 2e-3), (150, 1e-4)]),
        (["cooldown.learning_rate.0.end=1e-4", "cooldown.stop_step=160"], RISE, [(100, 2e-3), (160, 1e-4)]),
        (["warm-up.warmup=200", "cooldown.peak=1e-3"], [(0, 0.0), (100, 1e-3)], [(100, 1e-3), (150, 2e-5)]),  # it stops in its warm-up
    ],
)  # fmt: skip
def test_an_argument_of_a_call_changes_what_follows_from_it(file: Path, settings: list[str], rise: list[Any], fall: list[Any]):
    recipe = written(file, "TWO", *settings)
    assert [ends(phase) for phase in recipe.phases] == [rise, fall]
    starts = [(phase.start_step, phase.stop_step) for phase in recipe.phases]
    assert starts == [(0, rise[-1][0]), (rise[-1][0], fall[-1][0])]
    untouched = written(file, "TWO")
    assert [phase.but(start=other.start, stop_step=other.stop_step, learning_rate=other.learning_rate)
            for phase, other in zip(recipe.phases, untouched.phases, strict=True)] == list(untouched.phases)  # fmt: skip


def test_a_phase_that_inherits_follows_and_hand_written_segments_move(file: Path):
    assert [phase.batch.root for phase in written(file, "TWO", "warm-up.batch=16").phases] == [((0, 16),)] * 2
    assert [phase.order.seed for phase in written(file, "TWO", "warm-up.seed=3").phases] == [3, 3]
    segments, cycles = written(file, "OTHERS", "segments.stop_step=80", "cycles.peak=2e-3", "seed=7").phases
    assert ends(segments) == [(0, 0.0), (10, 1e-3), (80, 1e-3)]
    assert [end for step, end in ends(cycles) if step in (5, 40, 90)] == [2e-3] * 3
    assert [getattr(phase.optimizer, "peak_learning_rate", None) for phase in (segments, cycles)] == [1e-3, 2e-3]
    assert [(getattr(phase.start, "seed", None), phase.order.seed) for phase in (segments, cycles)] == [(7, 7)] * 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("warm-up.peek=1", "warm-up has no field 'peek', did you mean peak?"),
        ("peek=1", "warm-up has no field 'peek', did you mean peak?"),
        ("warm-up.stop_stpe=1", "did you mean stop_step?"),
        ("warm-up.peak=soon", "two is invalid with --set warm-up.peak=soon: warm-up: peak: expected a number, found 'soon'."),
        ("warm-up.peak=1e-3", "the hand-off warm-up → cooldown makes a change that it does not declare. learning_rate: 0.001 → 0.002"),
        ("warm-up.decay=95", "warm-up: the decay must start after the warm-up: expected stop_step - decay of at least 10, found 100 - 95"),
        ("warm-up.stop_step=200", "cooldown: stop_step: expected more than 200, where the phase starts, found 150. Set it as well."),
        ("warm-up.batch=soon", "warm-up.batch.0.1: expected a whole number, found 'soon'"),
        ("cooldown.batch=16", "batch: 8 → 16. Name batch in `declares`"),
    ],
)  # fmt: skip
def test_an_argument_that_contradicts_is_refused_in_one_line(file: Path, given: str, said: str):
    with pytest.raises(RecipeError) as refused:
        written(file, "TWO", given)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "blocks"),
    [
        ([], [32, 32]),
        (['warm-up.mixture={"all": 97, "few": 3}'], [32, 32]),  # 1 of 32 is within the error of a share
        (['warm-up.mixture={"all": 99.5, "few": 0.5}'], [104, 104]),  # the least multiple of the batch with a sequence of `few`
        (['warm-up.mixture={"all": 99.5, "few": 0.5}', "seed=3", "batch=50"], [150, 150]),
        (['cooldown.mixture={"all": 99, "few": 1}', 'cooldown.declares=["schedule", "mixture"]'], [56, 56]),
        (['warm-up.order={"seed": 0, "permutation": "feistel", "block_sequences": 100}'], [100, 100]),
    ],
)
def test_a_block_follows_from_the_batch_and_the_shares_of_all_phases(file: Path, settings: list[str], blocks: list[int]):
    path = file.with_name("blocks.py")
    both = FILE.replace('"all": 100', '"all": 50, "few": 50').replace(
        'text(".", "*.txt")', 'text(".", "*.txt"), "few": text(".", "few.md")'
    )
    path.write_text(both)
    recipe = written(path, "TWO", *settings)
    assert [phase.order.block_sequences for phase in recipe.phases] == blocks


def test_an_argument_with_the_value_of_the_recipe_is_no_trial(file: Path, tmp_path: Path):
    def trials(*settings: str) -> set[str]:
        with allow_code(), setting(settings):
            return {phase for phase, _ in resolve(f"{file}:TWO", "own", str(tmp_path))[0].home.trials}

    assert trials("peak=3e-3") == trials("seed=1") == {"warm-up", "cooldown"}
    assert trials("cooldown.floor=1e-6") == {"cooldown"}
    assert trials() == trials("cooldown.slice=local") == trials("peak=2e-3") == trials("seed=0") == set()


def test_a_setting_is_another_recipe_and_stays_with_what_was_resolved(tmp_path: Path):
    home = str(tmp_path)
    with resolving_once():
        plain, _ = resolve("marin-8b", "proxy", home)
        with setting([f"{LAST}.checkpoints.every_steps=7"]):
            trial, _ = resolve("marin-8b", "proxy", home)
        assert resolve("marin-8b", "proxy", home)[0] is plain
    assert plain.settings == ()
    assert trial.settings == (f"{LAST}.checkpoints.every_steps=7",)
    assert trial.recipe != plain.recipe
    assert trial.options == f"--scale proxy --home {home} --set {LAST}.checkpoints.every_steps=7"


def test_a_flow_finds_what_its_parameter_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found: list[Any] = []

    def look(recipe: str, phase: str, scale: str, home: str | None) -> Any:
        found.append((settings_in_force(), load_record("marin-8b", "proxy").phase(LAST).checkpoints.every_steps))
        raise ConfigError("enough")

    monkeypatch.setattr("phasewise.flows.validate_data.resolve_phase", look)
    for settings in (("deeper-starling.checkpoints.every_steps=7",), ()):
        with setting(["recipe.name=outside"]), pytest.raises(ConfigError, match="enough"):
            validate_data.fn("marin-8b", LAST, "proxy", str(tmp_path), settings)
    assert found[0] == (("deeper-starling.checkpoints.every_steps=7",), 7)
    assert found[1][0] == ()
    assert found[1][1] != 7
    assert module.settings_in_force() == ()


def test_a_field_of_every_phase_and_the_slice_that_no_hand_off_changes_then():
    with setting(["*.slice=h100-8", "*.checkpoints.every_steps=7"]):
        recipe = load_record("marin-8b", "full")
    assert {name for phase in recipe.phases for _, name in phase.slice.root} == {"h100-8"}
    assert {phase.checkpoints.every_steps for phase in recipe.phases} == {7}
    starts = [phase.start for phase in recipe.phases if isinstance(phase.start, HandOff)]
    assert starts
    assert not any("slice" in start.declares for start in starts)
    assert any("batch" in start.declares for start in starts)
