from pathlib import Path
from typing import Any

import pytest

from phasewise.flows.checks import check_slices, check_sources
from phasewise.flows.plan import build_run, data_plan, sources_of, stand_ins_of
from phasewise.flows.recipes import load_recipe, load_record
from phasewise.flows.recipes.catalogue import CATALOGUE
from phasewise.flows.recipes.feasibility import check_conversations, check_mixtures
from phasewise.flows.recipes.recipe import Recipe
from phasewise.tasks.data.source import Pin, Source
from phasewise.tasks.data.stand_ins import stand_in_source
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import ConfigError, DataError, RecipeError, TrainingError
from phasewise.trainer.base.storage import write_json
from phasewise.trainer.config import RunConfig

FULL, PROXY = load_recipe("marin-8b", "full"), load_recipe("marin-8b", "proxy")
CACHES = {name: Path("tokens") / name for name in PROXY.components}


def test_the_first_phase_starts_from_nothing_and_another_from_a_trained_parent(home: Home):
    run = build_run(PROXY, PROXY.phase("kestrel"), home, CACHES)
    assert (run.start, run.start_step, run.stop_step, run.seed) == (None, 0, 660, 0)
    assert run.caches == {name: f"tokens/{name}" for name in ("dclm_baseline", "proofpile_2", "starcoderdata")}
    assert (run.output, run.verdict) == (str(home.run("marin-8b-proxy", "kestrel")), str(home.verdict("marin-8b-proxy", "kestrel", "data")))
    with pytest.raises(TrainingError, match="phase ocelot starts from kestrel, which is not trained yet: run marin-8b first"):
        build_run(PROXY, PROXY.phase("ocelot"), home, CACHES)


def test_the_held_out_text_of_its_own_components_is_measured_while_a_phase_trains(home: Home):
    held_out = {name: Path("held-out") / name for name in PROXY.components}
    kestrel = PROXY.phase("kestrel")
    with_losses, without = (build_run(PROXY, kestrel, home, CACHES, held_out=caches) for caches in (held_out, None))
    assert with_losses.evaluation
    assert with_losses.evaluation.caches == {name: f"held-out/{name}" for name in kestrel.components}
    assert (with_losses.evaluation.every_steps, with_losses.evaluation.sequences) == (10, 1)
    assert without.evaluation is None
    assert with_losses.digest == without.digest  # it is watched otherwise, and trains the same


@pytest.mark.parametrize("phase", PROXY.phases[1:], ids=lambda phase: phase.name)
def test_a_phase_starts_from_its_parents_last_weights(home: Home, phase: Any):
    write_json(home.run("marin-8b-proxy", phase.parent) / "result.json", {"params_digest": f"digest of {phase.parent}"})
    run = build_run(PROXY, phase, home, CACHES)
    assert run.start
    assert run.start.checkpoint == str(home.run("marin-8b-proxy", phase.parent) / "checkpoints" / str(phase.start_step))
    assert run.start.params_digest == f"digest of {phase.parent}"
    assert run.start.fresh == phase.start.fresh
    assert run.start_step == phase.start_step
    assert (run.batch.root, run.mixture.root) == tuple(steps.root for steps in PROXY.schedules_of_lineage(phase))
    assert RunConfig.model_validate(run.model_dump(mode="json")) == run


def test_at_proxy_scale_sources_are_stand_ins_in_the_home(home: Home):
    sources = sources_of(PROXY, home)
    assert {name: source.url for name, source in sources.items()} == {name: (home.sources / name).as_uri() for name in PROXY.components}
    assert stand_ins_of(PROXY) == {name: CATALOGUE[name].stand_in for name in PROXY.components}


def with_mixture(shares: dict[str, float]) -> Recipe:
    raw = PROXY.model_dump(mode="json")
    return Recipe.model_validate({**raw, "phases": [{**raw["phases"][0], "mixture": [[0, shares]]}]})


@pytest.mark.parametrize("scale", ["proxy", "full"])
def test_a_source_of_the_recipes_own_is_taken_at_every_scale(home: Home, tmp_path: Path, scale: Any):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.jsonl").write_text('{"text": "mine"}\n')
    mine = Source(url=str(tmp_path / "mine"), include=("*.jsonl",), format="jsonl")
    raw = with_mixture({"webtext": 50, "flan": 25, "all_math": 25}).model_dump(mode="json")
    recipe = Recipe.model_validate({**raw, "scale": scale, "sources": {"webtext": mine, "flan": mine}})
    sources = sources_of(recipe, home)
    assert (sources["webtext"], sources["flan"]) == (mine, mine)
    assert set(sources) == set(recipe.components)
    assert set(stand_ins_of(recipe)) == ({"all_math"} if scale == "proxy" else set())
    stand_in, source = CATALOGUE["all_math"].stand_in, CATALOGUE["all_math"].source
    assert stand_in is not None
    assert sources["all_math"] == (stand_in_source(stand_in, home.sources / "all_math") if scale == "proxy" else source)


def test_pins_reach_the_plan(home: Home, tmp_path: Path):
    recipe = with_mixture({"flan": 50, "all_math": 50})
    for name in recipe.components:
        (home.sources / name).mkdir(parents=True)
        (home.sources / name / "stand-in.jsonl").write_text("{}\n")
    pin = Pin(component="flan", split="train", url=str(tmp_path / "pinned"), digest="0" * 64)
    plan = data_plan(recipe.but(pins=[pin]), home)
    assert plan.components["flan"].train.folder == tmp_path / "pinned"
    assert plan.components["flan"].train.key == data_plan(recipe, home).components["flan"].train.key
    assert plan.components["flan"].held_out.folder != tmp_path / "pinned"


def test_only_this_machine_can_be_trained_on():
    check_slices(PROXY, PROXY.phases)
    with pytest.raises(ConfigError, match=r"phase kestrel of marin-8b-full needs the slice 2x v5e-256, .* use --scale proxy"):
        check_slices(FULL, FULL.phases)
    with pytest.raises(ConfigError, match="phase starling of marin-8b-full needs the slice v4-2048"):
        check_slices(FULL, [FULL.phase("starling")])


def with_order(recipe: Recipe, **order: object) -> Recipe:
    raw = recipe.model_dump(mode="json")
    return Recipe.model_validate({**raw, "phases": [{**phase, "order": {**phase["order"], **order}} for phase in raw["phases"]]})


def test_mixtures_that_blocks_cannot_express_are_refused(home: Home):
    check_mixtures(FULL, FULL.phases)
    strict, coarse = with_order(PROXY, cut_blocks=False), with_order(PROXY, block_sequences=16)
    check_mixtures(strict, strict.phases[:2])
    with pytest.raises(
        ConfigError, match=r"the mixture from step 740 .* found 40 sequences in the block before it: start it at step 680 or 7"
    ):
        check_mixtures(strict, strict.phases)
    with pytest.raises(ConfigError, match=r"a block of 16 has none of proofpile_2 \(1\.34 %\): give it 6\.25 %, or take blocks of 75 seq"):
        check_mixtures(coarse, coarse.phases)
    uneven = with_order(with_mixture({"flan": 71.3, "all_math": 28.7}), block_sequences=10)
    with pytest.raises(ConfigError, match=r"1\.3 percentage points off where the recipe allows 1:"):
        check_mixtures(uneven, uneven.phases)


def conversing(tmp_path: Path, template: str | None) -> Recipe:
    how = {} if template is None else {"conversation": {"messages": "messages", "template": template}}
    source = Source.model_validate({"url": str(tmp_path), "include": ("*.jsonl",), "format": "jsonl", **how})
    return load_record("marin-8b", "proxy").but(sources={"smoltalk": source})


def test_answers_of_plain_text_or_of_a_template_that_does_not_mark_them_are_refused(home: Home, tmp_path: Path):
    recipe = load_record("marin-8b", "proxy")
    check_conversations(recipe, recipe.phases)
    plain = conversing(tmp_path, None)
    check_conversations(plain, [plain.phase("kestrel")])
    with pytest.raises(RecipeError, match=r"phase sft of marin-8b-proxy has loss_on answers.* and smoltalk is plain text: give each"):
        check_conversations(plain, [plain.phase("sft")])
    unmarked = conversing(tmp_path, "{% for message in messages %}{{ message.content }}{% endfor %}")
    with pytest.raises(RecipeError, match=r"the chat template of smoltalk does not mark answers: put \{% generation %\}"):
        check_conversations(unmarked, [unmarked.phase("sft")])
    failing = conversing(tmp_path, "{% for message in messages %}{{ message.contents }}{% endfor %}")
    (tmp_path / "a.jsonl").write_text("{}")
    with pytest.raises(DataError, match="at a test conversation: UndefinedError: 'dict object' has no attribute 'contents'"):
        check_sources(failing, home)
