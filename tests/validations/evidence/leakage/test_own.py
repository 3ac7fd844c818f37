from itertools import permutations
from random import Random

import numpy as np
import pytest

from phasewise.validations.evidence.leakage import segments
from phasewise.validations.evidence.leakage.index import OWN_GRAM, OWN_RUN, LeakageIndex
from phasewise.validations.evidence.leakage.items import BenchmarkItem
from phasewise.validations.evidence.leakage.rules import ALIKE, ALL, NEVER, build_rules
from phasewise.validations.evidence.leakage.scan import Document, scan_documents
from phasewise.validations.evidence.leakage.segments import CHOICE, COMMON_CHOICES, QUESTION, SAME_CHOICES, Segments
from phasewise.validations.limits import LeakageLimits

LIMITS = LeakageLimits(min_words=13, min_score=0.7, min_copy_share=0.8, max_items=0)
TEMPLATE = (
    "Construct a complete table of truth for the argument below. Then use it to determine whether the argument is valid or invalid. "
    "If it is invalid, choose an option which presents a counterexample."
)
STEM = "The main purpose of the passage is to"
NAMES = ("alder", "birch", "cedar", "dogwood", "elm", "fir", "ginkgo", "hazel", "ivy", "juniper", "kapok", "larch")
LETTERS = "ABCDEFGHIJKL"
FORMULAS = [f"{one} implies {other}, so {other} and {third}" for one, other, third in zip(LETTERS, LETTERS[3:], LETTERS[7:], strict=False)]
SWAPS = tuple(f"Then {one} and {other} swap hats." for one, other in permutations(("Alder", "Birch", "Cedar"), 2))


def item(id: str, question: str, **parts: object) -> BenchmarkItem:
    return BenchmarkItem("logic", "logic", id, question)._replace(**parts)


def ids(text: str, items: list[BenchmarkItem]) -> set[str]:
    text = f"The harbour lay still that morning. {text} Nobody on the quay took any notice."
    return {hit.item for hit in scan_documents([Document("f", 0, "a", text.encode())], LeakageIndex.build(items), LIMITS).hits}


def puzzles(count: int) -> list[BenchmarkItem]:
    """Each the same few sentences, in an order of its own."""
    rng = Random(0)
    texts = dict.fromkeys(" ".join(rng.choice(SWAPS) for _ in range(7)) for _ in range(3 * count))
    return [item(str(number), f"Three friends wear hats. {text} Who wears which?") for number, text in enumerate(list(texts)[:count])]


def test_a_template_or_a_question_of_many_items_finds_none_and_an_item_is_found_by_what_it_adds():
    items = [item(str(number), f"{TEMPLATE} {formula}") for number, formula in enumerate(FORMULAS)]
    assert len(items) == 5
    assert ids(TEMPLATE, items) == set()
    assert ids(items[2].question, items) == {"2"}
    items = [item(str(number), STEM, choices=(f"praise the {name}", f"measure the {name}")) for number, name in enumerate(NAMES[:7])]
    assert ids(STEM, items) == set()
    assert ids(STEM, items[: segments.MAX_OWN_ITEMS]) == {"0", "1", "2"}, "of few items every one is meant"


def test_a_puzzle_of_shared_sentences_is_found_by_their_order():
    items = puzzles(40)
    index = LeakageIndex.build(items)
    assert (np.asarray(index.marks) & OWN_RUN).any()
    assert "7" in ids(items[7].question, items)
    assert ids("Three friends wear hats. Who wears which? Then they swap.", items) == set()


def test_a_shared_run_takes_its_pairs_from_what_is_own_wherever_the_items_stand():
    items = [BenchmarkItem(name, name, "1", f"as of late the {name} mill grinds barley {name} wind") for name in NAMES]
    of_items = Segments.of(items)
    grams, tasks = np.where(of_items.words_left > 1, of_items.runs(2), np.uint64(0)), [one.task for one in items]
    of_task = segments.own_grams(of_items, grams, tasks, tasks)[:9].tolist()
    of_all = segments.own_grams(of_items, grams, tasks, ["test"] * len(items))[:9].tolist()
    assert (of_task, of_all) == ([True] * 9, [False] * 3 + [True] * 6)


def test_runs_of_their_own_have_only_parts_that_are_poor_in_pairs():
    items = [*puzzles(40), item("rich", "a heron waded through cold reeds while seven otters dozed under the pier")]
    of_items = Segments.of(items)
    marks = np.asarray(LeakageIndex.build(items).marks)
    runs = segments.own_runs(of_items, marks & OWN_GRAM != 0, ["test"] * len(items))
    of_item = np.bincount(of_items.item_of_word[runs], minlength=len(items))
    assert (of_item[-1], of_item[:-1].any()) == (0, True)


ROMAN = ("I only", "I and II only", "II and III only", "I and II and III")


@pytest.mark.parametrize(("choices", "expected"), [
    (ROMAN, SAME_CHOICES), ((*ROMAN[:3], "III and not II"), COMMON_CHOICES), (("the heron", "the otter", *ROMAN[:2]), COMMON_CHOICES),
    (("the heron", "the otter", "the tern", ROMAN[1]), 0), (("12", "15", "18"), 0),
    (("a long choice that others have as well", "another"), 0),
])  # fmt: skip
def test_choices_of_others_are_reported(choices: tuple[str, ...], expected: int):
    others = [item(str(number), f"which {name}", choices=ROMAN) for number, name in enumerate(NAMES)]
    alike = ("12", "15", "a long choice that others have as well")
    others += [item(f"n{number}", name, choices=(*alike, name)) for number, name in enumerate(NAMES)]
    found = segments.shared_choices(Segments.of([item("asked", "which", choices=choices), *others]), ["test"] * (len(others) + 1))
    assert found[0] == expected


def test_of_poor_parts_nearly_all_must_be_there_and_of_shared_ones_nothing_counts():
    items = [item(str(number), TEMPLATE if number else f"{TEMPLATE} heron", choices=ROMAN) for number in range(9)]
    rules = build_rules(LeakageIndex.build(items), LIMITS)
    assert rules.alone[:2, QUESTION].tolist() == [ALIKE, NEVER]
    assert (rules.alone[:, CHOICE] == NEVER).all()
    trees = (NAMES[:3], NAMES[1:4], NAMES[2:5], NAMES[3:6], NAMES[::2], NAMES[1::2], NAMES[::3])
    choices = [tuple(f"the {tree} stands to the left of the other trees" for tree in some) for some in trees]
    sides = [item(str(number), "which", choices=some) for number, some in enumerate(choices)]
    assert build_rules(LeakageIndex.build(sides), LIMITS).alone[0, CHOICE] == ALL
