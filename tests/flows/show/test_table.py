import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from phasewise.flows.recipes import load_record
from phasewise.flows.show.describe import state_here
from phasewise.flows.show.words import mixture_in_a_word
from phasewise.tasks.home import Home
from phasewise.trainer.base.identity import write_sealed
from tests.flows.commands import Run

Show = Callable[..., str]


@pytest.fixture
def show(phasewise: Run, monkeypatch: pytest.MonkeyPatch) -> Show:
    def run(*arguments: object, width: int = 120) -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        result = phasewise("show", *arguments)
        assert (result.exit_code, result.stderr) == (0, "")
        return result.stdout

    return run


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("recipe", ["marin-8b", "marin-32b"])
def test_the_table_fits_a_screen(show: Show, recipe: str, width: int):
    lines = show(recipe, "--scale", "full", width=width).splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("recipe", ["marin-8b", "marin-32b"])
def test_no_number_is_cut(show: Show, recipe: str, width: int):
    words = set(show(recipe, "--branches", "--scale", "full", width=width).replace(";", " ").replace(",\n", " ").split())
    for phase in load_record(recipe, "full").phases:
        sizes = {f"{size:,}" for _, size in phase.batch.within(phase.start_step, phase.stop_step)}
        assert {phase.name, f"{phase.start_step:,}", f"{phase.stop_step:,}", *sizes} <= words, phase.name
    assert not [word for word in words if word.endswith("…")]
    assert {"0.0017", "1.7e-05"} <= words or recipe == "marin-32b"


def verdict(passes: bool, limits: Any) -> dict[str, Any]:
    reasons = [] if passes else [{"what": "9 items of a benchmark are in it"}]
    return {"passes": passes, "thresholds": limits.model_dump(mode="json"), "reasons": reasons}


def test_it_says_what_this_home_has_found(show: Show, tmp_path: Path):
    recipe = load_record("marin-8b", "proxy")
    home = Home(tmp_path / "home")
    kestrel, ocelot = recipe.phase("kestrel"), recipe.phase("ocelot")
    for gate in ("data", "health", "model"):
        write_sealed(home.verdict("marin-8b-proxy", "kestrel", gate), verdict(True, getattr(kestrel.gates, gate)))
    write_sealed(home.verdict("marin-8b-proxy", "ocelot", "data"), verdict(False, ocelot.gates.data))
    write_sealed(home.verdict("marin-8b-proxy", "jellyfish", "data"), verdict(True, recipe.phase("jellyfish").gates.data))
    shown = json.loads(show("marin-8b", "--scale", "proxy", "--home", home.root, "--json"))
    states = {phase["name"]: phase["verdict"] for phase in shown["phases"]}
    assert states["kestrel"] == {"state": "done", "why": ""}
    assert states["ocelot"] == {"state": "refused", "why": "9 items of a benchmark are in it"}
    assert states["jellyfish"]["state"] == "not started"
    assert states["phoenix"]["state"] == "not started"
    assert "ocelot refused here: 9 items of a benchmark are in it" in show("marin-8b", "--scale", "proxy", "--home", home.root)
    assert json.loads(show("marin-8b", "--scale", "full", "--home", home.root, "--json"))["phases"][0]["verdict"]["state"] == "not started"
    last = "These are the last verdicts."
    assert last in show("marin-8b", "--home", home.root)
    assert last not in show("marin-8b", "--scale", "full", "--home", home.root)


def test_a_verdict_within_other_limits_or_on_another_run_does_not_pass(tmp_path: Path):
    recipe, home = load_record("marin-8b", "proxy"), Home(tmp_path / "home")
    kestrel = recipe.phase("kestrel")
    for gate in ("data", "health", "model"):
        write_sealed(home.verdict("marin-8b-proxy", "kestrel", gate), verdict(True, getattr(kestrel.gates, gate)))
    run = {name: part for name, part in kestrel.model_dump(mode="json").items() if name != "start"} | {"start_step": 0}
    write_sealed(home.run("marin-8b-proxy", "kestrel") / "run.json", run)
    assert state_here(recipe, kestrel, home)["state"] == "done"
    write_sealed(home.run("marin-8b-proxy", "kestrel") / "run.json", run | {"stop_step": 659})
    assert "stop_step" in state_here(recipe, kestrel, home)["why"]
    write_sealed(home.run("marin-8b-proxy", "kestrel") / "run.json", run)
    loose = verdict(True, kestrel.gates.model) | {"thresholds": {}}
    write_sealed(home.verdict("marin-8b-proxy", "kestrel", "model"), loose)
    assert state_here(recipe, kestrel, home) == {"state": "outdated", "why": "its verdict on model has other limits"}


def test_nothing_is_made_in_a_home_that_is_not_there(show: Show, tmp_path: Path):
    show("marin-8b", "--scale", "proxy", "--home", tmp_path / "none")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        ([{"wiki_en": 60.0, "code": 40.0}], "wiki 60 %"),
        ([{"wiki_en": 30.0, "wiki_de": 30.0, "code": 40.0}, {"wiki_en": 80.0, "code": 20.0}], "wiki 60 → 80 %"),
        ([{"wiki": 60.0, "code": 40.0}, {"wiki": 60.2, "code": 39.8}, {"code": 90.0, "wiki": 10.0}], "wiki 60 % → code 90 %"),
    ],
)
def test_a_mixture_is_named_by_its_largest_family_in_each_stage(stages: list[dict[str, float]], words: str):
    assert mixture_in_a_word([[step, mixture] for step, mixture in enumerate(stages)]) == words
