"""Where the code as it was run and what was written of it differ: each of the 29 known rows is in a phase's `discrepancies`.

A row is found by its field and by a telling value on either side. What says nothing of a value of a recipe is listed with the reason.
"""

import re
from typing import NamedTuple

import pytest

from phasewise.flows.show.describe import describe
from tests.flows.recipes.test_record_8b import Described

ALL_MATH_CACHE = r"all_math-9d507c"


class Row(NamedTuple):
    number: int
    recipe: str
    phases: tuple[str, ...]
    field: str
    code: str
    retrospective: str | None


EIGHT_B = (
    Row(1, "marin-8b", ("dessert-v3", "cooldown-take-2", "starling", "deeper-starling"), "mixture", ALL_MATH_CACHE, r"Bison"),
    Row(6, "marin-8b", ("hypnotic-spoonbill",), "learning_rate", r"2\.75e-5", r"3e-5"),
    Row(6, "marin-8b", ("hypnotic-spoonbill",), "mixture", r"2\.9 %.*0\.1 %", r"1 %.*0?\.3 %"),
    Row(6, "marin-8b", ("hypnotic-spoonbill",), "tokens", r"125\.8 B", r"200 B"),
    Row(7, "marin-8b", ("spoonbill-z-loss",), "z_loss", r"float32.*824,524|824,524.*float32", r"z-loss"),
    Row(8, "marin-8b", ("sft",), "learning_rate", r"\b1e-4", r"1\.7e-4"),
    Row(8, "marin-8b", ("sft",), "stop_step", r"10,228", r"10,227"),
    Row(8, "marin-8b", ("sft",), "mixture", r"nine", r"tuenguyen/dolphin_r1_reasoning"),
    Row(9, "marin-8b", ("starling",), "mixture", r"4\.5", r"once|1x"),
    Row(10, "marin-8b", ("kestrel",), "learning_rate", r"10,000 steps.*1,000 steps.*inverse.*1e-4", r"20,000.*2,000.*200,000"),
    Row(11, "marin-8b", ("ocelot",), "learning_rate", r"1\.7e-3.*17", r"√3"),
    Row(12, "marin-8b", ("phoenix",), "mixture", r"no Proof-Pile", r"32B"),
    Row(19, "marin-8b", ("jellyfish",), "start", r"738,376 of Kestrel", r"Ocelot"),
    Row(20, "marin-8b", ("ocelot",), "batch", r"3,?072|three times", r"50 %"),
    Row(21, "marin-8b", ("ocelot",), "ema|ema_decay", r"2025-02-10", r"direction|wrong|backwards"),
    Row(22, "marin-8b", ("kestrel", "ocelot"), "order", r"2025-01-29", None),
    Row(23, "marin-8b", ("ocelot",), "mixture", r"2025-02-11", None),
    Row(24, "marin-8b", ("microannealing-70-30", "microannealing-flan", "microannealing-control"), "rope", r"llama3", None),
    Row(25, "marin-8b", ("cooldown-take-2",), "phase", r"cooldown", None),
    Row(25, "marin-8b", ("softer-raccoon",), "start", r"1e-6", None),
    Row(28, "marin-8b", ("deeper-starling",), "tokens", r"335\.5 B.*comment.*250 B", r"12\.4 T"),
    Row(28, "marin-8b", ("soft-raccoon",), "tokens", r"125\.8 B", r"100 B"),
    Row(28, "marin-8b", ("sft-spoonbill",), "stop_step", r"3,834.*three epochs.*two epochs", None),
)
THIRTY_TWO_B = (
    Row(1, "marin-32b", ("bison",), "mixture", ALL_MATH_CACHE, r"cached"),
    Row(2, "marin-32b", ("bison",), "mixture", r"none drops it.*2026-01-19", r"updated to drop.*checks"),
    Row(3, "marin-32b", ("phase-1",), "skip_step", r"6\.0.*128.*gradient norm", r"2\.0.*update norm"),
    Row(4, "marin-32b", ("bison", "mantis"), "learning_rate", r"7e-5", r"1 %"),
    Row(5, "marin-32b", ("bison",), "mixture", r"× 2.*70 %", r"10 times and the mathematics twice.*30 %"),
    Row(12, "marin-32b", ("phase-1",), "mixture", r"Proof-Pile 2", r"Phoenix"),
    Row(13, "marin-32b", ("phase-1",), "learning_rate", r"1,000,000.*10,000.*never reached", r"1 %.*40 %"),
    Row(14, "marin-32b", ("qk-norm",), "learning_rate", r"7e-5", r"1,000 steps"),
    Row(15, "marin-32b", ("muon", "nadamw"), "start", r"77,096", r"80,000"),
    Row(15, "marin-32b", ("nadamw",), "stability", r"0\.2", None),
    Row(15, "marin-32b", ("nadamw",), "learning_rate", r"cosine", None),
    Row(15, "marin-32b", ("necromancy",), "outcome", r"didn't work", r"stabilised.*few thousand steps"),
    Row(15, "marin-32b", ("muon",), "learning_rate", r"no warm-up", r"warming up"),
    Row(16, "marin-32b", ("phase-1",), "max_update_rms", r"67,522.*72,233", None),
    Row(17, "marin-32b", ("mantis",), "batch", r"1,024.*159,999", None),
    Row(18, "marin-32b", ("mantis",), "order", r"permutation.*positions", None),
    Row(25, "marin-32b", ("bison-flat",), "phase", r"190,000", None),
    Row(25, "marin-32b", ("qk-norm",), "slice", r"v5p-2048", None),
    Row(25, "marin-32b", ("qk-norm",), "stop_step", r"170,000", r"160k|160,000"),
    Row(26, "marin-32b", ("bison",), "mixture", r"tinyGSM-MIND.*4\.22", None),
    Row(27, "marin-32b", ("mantis",), "phase", r"redo.*160,000", r"450 B.*500 B"),
    Row(28, "marin-32b", ("mantis",), "learning_rate", r"16\.7 %.*comment.*20 %", r"16\.7 %"),
)
ROWS = (*EIGHT_B, *THIRTY_TWO_B)


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
