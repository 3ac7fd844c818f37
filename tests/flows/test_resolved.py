"""The same names are the same value within a command, and only there."""

from pathlib import Path

import pytest

from phasewise.flows import resolved as module
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.resolved import resolve, resolve_phase, resolving_once
from phasewise.tasks.home import Home
from phasewise.trainer.base.identity import write_sealed
from phasewise.trainer.base.storage import read_json, write_json


def write_sources(home: Home, recipe: Recipe) -> None:
    for name in recipe.components:
        write_json(home.sources / name / "made.jsonl", {"text": name})


def test_the_same_names_resolve_once(recipe: str, tmp_path: Path):
    home = str(tmp_path / "home")
    with resolving_once():
        first, _ = resolve(recipe, "proxy", home)
        with resolving_once():
            again, phase = resolve(f"{recipe}/ocelot", "proxy", f"file://{home}")
        assert first is again is resolve_phase(recipe, "kestrel", "proxy", home)[0]
        assert phase is first.recipe.phase("ocelot")
    assert resolve(recipe, "proxy", home)[0] is not first
    assert not Path(home).exists()


def test_a_branch_is_another_value_and_its_ancestors_are_found_in_it(tmp_path: Path):
    with resolving_once():
        branch, sft = resolve("marin-8b/sft", "proxy", str(tmp_path))
        assert branch.name == "marin-8b/sft"
        assert branch.recipe_name == "marin-8b"
        assert sft
        assert resolve_phase("marin-8b/sft", "kestrel", "proxy", str(tmp_path))[0] is branch
        main, _ = resolve("marin-8b/kestrel", "proxy", str(tmp_path))
        assert main.name == "marin-8b"
        assert resolve_phase("marin-8b", "sft", "proxy", str(tmp_path))[0] is branch
        assert branch.full
        assert branch.full.phase("sft").stop_step > sft.stop_step


def test_a_plan_is_made_once_until_sources_are_written(recipe: str, tmp_path: Path):
    resolved, _ = resolve(recipe, "proxy", str(tmp_path))
    write_sources(resolved.home, resolved.recipe)
    plan = resolved.plan
    write_json(resolved.home.sources / "flan" / "more.jsonl", {"text": "more"})
    assert resolved.plan is plan
    resolved.look_again()
    assert resolved.plan.components["flan"].train.key != plan.components["flan"].train.key


def test_a_run_is_built_once_for_the_weights_that_it_starts_from(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    resolved, ocelot = resolve(f"{recipe}/ocelot", "proxy", str(tmp_path))
    assert ocelot
    write_sources(resolved.home, resolved.recipe)
    result = resolved.home.run("tiny-proxy", "kestrel") / "result.json"
    write_sealed(result, {"params_digest": "first"})
    first = resolved.run(ocelot)
    monkeypatch.setattr(module, "build_run", pytest.fail)
    assert resolved.run(ocelot) is first
    monkeypatch.undo()
    write_sealed(result, {"params_digest": "second"})
    second = resolved.run(ocelot)
    assert second.start
    assert second.start.params_digest == "second"


def test_what_is_done_while_a_store_is_held_is_seen_from_another_machine(
    recipe: str, gcs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PHASEWISE_SCRATCH", str(tmp_path / "one"))
    resolved, _ = resolve(recipe, "proxy", str(gcs))
    with resolved.held("this test"):
        write_json(resolved.home.verdict(resolved.recipe.run_name, "kestrel", "data"), {"passes": True})
    monkeypatch.setenv("PHASEWISE_SCRATCH", str(tmp_path / "other"))
    seen, _ = resolve(recipe, "proxy", str(gcs), reads_only=True)
    assert read_json(seen.home.verdict(resolved.recipe.run_name, "kestrel", "data")) == {"passes": True}
