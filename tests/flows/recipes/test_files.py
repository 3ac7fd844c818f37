"""Recipes by name and from files; whatever is wrong with one is said in one line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from phasewise.flows.recipes import NAMES, load_recipe, load_target, split_target
from phasewise.flows.recipes.recipe import Recipe
from phasewise.trainer.base.errors import ConfigError

Edit = Callable[[dict[str, Any]], object]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """A file with a recipe of Marin 8B's at a scale, edited; its path."""

    def write_recipe(edit: Edit = dict, scale: Any = "full") -> str:
        raw = load_recipe("marin-8b", scale).model_dump(mode="json")
        raw["name"] = "mine"
        edit(raw)
        (tmp_path / "mine.json").write_text(json.dumps(raw))
        return str(tmp_path / "mine.json")

    return write_recipe


def renamed(recipe: Recipe) -> Recipe:
    return recipe.but(name="mine")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", ["proxy", "full"])
def test_every_recipe_is_there_at_both_scales(name: str, scale: Any):
    recipe = load_recipe(name, scale)
    assert (recipe.name, recipe.scale) == (name, scale)
    assert Recipe.model_validate(recipe.model_dump(mode="json")) == recipe
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe


def test_a_recipe_from_a_file_is_that_recipe(write: Callable[..., str]):
    path = write()
    assert load_recipe(path, "full") == renamed(load_recipe("marin-8b", "full"))
    proxy = load_recipe("marin-8b", "proxy")
    assert proxy.tokenizer.special_tokens, "those of the chat templates of its branches, which the file does not have"
    assert load_recipe(path, "proxy") == renamed(proxy.but(tokenizer=proxy.tokenizer.but(special_tokens=())))
    recipe, phase = load_target(f"{path}/kestrel", "full")
    assert phase == recipe.phase("kestrel")


def test_a_recipe_at_proxy_scale_has_no_full_scale(write: Callable[..., str]):
    path = write(scale="proxy")
    assert load_recipe(path, "proxy") == renamed(load_recipe("marin-8b", "proxy"))
    with pytest.raises(ConfigError, match=r"mine\.json is written at proxy scale: it has no full scale"):
        load_recipe(path, "full")


def first(raw: dict[str, Any]) -> dict[str, Any]:
    return raw["phases"][0]


def make_short(raw: dict[str, Any]) -> None:
    """Phases of 300 steps, which proxy scale would round to none."""
    raw["phases"] = [first(raw)]
    rates = [{"kind": "constant", "start_step": 0, "end_step": 300, "start": 1e-3, "end": 1e-3}]
    first(raw).update(stop_step=300, learning_rate=rates)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda raw: first(raw).update(stop_stpe=7), "kestrel.stop_stpe: there is no such field"),
        (lambda raw: first(raw).pop("optimizer"), "kestrel.optimizer: expected a value, found none"),
        (lambda raw: first(raw)["mixture"][0][1].update(flan=3), r"kestrel: the mixture from step 0 must sum to 100 %, found 103.00 %"),
        (lambda raw: first(raw).update(stop_step="soon"), "kestrel.stop_step: expected a whole number, found .soon."),
        (lambda raw: first(raw)["optimizer"].update(beta1=2), r"kestrel.optimizer.adamw.beta1: expected less than 1, found 2"),
        (
            lambda raw: raw["phases"][1]["start"].update(declares=[]),
            "recipe: the hand-off kestrel → ocelot makes changes that it does",
        ),
        (lambda raw: raw["tokenizer"].update(vocab_size=128_257), "must have a row for each of the tokenizer's 128,257 tokens, found a"),
        (
            lambda raw: raw["tokenizer"].update(components=["flan"]),
            "tokenizer: components are what a tokenizer is trained on, and meta-llama",
        ),
        (
            lambda raw: raw["sources"].update(flan={"url": "/x", "include": ["*.md"], "format": "markdown", "text_key": "body"}),
            "the source of flan names the text_key 'body', and a file of the format markdown has no keys",
        ),
        (
            lambda raw: first(raw)["checkpoints"].update(at_steps=[660_001]),
            r"cannot keep the checkpoint of step 660001 \(checkpoints.at_steps\): it has those of steps 1 to 660000",
        ),
        (
            lambda raw: raw["phases"][1]["start"].update(fresh=["ema", "ema"]),
            "the hand-off to ocelot declares twice where its ema comes from: make it fresh, or graft it once",
        ),
        (lambda raw: raw.update(phases=[]), "phases: expected at least 1, found 0"),
        (lambda raw: [phase.update(x=1) for phase in raw["phases"]], r"kestrel.x: .*; phoenix.x: .*; deeper-starling.x: "),
    ],
)
def test_a_mistake_is_named_by_its_field(write: Callable[..., str], edit: Edit, said: str):
    path = write(edit)
    with pytest.raises(ConfigError, match=said) as refusal:
        load_recipe(path, "full")
    assert str(refusal.value).startswith(f"{path} is not a recipe: ")
    assert "\n" not in str(refusal.value)


def test_a_recipe_that_is_too_short_for_proxy_scale_is_refused(write: Callable[..., str]):
    path = write(make_short)
    assert load_recipe(path, "full").phases[0].stop_step == 300
    with pytest.raises(
        ConfigError, match=r"mine\.json has no proxy scale: that has one step for 1,000, and phase kestrel is 300 steps long."
    ):
        load_recipe(path, "proxy")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "is not JSON"),
        (b"", "is not JSON"),
        (b"[1]", "is not a recipe: recipe: "),
        (b"\xff\xfe", "is not JSON"),
        (None, "no such file"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused(tmp_path: Path, content: bytes | None, said: str):
    path = tmp_path / "mine.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=said) as refusal:
        load_recipe(str(path), "proxy")
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_folder_is_no_recipe(tmp_path: Path):
    (tmp_path / "mine.json").mkdir()
    with pytest.raises(ConfigError, match=r"mine\.json"):
        load_recipe(str(tmp_path / "mine.json"), "proxy")


@pytest.mark.parametrize("name", ["marin-8B", "marin", ""])
def test_an_unknown_name_is_refused_with_those_there_are(name: str):
    with pytest.raises(ConfigError, match=f"no recipe is called '{name}'; there are {', '.join(NAMES)}, and any recipe in a .py or .json"):
        load_recipe(name, "proxy")


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        ("marin-8b", ("marin-8b", None)),
        ("marin-8b/kestrel", ("marin-8b", "kestrel")),
        ("marin-8b/", ("marin-8b", None)),
        ("a/b/mine.json", ("a/b/mine.json", None)),
        ("a/b/mine.json/kestrel", ("a/b/mine.json", "kestrel")),
        ("/a.json/mine.json/kestrel", ("/a.json/mine.json", "kestrel")),
        ("./mine.json/", ("./mine.json", None)),
    ],
)
def test_a_target_is_a_recipe_and_maybe_a_phase(target: str, parts: tuple[str, str | None]):
    assert split_target(target) == parts


def test_a_target_is_loaded():
    recipe, phase = load_target("marin-8b", "proxy")
    assert (recipe, phase) == (load_recipe("marin-8b", "proxy"), None)
    with pytest.raises(ConfigError, match="has no phase 'kestral'"):
        load_target("marin-8b/kestral", "proxy")
