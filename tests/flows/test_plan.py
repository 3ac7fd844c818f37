"""From a recipe to sources and runs."""

from pathlib import Path
from typing import Any

import pytest

from flows.plan import build_run, check_slices, check_sources, data_plan, sources_of, stand_ins_of
from flows.recipes import load_recipe
from flows.recipes.catalogue import CATALOGUE
from flows.recipes.recipe import Recipe
from tasks.data.standins import RECORD_NAME
from tasks.home import Home
from trainer.config import RunConfig
from trainer.errors import ConfigError, DataError, TrainingError
from trainer.storage import write_json

FULL, PROXY = load_recipe("marin-8b", "full"), load_recipe("marin-8b", "proxy")
CACHES = {name: Path("tokens") / name for name in PROXY.components}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.open(str(tmp_path))


def finish(home: Home, phase: str) -> None:
    write_json(home.run("marin-8b-proxy", phase) / "result.json", {"params_digest": f"digest of {phase}"})


def test_the_first_phase_starts_from_nothing(home: Home):
    run = build_run(PROXY, PROXY.phase("kestrel"), home, CACHES)
    assert (run.start, run.start_step, run.stop_step, run.seed) == (None, 0, 660, 0)
    assert run.caches == {name: f"tokens/{name}" for name in ("dclm_baseline", "proofpile_2", "starcoderdata")}
    assert (run.output, run.verdict) == (
        str(home.run("marin-8b-proxy", "kestrel")),
        str(home.verdict("marin-8b-proxy", "kestrel", "data")),
    )


@pytest.mark.parametrize("phase", PROXY.phases[1:], ids=lambda phase: phase.name)
def test_a_phase_starts_from_its_parents_last_weights(home: Home, phase: Any):
    finish(home, phase.parent)
    run = build_run(PROXY, phase, home, CACHES)
    assert run.start
    assert run.start.checkpoint == str(home.run("marin-8b-proxy", phase.parent) / "checkpoints" / str(phase.start_step))
    assert run.start.params_digest == f"digest of {phase.parent}"
    assert run.start.fresh == phase.start.fresh
    assert run.start_step == phase.start_step
    assert (run.batch.root, run.mixture.root) == (PROXY.batch_of_lineage(phase).root, PROXY.mixture_of_lineage(phase).root)
    assert RunConfig.model_validate(run.model_dump(mode="json")) == run


def test_a_parent_that_is_not_trained_is_named(home: Home):
    with pytest.raises(TrainingError, match="phase ocelot starts from kestrel, which is not trained yet: run marin-8b first"):
        build_run(PROXY, PROXY.phase("ocelot"), home, CACHES)


def test_other_weights_of_the_parent_make_another_run(home: Home):
    digests: set[str] = set()
    for found in ("one", "another"):
        write_json(home.run("marin-8b-proxy", "kestrel") / "result.json", {"params_digest": found})
        digests.add(build_run(PROXY, PROXY.phase("ocelot"), home, CACHES).digest)
    assert len(digests) == 2


def test_another_seed_makes_another_run_of_every_phase(home: Home):
    raw = PROXY.model_dump(mode="json")
    raw["phases"][0]["start"]["seed"] = 7
    reseeded = Recipe.model_validate(raw)
    finish(home, "starling")
    assert build_run(reseeded, reseeded.phase("deeper-starling"), home, CACHES).seed == 7


def test_at_proxy_scale_sources_are_stand_ins_in_the_home(home: Home):
    sources = sources_of(PROXY, home)
    assert {name: source.url for name, source in sources.items()} == {name: (home.sources / name).as_uri() for name in PROXY.components}
    assert stand_ins_of(PROXY) == {name: CATALOGUE[name].stand_in for name in PROXY.components}


def test_at_full_scale_they_are_the_real_data_sets(home: Home):
    assert sources_of(FULL, home) == {name: CATALOGUE[name].source for name in FULL.components}
    assert stand_ins_of(FULL) == {}


def with_mixture(shares: dict[str, float]) -> Recipe:
    raw = PROXY.model_dump(mode="json")
    return Recipe.model_validate({**raw, "phases": [{**raw["phases"][0], "mixture": [[0, shares]]}]})


def test_a_component_that_nobody_knows_is_refused(home: Home):
    with pytest.raises(ConfigError, match=r"marin-8b draws from fineweb, webtext, which flows/recipes/catalogue\.py does not name"):
        check_sources(with_mixture({"webtext": 50, "fineweb": 25, "flan": 25}), home)


def test_a_component_without_files_is_refused_before_anything_starts(home: Home):
    """Stand-ins that are still to be collected have none yet, and that is no mistake; later a missing file is one."""
    recipe = with_mixture({"flan": 50, "all_math": 50})
    check_sources(recipe, home)
    assert list(home.root.iterdir()) == []
    for name in recipe.components:
        (home.sources / name).mkdir(parents=True)
    (home.sources / "flan" / "stand-in.jsonl").write_text("{}\n")
    write_json(home.sources / RECORD_NAME, {})
    for refuse in (check_sources, data_plan):
        with pytest.raises(DataError, match=r"no file under .*/all_math matches \*\.jsonl: a component needs at least one"):
            refuse(recipe, home)


def test_a_plan_has_every_component(home: Home):
    recipe = with_mixture({"flan": 50, "all_math": 50})
    for name in recipe.components:
        (home.sources / name).mkdir(parents=True)
        (home.sources / name / "stand-in.jsonl").write_text("{}\n")
    plan = data_plan(recipe, home)
    assert set(plan.components) == {"flan", "all_math"}
    assert not plan.is_built


def test_only_this_machine_can_be_trained_on():
    check_slices(PROXY, PROXY.phases)
    with pytest.raises(ConfigError, match=r"phase kestrel of marin-8b-full needs the slice 2x v5e-256, .* use --scale proxy"):
        check_slices(FULL, FULL.phases)
    with pytest.raises(ConfigError, match="phase starling of marin-8b-full needs the slice v4-2048"):
        check_slices(FULL, [FULL.phase("starling")])
