import re
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from tasks.evaluation.benchmarks import (
    build_next_word,
    build_word_order,
    commonest_word,
    next_word_baseline,
    word_order_baseline,
)
from tasks.evaluation.held_out import HeldOutDocument
from trainer.errors import DataError

HeldOut = Mapping[str, Sequence[HeldOutDocument]]


def shuffled(held_out: HeldOut) -> dict[str, list[HeldOutDocument]]:
    return {component: list(reversed(documents)) for component, documents in reversed(list(held_out.items()))}


def test_the_same_documents_in_another_order_give_the_same_items(held_out_texts: HeldOut) -> None:
    assert build_word_order(shuffled(held_out_texts)) == build_word_order(held_out_texts)
    assert build_next_word(shuffled(held_out_texts)) == build_next_word(held_out_texts)


def test_an_item_keeps_its_id_when_other_documents_go(held_out_texts: HeldOut) -> None:
    fewer = {component: documents[1:] for component, documents in held_out_texts.items()}
    for build in (build_word_order, build_next_word):
        before, after = ({item.id: item.text for item in build(held_out)} for held_out in (held_out_texts, fewer))
        assert after
        assert after.keys() < before.keys()
        assert all(before[item] == text for item, text in after.items())


def test_items_are_true_to_their_documents_and_long_enough_to_be_found(held_out_texts: HeldOut) -> None:
    texts = {document.id: document.text for documents in held_out_texts.values() for document in documents}
    items = [*build_word_order(held_out_texts), *build_next_word(held_out_texts)]
    assert {item.component for item in items} == set(held_out_texts)
    assert len({item.id for item in items}) == len(items)
    for item in items:
        assert item.text in texts[item.document]
        assert len(item.text.split()) >= 20


def test_choices_have_the_same_words_and_only_the_gold_one_follows(held_out_texts: HeldOut) -> None:
    texts = {document.id: document.text for documents in held_out_texts.values() for document in documents}
    items = build_word_order(held_out_texts)
    for item in items:
        assert len(set(item.choices)) == 4
        assert len({tuple(sorted(choice.split())) for choice in item.choices}) == 1
        for position, choice in enumerate(item.choices):
            assert (f"{item.opening} {choice}" in texts[item.document]) == (position == item.gold)
            exchanged = sum(word != true for word, true in zip(choice.split(), item.choices[item.gold].split(), strict=True))
            assert exchanged == (0 if position == item.gold else 2)
    golds = Counter(item.gold for item in items)
    assert max(golds.values()) - min(golds.values()) <= 1


def test_an_answer_is_one_plain_word(held_out_texts: HeldOut) -> None:
    assert all(re.fullmatch("[A-Za-z]{1,12}", item.answer) for item in build_next_word(held_out_texts))


def test_baselines_are_what_a_dumb_answer_scores(held_out_texts: HeldOut) -> None:
    items = build_word_order(held_out_texts)
    told = [item.model_copy(update={"gold": 2}) for item in items]
    assert (word_order_baseline(told).value, word_order_baseline(told).rule) == (1.0, "always position 2")
    assert 0.25 <= word_order_baseline(items).value <= 0.25 + 1 / len(items)
    words = build_next_word(held_out_texts)
    assert next_word_baseline(words, words[0].answer).value == sum(item.answer == words[0].answer for item in words) / len(words)


def test_the_commonest_word_is_one_that_could_be_an_answer() -> None:
    assert commonest_word(["= = = = the cat = = the\tdog", "(cat) cat, the x1 x1 x1 x1"]) == "the"
    with pytest.raises(DataError, match="must hold words"):
        commonest_word(["= = 1 2"])


def test_too_little_text_is_refused_with_what_was_found() -> None:
    held_out = {"code": [HeldOutDocument("a", "too short to cut")]}
    with pytest.raises(DataError, match="running text of 42 to 52 words, found none in 1 held-out documents of 1 components"):
        build_word_order(held_out)
    with pytest.raises(DataError, match=r"Found 0 passages of that length and 0 words .* in 1 held-out documents"):
        build_next_word(held_out)


def test_what_is_missed_is_told_of_each_benchmark_apart() -> None:
    """Enough words for passages, and none of them ever comes again."""
    held_out = {"code": [HeldOutDocument("a", " ".join(f"w{chr(97 + number // 26)}{chr(97 + number % 26)}" for number in range(400)))]}
    assert len(build_word_order(held_out)) == 5
    with pytest.raises(DataError, match="Found 5 passages of that length and 0 words that tell the next one"):
        build_next_word(held_out)


def test_tables_and_repetitions_are_not_passages() -> None:
    table = HeldOutDocument("table", " ".join(str(number) for number in range(400)))
    chorus = HeldOutDocument("chorus", "again and again " * 200)
    with pytest.raises(DataError):
        build_next_word({"code": [table, chorus]})
