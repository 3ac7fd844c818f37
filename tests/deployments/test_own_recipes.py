"""Recipes of one's own as deployments."""

from pathlib import Path

import pytest

from phasewise.deployments.own_recipes import read_folder
from phasewise.flows.recipes import load_written
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


def test_code_runs_once_in_the_terminal_and_flows_read_what_came_of_it(folder: Path, tmp_path: Path) -> None:
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


def test_without_the_word_of_the_terminal_no_code_runs(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="is code"):
        read_folder(folder, Home(tmp_path))
    assert not (folder / "ran").exists()


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
