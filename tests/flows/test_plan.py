import json
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from click.testing import CliRunner

from experiments.survival.runs import tiny_recipe
from phasewise.flows.checks import check_declared, check_slices, check_sources
from phasewise.flows.cli.evaluate import evaluate_by
from phasewise.flows.cli.options import max_tokens_option, set_option
from phasewise.flows.cli.run import run_recipe
from phasewise.flows.evaluate_checkpoint import evaluate_checkpoint
from phasewise.flows.plan import budgets_of, build_run, check_enough, data_plan, needed_tokens, setups_of, sources_of, stand_ins_of
from phasewise.flows.recipes import load_recipe, load_record
from phasewise.flows.recipes.assignments import settings_in_force
from phasewise.flows.recipes.catalogue import CATALOGUE
from phasewise.flows.recipes.feasibility import check_conversations, check_mixtures
from phasewise.flows.recipes.recipe import Recipe, Tokenizer
from phasewise.flows.recipes.scales import proxy_phase
from phasewise.flows.recipes.words import from_scratch, llama, wsd
from phasewise.flows.train_phase import train_phase
from phasewise.tasks.data.listing import MARGIN, Budget
from phasewise.tasks.data.plan import DataPlan
from phasewise.tasks.data.source import Pin, Source
from phasewise.tasks.data.stand_ins import stand_in_source
from phasewise.tasks.evaluation.settings import BENCHMARKS_VARIABLE
from phasewise.tasks.home import Home
from phasewise.tasks.preflight.plan import Plan, spec_for, step_shape
from phasewise.tasks.preflight.slices import find_slice
from phasewise.trainer.base.errors import ConfigError, DataError, RecipeError, TrainingError
from phasewise.trainer.base.identity import write_sealed
from phasewise.trainer.config import RunConfig
from phasewise.trainer.data.manifest import FORMAT_VERSION, Manifest, write_manifest
from tests.trainer.token_caches import BEGIN, END, write_token_cache

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
    write_sealed(home.run("marin-8b-proxy", phase.parent) / "result.json", {"params_digest": f"digest of {phase.parent}"})
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


def test_every_step_of_every_phase_is_in_one_setup_of_each_slice() -> None:
    for name in ("marin-8b", "marin-32b"):
        for phase in load_recipe(name, "full").phases:
            covered = sorted(stretch for setup in setups_of([phase]) for stretch in setup.stretches)
            assert covered[0][0] == phase.start_step
            assert covered[-1][1] == phase.stop_step
            assert all(before[1] == after[0] for before, after in pairwise(covered))
    setups = setups_of([load_recipe("marin-32b", "full").phases[0]])
    shown = {(setup.slice, setup.step.batch_sequences): setup.stretches for setup in setups}
    assert shown[("4x v5p-512", 8192)] == ((0, 18_500),)
    assert shown[("3x v5p-512", 7680)] == ((18_500, 21_010),)
    assert shown[("v4-2048", 8192)][0][0] == 21_010


def test_phases_whose_steps_are_equal_share_a_compilation() -> None:
    recipe, where = load_recipe("marin-8b", "full"), find_slice("v4-2048")
    shapes = {phase.name: step_shape(phase, 3072) for phase in recipe.phases}
    assert shapes["ocelot"] == shapes["jellyfish"] == shapes["phoenix"]
    assert shapes["ocelot"].keeps_average
    assert not shapes["kestrel"].keeps_average
    specs = {name: spec_for(shape, where, Plan(remat="full")).model_dump_json() for name, shape in shapes.items()}
    assert specs["ocelot"] == specs["jellyfish"] != specs["kestrel"]


SMALL = load_recipe("marin-8b", "130m")
KESTREL = SMALL.phase("kestrel")


def test_what_is_drawn_is_what_a_phase_and_its_lineage_train_on():
    last = SMALL.phases[-1]
    assert sum(needed_tokens(SMALL).values()) == SMALL.tokens_before(last, last.stop_step)
    assert sum(needed_tokens(SMALL).values()) == pytest.approx(20 * 130e6, rel=0.01)
    phases = [phase for phase in SMALL.phases if "dclm_baseline" in phase.components]
    needs = [needed_tokens(SMALL, [phase])["dclm_baseline"] for phase in phases]
    assert needs == sorted(needs)
    assert needs[-1] == needed_tokens(SMALL)["dclm_baseline"]


def test_scales_between_have_a_budget_and_others_only_if_asked():
    needs = needed_tokens(SMALL)
    assert budgets_of(SMALL) == {name: round(MARGIN * needs[name]) for name in SMALL.components}
    for scale in ("proxy", "full"):
        recipe = load_recipe("marin-8b", scale)
        assert budgets_of(recipe) == {}
        assert sum(budgets_of(recipe.but(max_tokens=10**9)).values()) == pytest.approx(10**9, rel=1e-3)
        assert set(budgets_of(recipe.but(max_tokens=1)).values()) == {1}, "every component has a budget"


def test_the_option_is_a_setting():
    import click

    found: list[tuple[str, ...]] = []

    @click.command()
    @set_option
    @max_tokens_option
    def command() -> None:
        found.append(settings_in_force())

    assert CliRunner().invoke(command, ["--max-tokens", "5000", "--set", "recipe.name=mine"]).exit_code == 0
    assert sorted(found[0]) == ["recipe.max_tokens=5000", "recipe.name=mine"]
    assert CliRunner().invoke(command, ["--max-tokens", "0"]).exit_code == 2


def plan(folder: Path, tokens: int, *, budget: bool = True) -> DataPlan:
    manifest = Manifest(
        format_version=FORMAT_VERSION, component="any", split="train", key="0" * 64, source={}, sources=(), reader="r", normalizer="n",
        encoder="e", tokenizer_digest="t", begin_of_text=0, end_of_text=1, dtype="uint16", shards=(), documents=1, tokens=tokens,
        text_bytes=1, left_out={},
    )  # fmt: skip
    folder.mkdir(exist_ok=True)
    write_manifest(folder, manifest)
    chosen = Budget(tokens=10, files=2, of_files=9, bytes=10**9, of_bytes=9 * 10**9, part_bytes=1) if budget else None
    component = SimpleNamespace(listing=SimpleNamespace(budget=chosen), train=SimpleNamespace(folder=folder, is_built=True, pin=None))
    return cast(DataPlan, SimpleNamespace(components=dict.fromkeys(SMALL.components, component)))


def test_too_little_is_refused_by_name_unless_a_component_was_read_whole(tmp_path: Path):
    most = max(needed_tokens(SMALL, [KESTREL]).values())
    check_enough(SMALL, plan(tmp_path, most), [KESTREL])
    with pytest.raises(DataError) as refusal:
        check_enough(SMALL, plan(tmp_path, most - 1), [KESTREL])
    said = str(refusal.value)
    assert said.startswith(
        f"less was read than is trained on: dclm_baseline has {most - 1:,} tokens to train on, from 2 of 9 files, 1.00 of 9"
    )
    assert f"and {most:,} are drawn" in said
    assert "proofpile_2" not in said
    enough = int(said.partition("--max-tokens ")[2].partition(",")[0])
    assert budgets_of(SMALL.but(max_tokens=enough))["dclm_baseline"] > most
    check_enough(SMALL, plan(tmp_path, 1, budget=False), [KESTREL])


@pytest.mark.parametrize(("documents", "enough"), [(32, True), (31, False)])
def test_of_packed_rows_the_rows_are_counted(tmp_path: Path, documents: int, enough: bool):
    model = llama(num_layers=2, d_model=64, seq_len=128)
    rates = wsd(stop_step=4, warmup=1, decay=0, peak=1e-3)
    phase = from_scratch(name="sft", stop_step=4, model=model, learning_rate=rates, batch=8, mixture={"web": 100}, packing="pad")
    recipe = Recipe(name="mine", tokenizer=Tokenizer(vocab_size=2048), phases=(phase,), max_tokens=1000)
    folder = write_token_cache(tmp_path / "web", [[np.array([BEGIN, 5, END], np.uint16)] * documents])
    component = plan(tmp_path / "other", 1).components["dclm_baseline"]
    component.train.folder = folder  # pyright: ignore[reportAttributeAccessIssue]  # made of plain names
    found = cast(DataPlan, SimpleNamespace(components={"web": component}))
    said = r"web has 31 rows of sft to train on, from 2 of 9 files, .* and 32 are drawn"
    with nullcontext() if enough else pytest.raises(DataError, match=said):
        check_enough(recipe, found, [phase])


NOT_NAMED = r"the gate of phase .* cannot judge it: the gate asks piqa:1: PHASEWISE_BENCHMARKS must name a folder with their items"
NO_EXAMPLES = r"the gate asks piqa:1, and .* lacks its files: no split for its 1 shots: no file piqa/train.jsonl"


def written(folder: Path, *benchmarks: str) -> str:
    recipe = tiny_recipe().model_dump(mode="json")
    recipe["phases"][0]["evaluation"]["benchmarks"] = benchmarks
    path = folder / "mine.json"
    path.write_text(json.dumps(recipe | {"name": "mine"}))
    return str(path)


@pytest.mark.parametrize(
    ("benchmarks", "said"),
    [
        (
            ("bananas",),
            r"benchmarks: nothing knows the benchmark 'bananas': expected .*, found none, did you mean .*\? Known are word_order",
        ),
        (("next_word", "piqa"), "expected the number of examples in the prompt after a colon, as in piqa:0"),
        (("next_word", "piqa:07"), "expected the number"),
        (("sciqq:0",), r"did you mean .*sciq"),
        (("truthfulqa_mc1:2",), "it has no split for examples, only truthfulqa_mc1:0 is possible"),
        (("wsc273:1",), "it has no split for examples, only wsc273:0 is possible"),
        (("humaneval:0",), "it runs programs that the model writes"),
        ((), "expected at least one benchmark, found none"),
        (("niah:128",), "expected at least one benchmark in addition to needles, found none"),
        (("next_word", "niah"), "'niah': expected the tokens of its text after a colon, 64 or more, as in niah:4096"),
        (("next_word", "niah:8"), "'niah:8': expected the tokens"),
        (("next_word", "niah_written:0128"), "expected the tokens"),
        (("next_word", "niah:100000"), r"cannot measure niah:100000 .* its rows have \d+ tokens, and the needle would be cut off"),
        (("next_word", "next_word"), "must be named once, found next_word, next_word"),
    ],
)
def test_names_are_refused_on_load(tmp_path: Path, benchmarks: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_recipe(written(tmp_path, *benchmarks), "proxy")


def test_a_benchmark_whose_items_are_not_here_is_refused_before_work_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, home = written(tmp_path, "next_word", "piqa:1"), tmp_path / "home"
    phase = load_recipe(target, "proxy").phases[0].name
    folder = tmp_path / "benchmarks"
    (folder / "piqa").mkdir(parents=True)
    (folder / "piqa/validation.jsonl").write_text('{"goal": "To sleep", "sol1": "lie down", "sol2": "run", "label": 0}\n')
    for named, said in (("", NOT_NAMED), (str(folder), NO_EXAMPLES)):
        monkeypatch.setenv(BENCHMARKS_VARIABLE, named)
        with pytest.raises(ConfigError, match=said):
            run_recipe(target, "proxy", str(home), as_json=True)
        with pytest.raises(ConfigError, match=said):
            evaluate_by(f"{target}/{phase}", "proxy", str(home), {})
        for flow in (train_phase, evaluate_checkpoint):
            with pytest.raises(ConfigError, match=said):
                flow.fn(target, phase, "proxy", str(home))
    assert not list(home.rglob("*.jsonl"))
    (folder / "piqa/train.jsonl").write_bytes((folder / "piqa/validation.jsonl").read_bytes())
    recipe = load_recipe(target, "proxy")
    check_declared(recipe, recipe.phases)


def test_the_record_names_lm_evals_and_its_proxy_those_that_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    full, proxy = load_record("marin-8b", "full"), load_record("marin-8b", "proxy")
    assert {"piqa:10", "mmlu:5"} <= {name for phase in full.phases for name in phase.evaluation.benchmarks}
    assert {phase.evaluation.benchmarks for phase in proxy.phases} == {("word_order", "next_word")}
    check_declared(proxy, proxy.phases)
    monkeypatch.delenv(BENCHMARKS_VARIABLE, raising=False)
    with pytest.raises(ConfigError, match="piqa:10"):
        check_declared(full, full.phases)


def test_no_proxy_is_asked_to_find_needles_and_who_asks_must_hide_some() -> None:
    phase = load_record("trinity-nano", "full").phase("context-extension")
    asks = phase.gates.but(model=phase.gates.model.but(needle_error_rate=0.01))
    assert proxy_phase(phase.but(gates=asks)).gates.model.needle_error_rate is None
    with pytest.raises(ValueError, match=r"phase phase-2 limits errors on needles .* without a needle: add one to evaluation.benchmarks"):
        load_record("trinity-nano", "full").phase("phase-2").but(gates=asks)
