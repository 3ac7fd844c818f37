from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from phasewise.flows import resolved as module
from phasewise.flows.recipes import load_record, load_target
from phasewise.flows.recipes.assignments import setting, settings_in_force
from phasewise.flows.recipes.phase import HandOff
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
        ("kestrel", "--set takes PHASE.FIELD=VALUE or recipe.FIELD=VALUE, found 'kestrel'"),
        ("kestrel..batch=4", "--set takes PHASE.FIELD=VALUE"),
        ("recipe.phases=[]", "phases cannot be set this way. Instead, name a phase"),
        ("recipe.scale=full", "scale cannot be set this way. Instead, use --scale"),
    ],
)  # fmt: skip
def test_what_cannot_be_set_is_refused_and_what_is_no_setting_is_wrong_usage(given: str, said: str):
    assert said in refusal(given, kind=ConfigError if "--set takes" in said or "cannot be set this way" in said else RecipeError)


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
