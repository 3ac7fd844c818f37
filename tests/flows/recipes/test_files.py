import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from phasewise.flows.recipes import load_recipe, load_target
from phasewise.flows.recipes.scales import to_proxy
from phasewise.flows.show.describe import describe
from phasewise.tasks.data.source import Pin, Source
from phasewise.trainer.base.errors import ConfigError

Edit = Callable[[dict[str, Any]], object]
Write = Callable[..., str]
MINE = {"url": "gs://bucket/mine", "include": ["*.jsonl.gz"], "format": "jsonl", "text_key": "body"}
PINNED = {"component": "flan", "split": "train", "url": "gs://bucket/tokens/flan", "digest": "0" * 64}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_recipe(edit: Edit = dict, scale: Any = "full", **fields: Any) -> str:
        raw = load_recipe("marin-8b", scale).model_dump(mode="json") | {"name": "mine", **fields}
        edit(raw)
        (tmp_path / "mine.json").write_text(json.dumps(raw))
        return str(tmp_path / "mine.json")

    return write_recipe


def test_a_recipe_from_a_file_is_that_recipe(write: Write):
    path = write()
    assert load_recipe(path, "full") == load_recipe("marin-8b", "full").but(name="mine")
    proxy = load_recipe("marin-8b", "proxy")
    assert proxy.tokenizer.special_tokens, "those of the chat templates of its branches, which the file does not have"
    assert load_recipe(path, "proxy") == proxy.but(name="mine", tokenizer=proxy.tokenizer.but(special_tokens=()))
    recipe, phase = load_target(f"{path}/kestrel", "full")
    assert phase == recipe.phase("kestrel")


def test_a_recipe_at_proxy_scale_has_no_full_scale_and_keeps_its_pins(write: Write):
    path = write(scale="proxy", pins=[PINNED])
    assert load_recipe(path, "proxy") == load_recipe("marin-8b", "proxy").but(name="mine", pins=[PINNED])
    with pytest.raises(ConfigError, match=r"mine\.json is written at proxy scale: it has no full scale"):
        load_recipe(path, "full")


def test_at_proxy_scale_sources_stay_and_pins_go(write: Write):
    path = write(sources={"flan": MINE}, pins=[PINNED, {**PINNED, "split": "held_out"}])
    full, proxy = load_recipe(path, "full"), load_recipe(path, "proxy")
    assert full.sources == proxy.sources == {"flan": Source.model_validate(MINE)}
    assert full.pins == (Pin.model_validate(PINNED), Pin.model_validate({**PINNED, "split": "held_out"}))
    assert proxy == to_proxy(full)
    assert (proxy.pins, proxy.phases) == ((), load_recipe("marin-8b", "proxy").phases)


def test_show_has_sources_and_pins_where_they_are(write: Write):
    path = write(sources={"flan": MINE}, pins=[PINNED])
    shown = describe(path, "full", None)
    assert (shown["sources"]["flan"]["url"], shown["pins"]) == ("gs://bucket/mine", [PINNED])
    assert json.loads(json.dumps(shown)) == shown
    assert {"sources", "pins"} & set(describe(f"{path}/kestrel", "proxy", 0)) == {"sources"}
    assert not {"sources", "pins"} & set(describe("marin-8b", "full", None))


def first(raw: dict[str, Any]) -> dict[str, Any]:
    return raw["phases"][0]


def of_source(name: str, **fields: Any) -> Edit:
    return lambda raw: raw["sources"].update({name: {**MINE, **fields}})


def of_pins(*changes: dict[str, Any]) -> Edit:
    return lambda raw: raw.update(pins=[{**PINNED, **change} for change in changes])


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda raw: first(raw).pop("optimizer"), "kestrel.optimizer: expected a value, found none"),
        (
            lambda raw: raw["tokenizer"].update(components=["flan"]),
            "tokenizer: components: only a tokenizer with name null is trained, found meta-llama",
        ),
        (lambda raw: first(raw)["checkpoints"].update(at_steps=[660_001]), "checkpoints.at_steps must be in 1 to 660000, found 660001"),
        (
            lambda raw: raw["phases"][1]["start"].update(fresh=["ema", "ema"]),
            "the hand-off to ocelot declares ema twice: make it fresh, or graft it once",
        ),
        (lambda raw: [phase.update(x=1) for phase in raw["phases"]], r"kestrel.x: .*; phoenix.x: .*; deeper-starling.x: "),
        (of_source("flan", format="markdown"), "the source of flan names the text_key 'body': a file of the format markdown"),
        (of_source("flam"), r"recipe: sources names flam: expected components of the phases \(algebraic_stack, "),
        (of_source("flan", revision="abc"), r"sources\.flan: a revision belongs to a Hugging Face data set"),
        (of_pins({"component": "flam"}), r"recipe: pins names flam: expected components of the phases"),
        (of_pins({}, {"url": "elsewhere"}), r"recipe: pins names the cache of flan \(train\) more than once"),
        (of_pins({"split": "test"}), r"pins\.0\.split: expected 'train' or 'held_out', found 'test'"),
    ],
)
def test_a_mistake_is_named_by_its_field(write: Write, edit: Edit, said: str):
    path = write(edit)
    with pytest.raises(ConfigError, match=said) as refusal:
        load_recipe(path, "full")
    assert str(refusal.value).startswith(f"{path} is not a recipe: ")
    assert "\n" not in str(refusal.value)


def test_a_recipe_that_is_too_short_for_proxy_scale_is_refused(write: Write):
    def make_short(raw: dict[str, Any]) -> None:
        raw["phases"] = [first(raw)]
        rates = [{"kind": "constant", "start_step": 0, "end_step": 300, "start": 1e-3, "end": 1e-3}]
        first(raw).update(stop_step=300, learning_rate=rates)

    path = write(make_short)
    assert load_recipe(path, "full").phases[0].stop_step == 300
    said = r"mine\.json has no proxy scale: that has one step for 1,000, and phase kestrel is 300 steps long."
    with pytest.raises(ConfigError, match=said):
        load_recipe(path, "proxy")


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"{", "is not JSON"), (b"[1]", "is not a recipe: recipe: "), (b"\xff\xfe", "is not JSON"), (None, "no such file")],
)
def test_a_file_that_is_no_recipe_is_refused(tmp_path: Path, content: bytes | None, said: str):
    path = tmp_path / "mine.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=said) as refusal:
        load_recipe(str(path), "proxy")
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_the_recipe_of_the_535b_run_switches_its_mixture_at_step_108():
    path = str(Path(__file__).parents[3] / "experiments/recipes/marin-hero.json")
    recipe = load_recipe(path, "proxy")
    before, after = recipe.phase("ragged"), recipe.phase("september")
    assert (before.stop_step, after.start_step) == (108, 108)
    assert before.mixture.at(107) != after.mixture.at(108)
    for name, start_step in (("ragged-trial", 54), ("ragged-trial-2", 82)):
        trial = load_target(f"{path}/{name}", "proxy")[1]
        assert trial
        assert (trial.abandoned, trial.branch, trial.start_step) == (True, True, start_step)
