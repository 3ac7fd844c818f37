from pathlib import Path

import pytest
import yaml

from experiments.survival.runs import tiny_recipe
from phasewise.deployments.declared import FLOWS, REFUSED, START, Deployment, Source, declare, declare_pools, read_folder
from phasewise.deployments.prefect_file import main as print_prefect_file
from phasewise.deployments.register import form_of, parameters_of
from phasewise.flows.recipes import NAMES, load_written
from phasewise.flows.recipes.python_file import allow_code
from phasewise.flows.recipes.recipe import Recipe
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import ConfigError, RecipeError
from tests.deployments.recipes import write_long_recipe

CODE = """
import json
from pathlib import Path
from phasewise.flows.recipes.recipe import Recipe
_ran = Path(__file__).with_name("ran")
_ran.write_text(_ran.read_text() + "x" if _ran.exists() else "x")
MINE = Recipe.model_validate_json(Path(__file__).with_name("_kept.json").read_text())
OTHER = MINE.but(name="other")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    long = write_long_recipe(tmp_path / "text")
    folder = tmp_path / "recipes"
    folder.mkdir()
    (folder / "_kept.json").write_text(Recipe.model_validate_json(long.read_text()).but(name="mine").model_dump_json())
    (folder / "mine.py").write_text(CODE)
    (folder / "notes.txt").write_text("no recipe")
    long.rename(folder / "long.json")
    return folder


def test_code_runs_once_and_only_in_the_terminal_and_flows_read_what_came_of_it(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="is code"):
        read_folder(folder, Home(tmp_path))
    assert not (folder / "ran").exists()
    with allow_code():
        sources = read_folder(folder, Home(tmp_path / "home"))
    assert [source.written.name for source in sources] == ["long", "mine", "other"]
    assert (folder / "ran").read_text() == "x"
    for source in sources:
        assert source.given.endswith(f"{source.written.name}.json")
        assert load_written(source.given) == source.written  # outside of `allow_code`, as in a flow


def test_a_path_of_text_is_absolute_where_flows_read_it(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = Recipe.model_validate_json((folder / "long.json").read_text())
    near = {name: source.but(url=f"text/{name}") for name, source in raw.sources.items()}
    (folder / "long.json").write_text(raw.but(sources=near).model_dump_json())
    monkeypatch.chdir(tmp_path)
    with allow_code():
        [long, *_] = read_folder(folder, Home(tmp_path / "home"))
    assert {source.url for source in load_written(long.given).sources.values()} == {str(tmp_path / "text" / name) for name in near}


def test_what_is_no_recipe_is_named(folder: Path, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    (folder / "wrong.json").write_text("{}")
    with allow_code(), pytest.raises(RecipeError, match=r"wrong\.json is not a recipe"):
        read_folder(folder, home)
    (folder / "wrong.json").write_text((folder / "long.json").read_text())
    with allow_code(), pytest.raises(RecipeError, match=r"wrong\.json and .*long\.json both call a recipe long"):
        read_folder(folder, home)
    with pytest.raises(ConfigError, match="needs a folder"):
        read_folder(folder / "none", home)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="found none"):
        read_folder(tmp_path / "empty", home)


SOURCES = [Source(name, load_written(name)) for name in NAMES]
DECLARED = {one.full_name: one for one in declare(SOURCES)}
ONE_OF_EACH = [next(one for one in DECLARED.values() if one.flow == flow) for flow in FLOWS]


def test_prefect_yaml_has_every_declared_deployment(capsys: pytest.CaptureFixture[str]) -> None:
    print_prefect_file()
    text = capsys.readouterr().out
    found = yaml.safe_load(text)["deployments"]
    assert [(one["entrypoint"], one["name"], one["parameters"]) for one in found] == [
        (one.entrypoint, one.name, dict(one.parameters)) for one in DECLARED.values()
    ]
    assert all(one["entrypoint"] and not schedule["active"] for one in found for schedule in one.get("schedules", ()))
    assert all(f"work-pool create {pool.name} " in text for pool in declare_pools(SOURCES))


@pytest.mark.parametrize("deployment", ONE_OF_EACH, ids=lambda one: one.flow)
def test_a_flow_takes_what_is_fixed_and_what_the_form_asks_for(deployment: Deployment) -> None:
    every = parameters_of(deployment)["properties"]
    form = form_of(deployment, parameters_of(deployment))["properties"]
    assert set(deployment.parameters) | set(form) <= set(every)
    assert set(deployment.parameters).isdisjoint(form)
    assert set(every) - set(form) - set(deployment.parameters) <= {"home", "phase", "up_to", "retrain", "extend", "out"}
    assert all(field["description"] and field["title"] for field in form.values())
    assert "home" not in form
    assert deployment.parameters.get("recipe") in NAMES or form["recipe"]["enum"] == list(NAMES)


def test_a_form_has_the_phases_of_its_own_recipe_as_choices() -> None:
    branch = DECLARED["train-phase/marin-8b · branch"]
    form = form_of(branch, parameters_of(branch))
    assert form["properties"]["phase"]["enum"][:2] == ["kestrel-as-reported", "microannealing-control"]
    assert "kestrel" not in form["properties"]["phase"]["enum"]
    assert form["required"] == ["phase"]
    train = DECLARED["train-recipe/marin-8b"]
    fields = form_of(train, parameters_of(train))["properties"]
    assert "default" not in fields["up_to"]
    assert fields["retrain"]["items"]["enum"][:2] == ["kestrel", "ocelot"]
    without_training = [one for one in DECLARED.values() if one.name.startswith("~")]
    assert {one.name for one in without_training if one.asks.get("scale") == ("proxy", "full")} == {"~ prepare", "~ validate"}
    assert {one.name for one in without_training if one.parameters.get("scale") == "full"} == {"~ preflight"}


def test_the_list_is_in_the_order_of_need_and_no_two_schedules_are_at_the_same_time() -> None:
    names = [one.name for one in DECLARED.values()]
    assert names == sorted(names)
    line = ["kestrel", "ocelot", "jellyfish", "phoenix", "starling", "deeper-starling"]
    numbered = [f"marin-8b · {number} {name}" for number, name in enumerate(line, 1)]
    assert [name for name in names if name.startswith("marin-8b")] == ["marin-8b", *numbered, "marin-8b · branch"]
    assert (names[0], [name for name in names if name.startswith("~")]) == (START, names[-7:])
    times = [schedule.cron for one in DECLARED.values() for schedule in one.schedules]
    assert len(set(times)) == len(times) == 27


def test_what_every_run_refuses_is_marked() -> None:
    text = DECLARED[f"train-recipe/{START}"].description
    branch, bison = DECLARED["train-phase/marin-8b · branch"], DECLARED["train-phase/marin-32b · 3 bison"]
    assert "Refused by design: dessert-v1 (a block of" in form_of(branch, parameters_of(branch))["properties"]["phase"]["description"]
    assert "**Refused by design**: its text contains benchmark items." in bison.description
    assert [one.name for one in DECLARED.values() if REFUSED in one.tags] == [bison.name]
    assert all(f"{name}, because" in text for name in ("marin-8b/dessert-v1", "marin-32b/bison", "marin-32b/bison-flat"))


def test_a_recipe_of_ones_own_is_run_as_it_is_written() -> None:
    recipe = tiny_recipe()
    recipe = recipe.but(scale="own", name="mine", phases=[recipe.phases[0].model_dump()])
    found = {one.full_name: one for one in declare([Source("/kept/mine.json", recipe)])}
    assert {one.parameters["recipe"] for one in found.values()} == {"/kept/mine.json"}
    assert {one.parameters.get("scale") for one in found.values()} == {"own"}
