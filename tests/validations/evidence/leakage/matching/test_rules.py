from dataclasses import replace

import numpy as np
import pytest

from phasewise.validations.evidence.leakage import rules as rules_module
from phasewise.validations.evidence.leakage.index import LeakageIndex
from phasewise.validations.evidence.leakage.items import BenchmarkItem
from phasewise.validations.evidence.leakage.rules import ALIKE, COMPLETE, LITTLE_WEIGHT, MAX_NEEDED, MUCH_WEIGHT, NEVER, VERBATIM
from phasewise.validations.evidence.leakage.segments import ANSWER, CHOICE, PASSAGE, QUESTION, SOLUTION
from phasewise.validations.limits import LeakageLimits

LIMITS = LeakageLimits(min_words=13, min_score=0.7, min_copy_share=0.8, max_items=0)
LONG = "amber basalt cobalt dune ember fjord garnet heath iris juniper kelp lichen moraine nectar obsidian peat quartz reed slate thyme"
WORDS = LONG.split()


def rules_of(item: BenchmarkItem) -> rules_module.Rules:
    others = [BenchmarkItem("other", "other", str(n), f"entry {n} of the ledger that tells nothing of use to us here") for n in range(5)]
    return rules_module.build_rules(LeakageIndex.build([item, *others]), LIMITS)


def item(question: str, **parts: object) -> BenchmarkItem:
    return BenchmarkItem("rocks", "rocks", "1", question)._replace(**parts)


def first(*words: int) -> str:
    return " ".join(WORDS[slice(*words)])


@pytest.mark.parametrize(("asked", "kind", "expected"), [
    (item(first(13)), QUESTION, ALIKE), (item("", solutions=(first(13),)), SOLUTION, ALIKE), (item("", answer=first(13)), ANSWER, ALIKE),
    (item("amber 1 2 3 4 5 6 7 8 9 10 11 12"), QUESTION, VERBATIM), (item("amber 1 2 1 2 1 2 1 2 1 2 1 2"), QUESTION, NEVER),
    (item("", choices=(first(7), first(7, 14))), CHOICE, ALIKE), (item("", choices=(first(7), first(7))), CHOICE, COMPLETE),
    (item("", choices=("amber basalt", "1 2 3", "2 1 3", "3 1 2", "3 2 1")), CHOICE, COMPLETE),
    (item("", choices=("amber 1 2", "1 2 1", "1 1 2", "2 1 1", "2 2 1")), CHOICE, NEVER),
    (item("", choices=("amber basalt 1", "2 3 4", "4 5 6")), CHOICE, NEVER), (item(first(12)), QUESTION, VERBATIM),
    (item(first(8)), QUESTION, VERBATIM), (item(first(7)), QUESTION, NEVER), (item("amber 1 2 3 4 5 6 7 8 9"), QUESTION, NEVER),
    (item("", answer=first(12)), ANSWER, NEVER), (item("", passage=LONG), PASSAGE, NEVER),
    (item(first(13), is_excerpt=True), QUESTION, VERBATIM), (item(first(12), is_excerpt=True), QUESTION, NEVER),
])  # fmt: skip
def test_what_counts_alone(asked: BenchmarkItem, kind: int, expected: int):
    assert rules_of(asked).alone[0, kind] == expected


@pytest.mark.parametrize(("asked", "kind", "expected"), [
    (item(first(7), choices=(first(7, 10), first(10, 13))), CHOICE, ALIKE),
    (item(first(7), choices=(first(7, 10), first(10, 12))), CHOICE, VERBATIM), (item(first(5), answer=first(5, 6)), ANSWER, VERBATIM),
    (item(first(4), answer=first(4, 5)), ANSWER, NEVER), (item("amber basalt 1 2 3", answer="cobalt dune"), ANSWER, NEVER),
    (item(first(6), passage=first(6, 20)), PASSAGE, ALIKE), (item("", answer=LONG), ANSWER, NEVER), (item(LONG), ANSWER, NEVER),
])  # fmt: skip
def test_what_counts_beside_the_question(asked: BenchmarkItem, kind: int, expected: int):
    assert rules_of(asked).together[0, kind] == expected


def test_of_little_more_must_be_there():
    index = LeakageIndex.build([BenchmarkItem("rocks", "rocks", str(n), f"{LONG} {n}") for n in range(4)])
    weights = np.array([LITTLE_WEIGHT / 2, LITTLE_WEIGHT, (LITTLE_WEIGHT + MUCH_WEIGHT) / 2, MUCH_WEIGHT], np.float32)
    index = replace(index, part_weights=np.where(index.part_words > 0, weights[:, None], np.float32(0)))
    halfway = (LIMITS.min_score + MAX_NEEDED) / 2
    needed = rules_module.build_rules(index, LIMITS).alone_scores[:, QUESTION]
    assert needed.tolist() == pytest.approx([MAX_NEEDED, MAX_NEEDED, halfway, LIMITS.min_score])
    strict = LIMITS.but(min_score=0.95)
    assert rules_module.build_rules(index, strict).alone_scores[:, QUESTION].tolist() == pytest.approx([0.95] * 4)


def test_choices_and_excerpts_need_a_share_of_their_own():
    asked = item(LONG, choices=tuple(f"{word} {word}ish {word}like" for word in WORDS))
    assert rules_of(asked).alone_scores[0, CHOICE] == pytest.approx(rules_module.MIN_CHOICES_NEEDED)
    alone = [rules_of(item(first(words), is_excerpt=True)).alone_scores[0, QUESTION] for words in (13, 15, 20)]
    assert alone == pytest.approx([1.0, 13 / 15, LIMITS.min_copy_share])


def test_longer_items_need_more_seeds():
    seeds = [int(rules_of(item(" ".join([*WORDS] * 5)[:length])).seeds[0]) for length in (80, 250, 550)]
    assert rules_module.MIN_SEEDS == seeds[0] <= seeds[1] <= seeds[2] <= rules_module.MAX_SEEDS
    assert rules_of(item(first(4), answer=first(4, 7))).seeds[0] == 1, "no more than there are"


@pytest.mark.parametrize("asked", [
    item(first(4)), item(""), item("", passage=LONG), item("amber basalt cobalt", answer="dune ember fjord"),
    item("amber basalt cobalt", choices=("dune", "ember")), item("amber basalt cobalt", passage=LONG),
])  # fmt: skip
def test_what_no_rule_covers_is_out_of_reach(asked: BenchmarkItem):
    assert rules_of(asked).out_of_reach.tolist()[0]


def test_what_a_rule_covers_is_within_reach():
    within = (item(first(8)), item(first(5), answer=first(5, 6)), item("amber", answer=first(1, 13)), item("", answer=LONG))
    assert not np.any([rules_of(asked).out_of_reach[0] for asked in within])
