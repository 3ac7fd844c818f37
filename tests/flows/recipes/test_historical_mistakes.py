"""Every mistake of the record, with the values it was made with, is refused before work starts, in words that say what to do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from phasewise.flows.cli import main
from phasewise.flows.recipes import load_record, load_target
from phasewise.flows.recipes.feasibility import check_mixtures
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.resolved import resolve
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.data.mixture import block_counts

EIGHT_B, THIRTY_TWO_B = load_record("marin-8b", "full"), load_record("marin-32b", "full")
Edit = Callable[[dict[str, Any]], object]


def edited(recipe: Recipe, name: str, edit: Edit) -> Recipe:
    """The recipe with one phase as the record had it."""
    raw = recipe.model_dump(mode="json")
    edit(next(phase for phase in raw["phases"] if phase["name"] == name))
    return Recipe.model_validate(raw)


def refusal(recipe: Recipe, name: str, edit: Edit) -> str:
    """What is said of it, from the recipe or from its plan."""
    with pytest.raises((ValidationError, ConfigError)) as refused:
        plan(recipe, name, edit)
    return str(refused.value)


def plan(recipe: Recipe, name: str, edit: Edit) -> None:
    """What is done with a recipe before anything else."""
    changed = edited(recipe, name, edit)
    check_mixtures(changed, [changed.phase(name)])


def undeclared(change: str) -> Edit:
    return lambda phase: phase["start"]["declares"].remove(change)


def test_ocelots_learning_rate_jumps_17_fold():
    said = refusal(EIGHT_B, "ocelot", undeclared("learning_rate"))
    assert "the hand-off kestrel → ocelot makes a change that it does not declare" in said
    assert "learning_rate: 0.0001 → 0.0017, 17 times higher in one step. Name learning_rate in `declares`, or take it back" in said


def test_a_cooldown_that_never_cools():
    """Bison's first draft ended at 200,000 and kept 1,000,000 steps in its schedule: the decay of 20 % would begin at 800,000."""

    def forget(phase: dict[str, Any]) -> None:
        flat = {"kind": "constant", "start_step": 160_000, "end_step": 800_000, "start": 7e-4, "end": 7e-4}
        decay = {"kind": "linear", "start_step": 800_000, "end_step": 1_000_000, "start": 7e-4, "end": 7e-5}
        phase |= {"stop_step": 200_000, "learning_rate": [flat, decay]}

    said = refusal(THIRTY_TWO_B, "bison", forget)
    assert "the learning rate must have its last value at step 200000, where the phase stops" in said
    assert "found a linear segment from 0.0007 to 7e-05 in steps 800000 → 1000000, which never starts" in said
    assert "Was the number of steps changed, and not the schedule?" in said


def test_a_cooldown_that_is_cut_short():
    said = refusal(EIGHT_B, "starling", lambda phase: phase["learning_rate"][0].update(end_step=1_500_000))
    assert "found a linear segment from 0.0017 to 1.7e-05 in steps 1320000 → 1500000, which is not finished" in said


@pytest.mark.parametrize("phase", ["bison", "mantis"])
def test_the_7680s_leave_the_grid_of_blocks(phase: str):
    def undeclared_cut(raw: dict[str, Any]) -> None:
        raw["order"]["cut_blocks"] = False
        raw["start"]["declares"].append("order")

    alone = THIRTY_TWO_B.but(phases=[one for one in THIRTY_TWO_B.phases if one.name != "bison-flat"])
    assert refusal(alone, phase, undeclared_cut) == (
        "the mixture from step 160000 must start where a block of 2048 sequences ends, found 1024 sequences in the block before it: the "
        "batches of 7680 sequences in steps 18500 to 21010 put it out; end them at step 21008 or 21012, or let the recipe's order declare "
        "cut_blocks."
    )


@pytest.mark.parametrize("scale", ["full", "proxy"])
def test_dessert_v1_has_components_that_round_to_nothing(scale: Any, tmp_path: Path):
    """As it is in the record, which can be read; at proxy scale, too, whose own small blocks are padded."""
    assert load_target("marin-8b/dessert-v1", scale)[1]
    with pytest.raises(ConfigError) as refused:
        resolve("marin-8b/dessert-v1", scale, str(tmp_path))
    assert str(refused.value) == (
        "the mixture from step 820000 must have a sequence of every component in every block, and a block of 2048 has none of "
        "dolmino_codesearchnet (0.00168 %), dolmino_gsm8k (0.00258 %), dolmino_math_synth (0.0271 %): give each 0.0489 %, or take blocks "
        "of 59600 sequences."
    )


def floored(phase: dict[str, Any]) -> None:
    phase["order"]["rounding"] = "floor"
    if "order" not in phase["start"]["declares"]:
        phase["start"]["declares"] += ["order"]


def test_mantis_halves_its_science_questions():
    said = refusal(THIRTY_TWO_B, "mantis", floored)
    assert said == (
        "component medu_science_qa is 0.09372 % of the mixture from step 160000 and 0.04883 % of a block of 2048 sequences (1 of them), "
        "48 % of its share off where the recipe allows 25: a share of 0.04883 %, or rounding by largest_remainder, would do."
    )
    phase = THIRTY_TWO_B.phase("mantis")
    assert [block_counts(shares, phase.order)["medu_science_qa"] for _, shares in phase.mixture.root] == [2, 2]


@pytest.mark.parametrize("arm", ["microannealing-control", "microannealing-flan"])
def test_an_old_rope_checkpoint_in_a_model_of_llama3s(arm: str):
    said = refusal(EIGHT_B, arm, undeclared("rope"))
    assert f"the hand-off kestrel → {arm} makes a change that it does not declare. rope: theta 10000, scaling none → theta 500000" in said


def test_a_permutation_that_changes_in_the_middle_of_an_epoch():
    said = refusal(THIRTY_TWO_B, "mantis", undeclared("coverage"))
    assert "the hand-off qk-norm → mantis makes a change that it does not declare. coverage: each row once an epoch → rows of " in said
    assert "come again within their epoch, and others not at all. Name coverage in `declares`, or take it back" in said


def test_a_checkpoint_that_the_parent_never_had():
    def point_at_kestrel(phase: dict[str, Any]) -> None:
        phase["start"] |= {"parent": "kestrel", "step": 738_376}
        phase["learning_rate"][0]["start_step"] = 738_376

    said = refusal(EIGHT_B, "jellyfish", point_at_kestrel)
    assert "phase jellyfish starts from step 738376 of kestrel, a step it never has: it trains steps 0 → 660000; ocelot had it" in said


def test_a_checkpoint_that_the_parent_does_not_keep():
    said = refusal(THIRTY_TWO_B, "muon", lambda phase: phase["start"].update(step=77_097))
    assert "phase muon starts from step 77097 of phase-1, which keeps no checkpoint there: name it in its checkpoints.at_steps" in said


def test_the_terminal_says_it_in_one_line_before_anything_is_made(tmp_path: Path):
    refused = CliRunner().invoke(main.main, ["run", "marin-8b/dessert-v1", "--home", str(tmp_path / "home")])
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr.startswith("phasewise: the mixture from step 820000 must have a sequence of every component in every block")
    assert not (tmp_path / "home").exists()
