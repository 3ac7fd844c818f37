"""The deployments that are made from the recipes."""

import pytest

from experiments.survival.runs import tiny_recipe
from phasewise.deployments.declared import MODULES, Deployment, Source, declare, declare_pools
from phasewise.deployments.forms import form_of
from phasewise.deployments.prefect_file import PREFECT_FILE, prefect_file
from phasewise.deployments.register import parameters_of
from phasewise.flows.recipes import NAMES, load_recipe
from phasewise.trainer.base.errors import RecipeError
from phasewise.trainer.base.identity import HOUSE

SOURCES = [Source.named(name) for name in NAMES]
DECLARED = {one.full_name: one for one in declare(SOURCES)}
ONE_OF_EACH = [next(one for one in DECLARED.values() if one.flow == flow) for flow in MODULES]


def test_prefect_yaml_is_what_is_declared() -> None:
    assert PREFECT_FILE.read_text(encoding="utf-8") == prefect_file(list(DECLARED.values()), declare_pools(SOURCES))


@pytest.mark.parametrize("deployment", ONE_OF_EACH, ids=lambda one: one.flow)
def test_a_flow_takes_what_is_fixed_and_what_the_form_asks_for(deployment: Deployment) -> None:
    every = parameters_of(deployment)["properties"]
    form = form_of(deployment, parameters_of(deployment))["properties"]
    assert set(deployment.parameters) | set(form) <= set(every)
    assert set(deployment.parameters).isdisjoint(form)
    assert set(every) - set(form) - set(deployment.parameters) <= {"home", "phase", "up_to"}
    assert all(field["description"] and field["title"] for field in form.values())
    assert "home" not in form
    assert "recipe" not in form
    assert load_recipe(deployment.parameters["recipe"], "proxy")


def test_every_flow_is_deployed() -> None:
    modules = {path.stem for path in (HOUSE / "flows").glob("*.py") if "\n@door(" in path.read_text(encoding="utf-8")}
    assert modules == set(MODULES.values())


def test_a_form_has_the_phases_of_its_own_recipe_as_choices() -> None:
    branch = DECLARED["train-phase/marin-8b-branch"]
    form = form_of(branch, parameters_of(branch))
    assert form["properties"]["phase"]["enum"][0] == "microannealing-control"
    assert "kestrel" not in form["properties"]["phase"]["enum"]
    assert form["required"] == ["phase"]
    train = DECLARED["train-recipe/marin-8b"]
    fields = form_of(train, parameters_of(train))["properties"]
    assert "default" not in fields["up_to"]
    assert fields["retrain"]["items"]["enum"][:2] == ["kestrel", "ocelot"]


def test_two_of_one_name_are_refused() -> None:
    recipe = tiny_recipe()
    first = recipe.phases[0].name
    other = recipe.but(name=f"tiny-{first}", phases=[recipe.phases[0].but(name="x").model_dump()])
    mine = recipe.but(name="tiny", phases=[recipe.phases[0].but(name=f"{first}-x").model_dump()])
    with pytest.raises(RecipeError, match=f"two deployments would be called train-phase/tiny-{first}-x: of mine/.*, and of other/x"):
        declare([Source("mine", mine), Source("other", other)])


def test_a_recipe_of_ones_own_is_run_as_it_is_written() -> None:
    recipe = tiny_recipe()
    recipe = recipe.but(scale="own", name="mine", phases=[recipe.phases[0].model_dump()])
    found = {one.full_name: one for one in declare([Source("/kept/mine.json", recipe)])}
    assert {one.parameters["recipe"] for one in found.values()} == {"/kept/mine.json"}
    assert {one.parameters.get("scale") for one in found.values()} == {"own"}
