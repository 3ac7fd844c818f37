from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from phasewise.flows.recipes import load_record, load_target
from phasewise.flows.recipes.feasibility import check_mixtures
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.resolved import resolve
from phasewise.trainer.base.errors import ConfigError

EIGHT_B, THIRTY_TWO_B = load_record("marin-8b", "full"), load_record("marin-32b", "full")
Edit = Callable[[dict[str, Any]], object]


def refusal(recipe: Recipe, name: str, edit: Edit) -> str:
    raw = recipe.model_dump(mode="json")
    edit(next(phase for phase in raw["phases"] if phase["name"] == name))
    with pytest.raises((ValidationError, ConfigError)) as refused:
        check_mixtures(changed := Recipe.model_validate(raw), [changed.phase(name)])
    return str(refused.value)


def undeclared(change: str) -> Edit:
    return lambda phase: phase["start"]["declares"].remove(change)


def forget_the_schedule(phase: dict[str, Any]) -> None:
    flat = {"kind": "constant", "start_step": 160_000, "end_step": 800_000, "start": 7e-4, "end": 7e-4}
    decay = {"kind": "linear", "start_step": 800_000, "end_step": 1_000_000, "start": 7e-4, "end": 7e-5}
    phase |= {"stop_step": 200_000, "learning_rate": [flat, decay]}


def point_at_kestrel(phase: dict[str, Any]) -> None:
    phase["start"] |= {"parent": "kestrel", "step": 738_376}
    phase["learning_rate"][0]["start_step"] = 738_376


def floored(phase: dict[str, Any]) -> None:
    phase["order"]["rounding"] = "floor"
    phase["start"]["declares"] = sorted({*phase["start"]["declares"], "order"})


@pytest.mark.parametrize(
    ("recipe", "phase", "edit", "said"),
    [
        (EIGHT_B, "ocelot", undeclared("learning_rate"), (
            "the hand-off kestrel → ocelot makes a change that it does not declare",
            "learning_rate: 0.0001 → 0.0017, 17 times higher in one step. Name learning_rate in `declares`, or take it back",
        )),
        (THIRTY_TWO_B, "bison", forget_the_schedule, (
            "the learning rate must have its last value at step 200000, where the phase stops",
            "found a linear segment from 0.0007 to 7e-05 in steps 800000 → 1000000, which never starts",
            "Was the number of steps changed, and not the schedule?",
        )),
        (THIRTY_TWO_B, "mantis", floored, (
            "component medu_science_qa is 0.09372 % of the mixture from step 160000 and 0.04883 % of a block of 2048 sequences (1 of them)"
            ", 48 % of its share off where the recipe allows 25: a share of 0.04883 %, or rounding by largest_remainder, would do.",
        )),
        (THIRTY_TWO_B, "mantis", undeclared("coverage"), (
            "the hand-off qk-norm → mantis makes a change that it does not declare. coverage: each row once an epoch → rows of ",
            "come again within their epoch, and others not at all. Name coverage in `declares`, or take it back",
        )),
        (EIGHT_B, "jellyfish", point_at_kestrel, (
            "phase jellyfish starts from step 738376 of kestrel, a step it never has: it trains steps 0 → 660000. Step 738376 is in ocelot",
        )),
        (THIRTY_TWO_B, "muon", lambda phase: phase["start"].update(step=77_097), (
            "phase muon starts from step 77097 of phase-1, which keeps no checkpoint there: name it in its checkpoints.at_steps",
        )),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_mistake_is_refused(recipe: Recipe, phase: str, edit: Edit, said: tuple[str, ...]):
    found = refusal(recipe, phase, edit)
    assert all(words in found for words in said), found


@pytest.mark.parametrize("phase", ["bison", "mantis"])
def test_the_7680s_leave_the_grid_of_blocks(phase: str):
    def undeclared_cut(raw: dict[str, Any]) -> None:
        raw["order"]["cut_blocks"] = False
        raw["start"]["declares"].append("order")

    alone = THIRTY_TWO_B.but(phases=[one for one in THIRTY_TWO_B.phases if one.name != "bison-flat"])
    assert refusal(alone, phase, undeclared_cut) == (
        "the mixture from step 160000 must start where a block of 2048 sequences ends, found 1024 sequences in the block before it: let "
        "the recipe's order declare cut_blocks."
    )


@pytest.mark.parametrize("scale", ["full", "proxy"])
def test_dessert_v1_has_components_that_round_to_nothing(scale: Any, tmp_path: Path):
    assert load_target("marin-8b/dessert-v1", scale)[1], "the record is read as it is"
    with pytest.raises(ConfigError) as refused:
        resolve("marin-8b/dessert-v1", scale, str(tmp_path))
    assert str(refused.value) == (
        "the mixture from step 820000 must have a sequence of every component in every block, and a block of 2048 has none of "
        "dolmino_codesearchnet (0.00168 %), dolmino_gsm8k (0.00258 %), dolmino_math_synth (0.0271 %): give each 0.0489 %, or take blocks "
        "of 59600 sequences."
    )
