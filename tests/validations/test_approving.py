from typing import Any

import pytest
from pydantic import ValidationError

from phasewise.flows.recipes import NAMES, load_recipe, load_record
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.recipes.scales import to_proxy
from phasewise.validations.expectations.waiver_rules import asked_of_suite
from phasewise.validations.limits import ApprovableCheck, AsksPeople

FLOOR = {"table": "benchmarks", "check": "expect_score_to_be_above_the_floor"}
EPOCHS = {"table": "mixture", "check": "expect_epochs_within_limit"}
SPIKES = {"table": "health", "check": "expect_spikes_within_limit"}


def listing(*approvable: dict[str, Any], **fields: Any) -> Recipe:
    return load_record("marin-8b", "full").but(approvable=approvable, **fields)


def test_the_recipes_of_the_record_put_nothing_to_people_and_cut_down_to_a_phase_keep_what_is_about_it():
    asked = {(recipe.approvable, recipe.warnings_ask_people) for recipe in (load_record(name, "full") for name in NAMES)}
    assert asked == {((), False)}
    recipe = load_record("marin-8b", "proxy").but(approvable=[{**SPIKES, "phases": ["kestrel"]}])
    assert [one.phases for one in recipe.approvable] == [("kestrel",)]
    assert load_recipe("marin-8b", "proxy").approvable == ()


def test_checks_of_model_training_and_mixture_may_be_listed_and_stay_at_every_scale():
    full = listing(FLOOR, EPOCHS, {**SPIKES, "phases": ["kestrel", "ocelot"]}, warnings_ask_people=True)
    for one in (to_proxy(full), full.with_branch(None)):
        assert (one.approvable, one.warnings_ask_people) == (full.approvable, True)
    kestrel, starling = full.asks_people_in(full.phase("kestrel")), full.asks_people_in(full.phase("starling"))
    assert [one.table for one in kestrel.approvable] == ["benchmarks", "mixture", "health"]
    assert [one.table for one in starling.approvable] == ["benchmarks", "mixture"]
    assert asked_of_suite(kestrel, "data") == AsksPeople(approvable=(ApprovableCheck.model_validate(EPOCHS),), on_warnings=True)


@pytest.mark.parametrize(("table", "check"), [
    ("leakage", "expect_leaked_items_within_limit"), ("leakage", "expect_column_pair_values_to_be_equal"),
    ("leaked_items", "expect_table_row_count_to_be_between"), ("caches", "expect_training_split"),
    ("differences", "expect_cache_to_be_fresh"), ("differences", "expect_cached_files_to_be_selected"),
    ("differences", "expect_shards_to_match_manifest"), ("differences", "expect_verified_cache_to_be_the_judged_one"),
    ("hand_off", "expect_changes_to_be_declared"), ("mixture", "expect_table_row_count_to_be_between"),
    ("mixture", "expect_something_to_read"),
])  # fmt: skip
def test_what_says_that_the_bytes_are_right_is_never_for_a_person_to_let_pass(table: str, check: str):
    said = f"names the check {check} of table {table}, and nobody may let it pass"
    with pytest.raises(ValidationError, match=rf"(?s){said}.*Those that a person may let pass are.*expect_epochs_within_limit \(mixture\)"):
        listing({"table": table, "check": check})


@pytest.mark.parametrize(("listed", "message"), [
    (({"table": "falls", "check": "expect_bananas"},), "which stops no phase of this recipe"),
    (({"table": "order", "check": "expect_order_to_mix"},), "Warnings are put to people by warnings_ask_people"),
    ((FLOOR, FLOOR), "more than once for the same phase"), ((FLOOR, {**FLOOR, "phases": ["kestrel"]}), "more than once for the same phase"),
])  # fmt: skip
def test_what_stops_nothing_and_the_same_twice_are_refused(listed: tuple[dict[str, Any], ...], message: str):
    with pytest.raises(ValidationError, match=message):
        listing(*listed)
