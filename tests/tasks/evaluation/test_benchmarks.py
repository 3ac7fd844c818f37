import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product

import pytest

from phasewise.tasks.evaluation import made_benchmarks
from phasewise.tasks.evaluation.held_out import HeldOutDocument
from phasewise.tasks.evaluation.made_benchmarks import (
    WORD_ORDER,
    build_next_word,
    build_word_order,
    cut_passages,
    next_word_baseline,
    word_order_baseline,
)
from phasewise.trainer.base.errors import DataError

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
    golds = Counter(item.gold for item in items)
    assert max(golds.values()) - min(golds.values()) <= 1


def test_an_answer_is_one_plain_word(held_out_texts: HeldOut) -> None:
    assert all(re.fullmatch("[A-Za-z]{1,12}", item.answer) for item in build_next_word(held_out_texts))


def test_baselines_are_what_a_dumb_answer_scores(held_out_texts: HeldOut) -> None:
    items = build_word_order(held_out_texts)
    said = [item.model_copy(update={"gold": 2}) for item in items]
    assert (word_order_baseline(said).value, word_order_baseline(said).rule) == (1.0, "always position 2")
    assert 0.25 <= word_order_baseline(items).value <= 0.25 + 1 / len(items)
    words = build_next_word(held_out_texts)
    best = next_word_baseline(words)
    assert (best.rule, best.value) == (f"always '{best.answer}'", sum(item.answer == best.answer for item in words) / len(words))
    for answer in {item.answer for item in words}:
        assert sum(item.answer == answer for item in words) / len(words) <= best.value


def test_each_choice_is_as_like_the_others_as_any_other_choice_is(held_out_texts: HeldOut) -> None:
    """Two words exchanged, two others, or both: from each choice two are two words away, and one is four."""
    for item in build_word_order(held_out_texts):
        words = [choice.split() for choice in item.choices]
        for one in words:
            away = [sum(word != there for word, there in zip(one, other, strict=True)) for other in words]
            assert sorted(away) == [0, 2, 2, 4]


def test_a_model_that_counts_words_as_a_tokenizer_sees_them_finds_all_choices_equal(held_out_texts: HeldOut) -> None:
    """A word after a space and a word after a line break are two tokens to it. The first choice comes after a space."""
    items = build_word_order(held_out_texts)
    assert any("\n" in item.choices[0] for item in items)
    for item in items:
        assert len({tuple(sorted(re.findall(r"\s+\S+", f" {choice}"))) for choice in item.choices}) == 1


def test_a_passage_whose_words_can_not_be_exchanged_is_no_item() -> None:
    """Forty words, and then one over and over: where that begins early, no two pairs of words differ."""
    words = ["".join(letters) for letters in product("abcdefghij", repeat=3)]
    documents = [HeldOutDocument(f"{n}", f"{' '.join(words[20 * n : 20 * n + 40])} {'same ' * 40}") for n in range(40)]
    items = build_word_order({"code": documents})
    assert 0 < len(items) < len(cut_passages(documents, "code", WORD_ORDER))
    assert all(len(set(item.choices)) == 4 for item in items)
    assert {item.gold for item in items} == {0, 1, 2, 3}


def test_a_group_scores_each_of_its_answers_after_each_of_its_openings(held_out_texts: HeldOut) -> None:
    """So a word is the right choice as often as it is another's, and liking it gains nothing."""
    items = build_next_word(held_out_texts)
    groups = {group: [item for item in items if item.group == group] for group in {item.group for item in items}}
    assert len(groups) == len(items) // 4
    for members in groups.values():
        assert len(members) in {4, 5}
        assert {item.choices for item in members} == {members[0].choices}
        assert sorted(item.gold for item in members) == list(range(len(members)))
        assert all(item.choices[item.gold] == item.answer for item in members)
        assert len(set(members[0].choices)) == len(members)


@pytest.mark.parametrize("num_items", [1, 3, 7, 8, 11])
def test_a_few_items_are_one_group_or_two(held_out_texts: HeldOut, num_items: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made_benchmarks, "NUM_NEXT_WORD_ITEMS", num_items)
    items = build_next_word(held_out_texts)
    sizes = Counter(item.group for item in items)
    assert sizes.total() == num_items
    assert sorted(sizes) == list(range(max(1, num_items // 4)))
    assert max(sizes.values()) <= 7


def test_too_little_text_is_refused_with_what_was_found() -> None:
    held_out = {"code": [HeldOutDocument("a", "too short to cut")]}
    with pytest.raises(DataError, match="running text of 42 to 52 words, found none in 1 held-out documents of 1 components"):
        build_word_order(held_out)
    with pytest.raises(DataError, match=r"Found 0 passages of that length and 0 words .* in 1 held-out documents"):
        build_next_word(held_out)


def test_what_is_missed_is_reported_of_each_benchmark_apart() -> None:
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
