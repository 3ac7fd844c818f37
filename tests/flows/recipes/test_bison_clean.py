"""The two branches of Marin 32B that ask what Bison's order does to sorted data: what they share with Bison, and what they don't."""

import pytest

from phasewise.flows.recipes import load_record
from phasewise.flows.recipes.catalogue import CATALOGUE
from phasewise.flows.recipes.phase import HandOff, Phase
from phasewise.tasks.data.stand_ins import collect

FULL = load_record("marin-32b", "full")
BISON, LINEAR, FEISTEL = (FULL.phase(name) for name in ("bison", "bison-clean", "bison-clean-feistel"))
SORTED, LEAKED = "megamath_web_by_folder", "all_math_9d507c"


def settings(phase: Phase, *without: str) -> dict[str, object]:
    dumped = phase.model_dump(mode="json", exclude={"name", "branch", "notes", "discrepancies", "start", *without})
    return {name: value for name, value in dumped.items() if value is not None}


def test_the_branches_differ_in_the_permutation_alone():
    assert settings(LINEAR, "order") == settings(FEISTEL, "order")
    assert LINEAR.start == FEISTEL.start
    assert FEISTEL.order == LINEAR.order.but(permutation="feistel")


def test_all_but_mixture_and_beginning_of_the_order_is_bison_s():
    assert settings(LINEAR, "mixture", "order") == settings(BISON, "mixture", "order")
    assert LINEAR.order == BISON.order.but(first_step=160_000)
    assert isinstance(LINEAR.start, HandOff)
    assert isinstance(BISON.start, HandOff)
    assert (LINEAR.start.parent, LINEAR.start.step) == (BISON.start.parent, BISON.start.step)
    assert set(LINEAR.start.declares) - set(BISON.start.declares) == {"order", "coverage"}


def test_the_leaked_bundle_is_gone_and_the_rest_keeps_its_ratios():
    was, now = BISON.mixture.at(160_000), LINEAR.mixture.at(160_000)
    assert set(now) == (set(was) - {LEAKED}) | {SORTED}
    assert now[SORTED] == pytest.approx(30)
    ratios = {now[name] / was[name] for name in set(was) - {LEAKED}}
    assert max(ratios) == pytest.approx(min(ratios))


def test_no_warning_of_their_order_is_accepted():
    orders = [one for one in FULL.accepts if one.table == "order"]
    assert orders
    assert not any(one.phases is None or {"bison-clean", "bison-clean-feistel"} & set(one.phases) for one in orders)


def test_the_stand_in_is_sorted_by_what_it_is_a_view_of():
    stand_in = CATALOGUE[SORTED].stand_in
    assert stand_in
    own = len(collect(stand_in.but(followed_by=())))
    kinds = ["Exercises on " in document["text"][:20] for document in collect(stand_in)]
    assert len(kinds) > own
    assert kinds == sorted(kinds)
    assert set(kinds) == {False, True}
