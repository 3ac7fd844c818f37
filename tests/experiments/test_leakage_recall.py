import html
import json
from random import Random

import pytest

from experiments.leakage_recall import escapes
from experiments.leakage_recall.detectors import DETECTORS, ours
from experiments.leakage_recall.formats import FORMATS
from experiments.leakage_recall.material import CLEAN, HARD, Material
from experiments.leakage_recall.report import Table, as_markdown

TAGS, DROPPED, LETTERS = "calculator tags stripped", "one word in ten dropped, a part alone", "homoglyphs for 30 % of the letters, whole"
FEW = ["lm-eval's format", TAGS, "solution alone", DROPPED, LETTERS]


@pytest.fixture(scope="module")
def made() -> Material:
    return Material.made(per_benchmark=60, siblings=150, clean=1500)


@pytest.fixture(scope="module")
def table(made: Material) -> Table:
    return made.table(ours, count=40)


def test_escapes_can_be_undone():
    text = 'He paid "1200" francs, i.e. 3 per fish & net.\nThe others – all five of them – waited in the\n\nrain.'
    rng = Random(0)
    assert json.loads(f'"{escapes.json_ascii(text, rng)}"') == text == json.loads(f'"{escapes.json_unicode(text, rng)}"')
    assert json.loads(json.loads(f'"{escapes.json_twice_ascii(text, rng)}"')) == text
    assert html.unescape(escapes.numeric_entities(text, rng)) == text == html.unescape(escapes.html_escaped(text, rng))


def test_no_format_of_made_items_falls_below_its_target(table: Table):
    """So few items can't tell 98 % from 99 %: a row must be able to pass, and all rows together must."""
    assert len(table.recall) == len(FORMATS) > 150
    assert [row.name for row in table.recall if not row.may_pass and row.recall.of] == [], as_markdown(table, misses=3)
    for kind in ("reformatting", "edits"):
        rows = [row for row in table.recall if row.kind == kind]
        found, planted = sum(row.recall.count for row in rows), sum(row.recall.of for row in rows)
        assert found >= (rows[0].target or 1) * planted, as_markdown(table, misses=3)


def test_text_without_made_items_is_silent(table: Table):
    assert [row.name for row in table.alarms if not row.passes] == [], as_markdown(table)
    assert next(row for row in table.alarms if row.name == CLEAN).documents == 1500


@pytest.mark.parametrize(
    ("name", "fails", "keeps"),
    [
        ("everything", {HARD, CLEAN}, {"lm-eval's format"}),
        ("nothing", {*FEW}, {HARD, CLEAN}),
        ("file-name", {*FEW, HARD}, set[str]()),
        ("janitor-13", {TAGS, DROPPED, LETTERS}, {CLEAN}),
    ],
)
def test_what_needs_no_thought_fails_the_table(made: Material, name: str, fails: set[str], keeps: set[str]):
    table = made.table(DETECTORS[name], [FORMATS[row] for row in FEW], count=60)
    assert fails <= set(table.failures), as_markdown(table)
    assert not keeps & set(table.failures), as_markdown(table)
