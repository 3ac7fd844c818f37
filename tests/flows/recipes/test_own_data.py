"""A recipe's own sources and pins: how people bring their data."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from phasewise.flows.cli.show import describe
from phasewise.flows.recipes import load_recipe
from phasewise.flows.recipes.scales import to_proxy
from phasewise.tasks.data.source import Pin, Source
from phasewise.trainer.base.errors import ConfigError

MINE = {"url": "gs://bucket/mine", "include": ["*.jsonl.gz"], "format": "jsonl", "text_key": "body"}
PINNED = {"component": "flan", "split": "train", "url": "gs://bucket/tokens/flan", "digest": "0" * 64}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """A file with Marin 8B at a scale, and these fields; its path."""

    def write_recipe(scale: Any = "full", **fields: Any) -> str:
        raw = load_recipe("marin-8b", scale).model_dump(mode="json")
        (tmp_path / "mine.json").write_text(json.dumps({**raw, "name": "mine", **fields}))
        return str(tmp_path / "mine.json")

    return write_recipe


def test_a_recipe_has_none_of_its_own():
    recipe = load_recipe("marin-8b", "full")
    assert (recipe.sources, recipe.pins) == ({}, ())
    raw = recipe.model_dump(mode="json", exclude={"sources", "pins"})
    assert type(recipe).model_validate(raw) == recipe


def test_sources_and_pins_come_from_the_file(write: Callable[..., str]):
    recipe = load_recipe(write(sources={"flan": MINE}, pins=[PINNED, {**PINNED, "split": "held_out"}]), "full")
    assert recipe.sources == {"flan": Source.model_validate(MINE)}
    assert recipe.pins == (Pin.model_validate(PINNED), Pin.model_validate({**PINNED, "split": "held_out"}))


def test_at_proxy_scale_sources_stay_and_pins_go(write: Callable[..., str]):
    """The proxy's tokenizer is another one: what is pinned at full scale is no cache of its."""
    path = write(sources={"flan": MINE}, pins=[PINNED])
    recipe = load_recipe(path, "proxy")
    assert recipe == to_proxy(load_recipe(path, "full"))
    assert (recipe.sources, recipe.pins) == ({"flan": Source.model_validate(MINE)}, ())
    assert recipe.phases == load_recipe("marin-8b", "proxy").phases


def test_a_recipe_written_at_proxy_scale_keeps_its_pins(write: Callable[..., str]):
    assert load_recipe(write("proxy", pins=[PINNED]), "proxy").pins == (Pin.model_validate(PINNED),)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"sources": {"flam": MINE}}, r"recipe: sources names flam, which no phase draws from; they draw from algebraic_stack, "),
        ({"sources": {"flan": {**MINE, "txt_key": "x"}}}, r"sources\.flan\.txt_key: there is no such field"),
        ({"sources": {"flan": {"url": "here"}}}, r"sources\.flan\.include: expected a value, found none"),
        ({"sources": {"flan": {**MINE, "revision": "abc"}}}, r"sources\.flan: a revision belongs to a Hugging Face data set"),
        ({"pins": [{**PINNED, "component": "flam"}]}, r"recipe: pins names flam, which no phase draws from"),
        ({"pins": [PINNED, {**PINNED, "url": "elsewhere"}]}, r"recipe: pins names the cache of flan \(train\) more than once"),
        ({"pins": [{**PINNED, "digest": "0" * 16}]}, r"pins\.0\.digest: expected a text like"),
        ({"pins": [{**PINNED, "digest": "G" * 64}]}, r"pins\.0\.digest: expected a text like"),
        ({"pins": [{**PINNED, "split": "test"}]}, r"pins\.0\.split: expected 'train' or 'held_out', found 'test'"),
        ({"pins": [{**PINNED, "url": ""}]}, r"pins\.0\.url: expected a text of at least 1 character"),
    ],
)
def test_a_mistake_is_named_by_its_field(write: Callable[..., str], fields: dict[str, Any], said: str):
    with pytest.raises(ConfigError, match=said):
        load_recipe(write(**fields), "full")


def test_show_has_them_where_they_are(write: Callable[..., str]):
    path = write(sources={"flan": MINE}, pins=[PINNED])
    shown = describe(path, "full", None)
    assert shown["sources"]["flan"]["url"] == "gs://bucket/mine"
    assert shown["pins"] == [PINNED]
    assert json.loads(json.dumps(shown)) == shown
    at_proxy_scale = describe(f"{path}/kestrel", "proxy", 0)
    assert set(at_proxy_scale["sources"]) == {"flan"}
    assert "pins" not in at_proxy_scale
    assert not {"sources", "pins"} & set(describe("marin-8b", "full", None))
