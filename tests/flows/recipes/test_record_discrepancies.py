"""Where the code as it was run and what was written of it differ: each of the 29 known rows is in a phase's `discrepancies`.

A row is found by its field and by a telling value on either side. What says nothing of a value of a recipe is listed with the reason.
"""

import json
import re
from typing import NamedTuple

import pytest

from phasewise.flows.show.describe import describe
from tests.flows.recipes.test_record_8b import RECORD, Described


class Row(NamedTuple):
    number: int
    recipe: str
    phases: tuple[str, ...]
    field: str
    code: str
    retrospective: str | None


ROWS = [Row(*row) for row in json.loads((RECORD / "discrepancies.json").read_text())]


@pytest.fixture(scope="module")
def phases() -> dict[tuple[str, str], Described]:
    return {(recipe, phase["name"]): phase for recipe in ("marin-8b", "marin-32b") for phase in describe(recipe, "full", None)["phases"]}


def names(discrepancy: dict[str, str], row: Row) -> bool:
    if not re.fullmatch(row.field, discrepancy["field"]):
        return False
    if row.retrospective is None:
        return "text" in discrepancy and bool(re.search(row.code, discrepancy["text"]))
    if "text" in discrepancy:
        return False
    return bool(re.search(row.code, discrepancy["code"]) and re.search(row.retrospective, discrepancy["retrospective"]))


@pytest.mark.parametrize(
    ("row", "name"),
    [pytest.param(row, name, id=f"{row.number}-{name}-{row.field}") for row in ROWS for name in row.phases],
)
def test_a_row_is_where_it_says_something(phases: dict[tuple[str, str], Described], row: Row, name: str):
    found = [*phases[row.recipe, name]["discrepancies"], *phases[row.recipe, name]["notes"]]
    matching = [discrepancy for discrepancy in found if names(discrepancy, row)]
    assert matching, f"row {row.number} ({row.field}: {row.code} / {row.retrospective}) is not among {found}"
    assert all(discrepancy["source"] for discrepancy in matching)


def test_both_sides_and_a_source_are_always_given(phases: dict[tuple[str, str], Described]):
    for phase in phases.values():
        for discrepancy in phase["discrepancies"]:
            assert all(discrepancy[side].strip() for side in ("field", "code", "retrospective", "source", "place")), (
                phase["name"],
                discrepancy,
            )
            assert discrepancy["severity"] in ("high", "medium", "low")
            assert discrepancy["code"] != discrepancy["retrospective"]
            assert not re.fullmatch(r"not (stated|mentioned|recorded)|unreported", discrepancy["retrospective"])
        for note in phase["notes"]:
            assert all(note[part].strip() for part in ("field", "text", "source", "place")), (phase["name"], note)


# what each correction says, with the side that it belongs to
CORRECTED = (
    Row(0, "marin-8b", ("kestrel",), "learning_rate", r"every stored version", r"46 of the 66.*figure 2a.*likelier"),
    Row(0, "marin-32b", ("phase-1",), "skip_step", r"from the phase's first step", r"switched on during the run"),
    Row(0, "marin-32b", ("bison",), "mixture", r"gsm8k/socratic/test/0\.jsonl\.zst", r"test\.json`"),
    Row(0, "marin-8b", ("hypnotic-spoonbill",), "tokens", r"125\.8 B", r"issue 916"),
    Row(0, "marin-32b", ("necromancy",), "tokens", r"0\.067 T", r"0\.02 T"),
    Row(0, "marin-32b", ("phase-1", "qk-norm", "bison", "mantis"), "evaluation", r"inline evaluation was off", None),
    Row(0, "marin-32b", ("mantis",), "order", r"one input bit", r"mixing"),
)


@pytest.mark.parametrize("row", CORRECTED, ids=lambda row: f"{row.phases[0]}-{row.field}")
def test_a_correction_is_there(phases: dict[tuple[str, str], Described], row: Row):
    for name in row.phases:
        found = [*phases[row.recipe, name]["discrepancies"], *phases[row.recipe, name]["notes"]]
        assert any(names(one, row) for one in found), (name, found)
