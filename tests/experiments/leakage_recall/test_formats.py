"""The dresses say what they say, and the items are where the table thinks they are."""

import html
import json
import unicodedata
from collections.abc import Callable
from random import Random

import pytest

from experiments.leakage_recall import edits, escapes, lines, unicode_games
from experiments.leakage_recall.formats import FORMATS
from experiments.leakage_recall.made_items import made_items
from experiments.leakage_recall.measure import plant, sample
from experiments.leakage_recall.plants import Hosts
from experiments.leakage_recall.views import MIN_WORDS, part_text, words
from phasewise.validations.evidence.leakage.items import BenchmarkItem

TEXT = (
    'He paid "1200" francs, i.e. 3 per fish & net.\nThe others – all five of them – waited in the\n\nrain until 1,000,000 drops had fallen.'
)
ITEMS = made_items(40, 3)
GROUPS = {name: [item for item in ITEMS if item.benchmark == name] for name in sorted({item.benchmark for item in ITEMS})}
HOSTS = Hosts([f"Paragraph {number} says nothing that anybody asks for." for number in range(200)])


def test_made_items_are_the_same_for_the_same_seed_and_others_for_another():
    assert made_items(40, 3) == ITEMS
    assert not {item.question for item in ITEMS} & {item.question for item in made_items(40, 4)}
    assert all("<<" in item.solutions[0] for item in GROUPS["made-math"])
    compiled = [compile(item.question + item.solutions[0], item.id, "exec") for item in GROUPS["made-code"]]
    assert len(compiled) == 40


def test_escapes_can_be_undone():
    rng = Random(0)
    assert json.loads(f'"{escapes.json_ascii(TEXT, rng)}"') == TEXT == json.loads(f'"{escapes.json_unicode(TEXT, rng)}"')
    assert json.loads(json.loads(f'"{escapes.json_twice_ascii(TEXT, rng)}"')) == TEXT
    assert html.unescape(escapes.numeric_entities(TEXT, rng)) == TEXT == html.unescape(escapes.html_escaped(TEXT, rng))


@pytest.mark.parametrize("game", [unicode_games.fullwidth, unicode_games.mathematical_bold, unicode_games.mathematical_sans])
def test_compatibility_forms_are_other_characters_for_the_same_text(game: Callable[[str, Random], str]):
    dressed = game("Seven ducks, 12 eggs", Random(0))
    assert dressed != "Seven ducks, 12 eggs"
    assert unicodedata.normalize("NFKC", dressed) == "Seven ducks, 12 eggs"


def test_homoglyphs_take_about_a_third_of_the_letters():
    text = "people see a choice " * 50
    changed = sum(old != new for old, new in zip(text, unicode_games.homoglyphs(text, Random(0)), strict=True))
    assert 0.25 < changed / sum(letter in unicode_games.LOOK_ALIKES for letter in text) < 0.35


@pytest.mark.parametrize("name", edits.EDITS)
def test_an_edit_touches_one_word_in_ten_and_at_least_one(name: str):
    for text, expected in (("one two three", 1), (" ".join(f"word{number}" for number in range(100)), 10)):
        edited = edits.edit_words(text, Random(1), edits.EDITS[name])
        assert edited != text or name == "one word in ten mistyped"
        untouched = set(edited.split()) & set(text.split())
        assert len(set(text.split())) - len(untouched) <= expected
    assert edits.edit_words("a\nb", Random(0), edits.insert).count("\n") == 1


def test_thousands_separators_change_places():
    assert edits.change_thousands("1000 and 1,000,000 and 12 and 3.1415", Random(0)) == "1,000 and 1000000 and 12 and 3.1415"


def test_hyphens_split_words_that_come_together_again():
    dressed = lines.hyphenated("considerable quantities of porcelain " * 20, Random(0))
    assert "-\n" in dressed
    assert dressed.replace("-\n", "").split() == ("considerable quantities of porcelain " * 20).split()


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_plants_its_items_where_it_says(name: str):
    dress = FORMATS[name]
    chosen = sample(GROUPS, dress, 12, 0)
    planted = plant(chosen, dress, HOSTS, 0)
    assert plant(chosen, dress, HOSTS, 0) == planted
    assert len({(document.file, document.number) for document in planted.documents}) == len(planted.documents)
    assert all((dress.view.num_words(item) >= MIN_WORDS) != (dress.kind == "short") for item in chosen)
    for item in chosen:
        shown = b"".join(planted.documents[place].text for place in planted.places[item.benchmark, item.id])
        assert shown
        if "whole" in name and dress.dress is FORMATS["question alone"].dress and dress.cover is dress.dress and dress.kind != "beyond":
            assert _squeezed(item) in " ".join(words(shown.decode())), name


def test_benchmarks_take_turns():
    chosen = sample(GROUPS, FORMATS["lm-eval's format"], 30, 0)
    counts = {name: sum(item.benchmark == name for item in chosen) for name in GROUPS}
    assert sum(counts.values()) == 30
    assert max(counts.values()) - min(counts.values()) <= 1


def _squeezed(item: BenchmarkItem) -> str:
    return " ".join(words(part_text(item, "question"))[:4])
