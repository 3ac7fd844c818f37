import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from phasewise.flows.cli.show import print_description
from phasewise.flows.recipes import NAMES, load_recipe, load_record
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.show.describe import describe
from phasewise.validations.limits import AcceptedWarning, accepted_in

ORDER: dict[str, Any] = {
    "table": "order", "check": "expect_order_to_mix", "where": {"permutation": "linear"}, "phases": None,
    "reason": "the record's order", "source": "its code",
}  # fmt: skip


def with_accepts(*accepts: dict[str, Any]) -> Recipe:
    return load_recipe("marin-8b", "proxy").but(accepts=accepts)


def of_table(recipe: Recipe, phase: str, table: str) -> list[AcceptedWarning]:
    return [one for one in accepted_in(phase, recipe.accepts) if one.table == table]


@pytest.mark.parametrize("scale", ["proxy", "full"])
@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("marin-")])
def test_each_phase_of_the_record_accepts_its_own_order_and_no_other(name: str, scale: Any):
    recipe = load_record(name, scale)
    for phase in recipe.phases:
        if phase.name in ("bison-clean", "bison-clean-feistel"):
            assert not of_table(recipe, phase.name, "order")
            continue
        (order,) = of_table(recipe, phase.name, "order")
        assert order.where == {"permutation": phase.order.permutation}, phase.name
        assert "Shuffling: Linear vs. Feistel" in order.source


@pytest.mark.parametrize("name", NAMES)
def test_what_cannot_be_judged_is_accepted_only_where_the_recipe_has_nothing_to_judge(name: str):
    recipe = load_record(name, "full")
    for phase in recipe.phases:
        averages = [decay for _, decay in phase.stability.ema_decay.within(phase.start_step, phase.stop_step)]
        falls = any(segment.end < segment.start for segment in phase.learning_rate)
        is_limited = phase.gates.health.max_ema_gap is not None
        expected = {"ema_gap": is_limited and averages == [None] * len(averages), "loss_rise_at_falling_learning_rate": not falls}
        accepted = {one.where["measure"] for one in of_table(recipe, phase.name, "health")}
        assert accepted == {measure for measure, is_expected in expected.items() if is_expected}, phase.name


def test_all_scales_and_branches_keep_what_is_accepted():
    full = load_record("marin-32b", "full")
    assert load_record("marin-32b", "proxy").accepts == full.accepts
    main_line, with_muon = load_recipe("marin-32b", "proxy"), load_recipe("marin-32b/muon", "proxy")
    for recipe in (main_line, with_muon):
        names = {phase.name for phase in recipe.phases}
        assert {name for one in recipe.accepts for name in one.phases or ()} <= names
        assert all(accepted_in(name, recipe.accepts)[0].where == {"permutation": "linear"} for name in names - {"mantis"})
    assert "muon" in (with_muon.accepts[0].phases or ())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"table": "leakage", "check": "expect_leaked_items_within_limit", "where": {"component": "flan"}}, "stops a phase"),
        ({"table": "shifts", "check": "expect_no_predicted_phase_shift", "where": {"component": "flan"}}, "stops a phase"),
        ({"check": "expect_order_to_mixx"}, "which no phase is judged by; those whose warnings can be accepted are"),
        ({"where": {"permutaton": "linear"}}, "has to name permutation, and may name component and measure; found permutaton"),
        ({"where": {}}, "where"),
        ({"reason": ""}, "reason"),
        ({"because": "x"}, "because"),
    ],
)
def test_what_nobody_may_accept_is_refused_when_the_recipe_is_made(changes: dict[str, Any], message: str):
    assert with_accepts(ORDER).accepts == (AcceptedWarning.model_validate(ORDER),)
    with pytest.raises(ValidationError, match=message):
        with_accepts({**ORDER, **changes})


def test_the_same_is_accepted_once():
    in_kestrel, in_ocelot = ({**ORDER, "phases": [phase]} for phase in ("kestrel", "ocelot"))
    assert len(with_accepts(in_kestrel, in_ocelot).accepts) == 2
    for twice in ([ORDER, in_kestrel], [in_kestrel, {**in_kestrel, "reason": "another"}]):
        with pytest.raises(ValidationError, match="where permutation = linear more than once for the same phase"):
            with_accepts(*twice)


def test_show_prints_what_is_accepted_and_why(capsys: pytest.CaptureFixture[str]):
    described = describe("marin-32b/mantis", "proxy", None)
    assert [one["where"] for one in described["accepts"]] == [{"permutation": "feistel_levanter"}]
    assert described["accepts"][0]["phases"] == ["mantis"]
    assert json.loads(json.dumps(described)) == described
    print_description(described)
    shown = " ".join(capsys.readouterr().out.split())
    assert "expect_order_to_mix where permutation = feistel_levanter, in mantis" in shown
    assert "Shuffling: Linear vs. Feistel" in shown
    everything = describe("marin-8b", "full", 1000)["accepts"]
    assert [one["phases"] is None for one in everything] == [True, False, False]


def test_docs_show_an_entry_that_reads():
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "change-a-recipe.md").read_text()
    (example,) = re.findall(r'```json\n"accepts": (\[.*?\])\n```', page, re.DOTALL)
    assert with_accepts(*json.loads(example)).accepts
