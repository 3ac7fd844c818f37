from typing import Any

import pytest
from pydantic import ValidationError

from phasewise.flows.recipes import NAMES, load_recipe, load_record
from phasewise.flows.recipes.recipe import Recipe
from phasewise.validations.expectations.waiver_rules import asked_of_suite
from phasewise.validations.waivers import ApprovableCheck, AsksPeople

FLOOR = {"table": "benchmarks", "check": "expect_score_to_be_above_the_floor"}
EPOCHS = {"table": "mixture", "check": "expect_epochs_within_limit"}
SPIKES = {"table": "health", "check": "expect_spikes_within_limit"}


def listing(*approvable: dict[str, Any], **fields: Any) -> Recipe:
    return load_record("marin-8b", "full").but(approvable=approvable, **fields)


def test_the_recipes_of_the_record_put_nothing_to_people():
    for name in NAMES:
        recipe = load_record(name, "full")
        assert (recipe.approvable, recipe.warnings_ask_people) == ((), False)


def test_checks_of_model_training_and_mixture_may_be_listed_and_stay_at_every_scale():
    full = listing(FLOOR, EPOCHS, {**SPIKES, "phases": ["kestrel", "ocelot"]}, warnings_ask_people=True)
    from phasewise.flows.recipes.scales import to_proxy

    assert to_proxy(full).approvable == full.approvable
    assert to_proxy(full).warnings_ask_people
    assert full.with_branch(None).warnings_ask_people
    assert full.with_branch(None).approvable == full.approvable
    kestrel, starling = full.asks_people_in(full.phase("kestrel")), full.asks_people_in(full.phase("starling"))
    assert [one.table for one in kestrel.approvable] == ["benchmarks", "mixture", "health"]
    assert [one.table for one in starling.approvable] == ["benchmarks", "mixture"]
    assert asked_of_suite(kestrel, "data") == AsksPeople(approvable=(ApprovableCheck.model_validate(EPOCHS),), on_warnings=True)


@pytest.mark.parametrize(
    ("table", "check"),
    [
        ("leakage", "expect_leaked_items_within_limit"),
        ("leakage", "expect_column_pair_values_to_be_equal"),
        ("leaked_items", "expect_table_row_count_to_be_between"),
        ("caches", "expect_training_split"),
        ("differences", "expect_cache_to_be_fresh"),
        ("differences", "expect_cached_files_to_be_selected"),
        ("differences", "expect_shards_to_match_manifest"),
        ("differences", "expect_verified_cache_to_be_the_judged_one"),
        ("hand_off", "expect_changes_to_be_declared"),
        ("mixture", "expect_table_row_count_to_be_between"),
        ("mixture", "expect_something_to_read"),
    ],
)
def test_what_says_that_the_bytes_are_right_is_never_for_a_person_to_let_pass(table: str, check: str):
    with pytest.raises(
        ValidationError, match=f"approvable names the check {check} of table {table}, and nobody may let it pass"
    ) as refused:
        listing({"table": table, "check": check})
    assert "Those that a person may let pass are " in str(refused.value)
    assert "expect_epochs_within_limit (mixture)" in str(refused.value)


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        (({"table": "falls", "check": "expect_bananas"},), "which stops no phase of this recipe"),
        (({"table": "order", "check": "expect_order_to_mix"},), "Warnings are put to people by warnings_ask_people"),
        ((FLOOR, FLOOR), "more than once for the same phase"),
        ((FLOOR, {**FLOOR, "phases": ["kestrel"]}), "more than once for the same phase"),
    ],
)
def test_what_stops_nothing_and_the_same_twice_are_refused(listed: tuple[dict[str, Any], ...], message: str):
    with pytest.raises(ValidationError, match=message):
        listing(*listed)


def test_a_recipe_cut_down_to_a_phase_keeps_what_is_about_it():
    recipe = load_record("marin-8b", "proxy").but(approvable=[{**SPIKES, "phases": ["kestrel"]}])
    assert [one.phases for one in recipe.approvable] == [("kestrel",)]
    assert load_recipe("marin-8b", "proxy").approvable == ()
