from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from click.testing import CliRunner

from phasewise.flows.cli.options import max_tokens_option, set_option
from phasewise.flows.recipes import load_recipe
from phasewise.flows.recipes.assignments import settings_in_force
from phasewise.flows.recipes.recipe import Recipe, Tokenizer
from phasewise.flows.recipes.words import from_scratch, llama, wsd
from phasewise.flows.token_budget import budgets_of, check_enough, needed_tokens
from phasewise.tasks.data.listing import MARGIN, Budget
from phasewise.tasks.data.plan import DataPlan
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.data.manifest import FORMAT_VERSION, Manifest, write_manifest
from tests.trainer.token_caches import BEGIN, END, write_token_cache

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
