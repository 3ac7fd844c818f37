import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.errors import DataError
from validations.evidence.ngrams import Item, ItemIndex, split_words

WORDS = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=30).map(" ".join)
ITEM_TEXTS = st.lists(st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=5, max_size=12).map(" ".join), min_size=1, max_size=4)


def ngrams(words: list[str], length: int) -> set[tuple[str, ...]]:
    return {tuple(words[start : start + length]) for start in range(len(words) - length + 1)}


def slow_containment(item: str, text: str, ngram_words: int) -> float:
    """The definition, by sets of tuples."""
    words = split_words(item)
    length = min(ngram_words, len(words))
    wanted = ngrams(words, length)
    return len(wanted & ngrams(split_words(text), length)) / len(wanted)


@given(ITEM_TEXTS, st.lists(WORDS, min_size=1, max_size=5), st.sampled_from([0.2, 0.5, 1.0]))
@settings(max_examples=200, deadline=None)
def test_matches_agree_with_the_definition(item_texts: list[str], texts: list[str], min_containment: float):
    index = ItemIndex.build([Item("b", str(number), text) for number, text in enumerate(item_texts)], ngram_words=6)
    found = {(match.document, match.item): match.containment for match in index.matches(texts, min_containment)}
    containments = {
        (document, item): slow_containment(item_text, text, 6)
        for document, text in enumerate(texts)
        for item, item_text in enumerate(item_texts)
    }
    assert found == {pair: value for pair, value in containments.items() if value >= min_containment}


def test_the_excerpt_starts_where_the_item_starts():
    index = ItemIndex.build([Item("b", "0", "Der SCHÖNE alte Baum am Fluss")], ngram_words=13)
    (match,) = index.matches(["Vorher steht anderes.\n\nDer schöne  alte\tBaum am Fluss, sagte er."], 1.0)
    assert match.excerpt == "Der schöne alte Baum am Fluss, sagte er."


def test_no_ngram_reaches_from_one_document_into_the_next():
    index = ItemIndex.build([Item("b", "0", "one two three four five six")], ngram_words=13)
    assert index.matches(["one two three", "four five six"], 0.1) == []


def test_an_item_too_short_to_tell_is_refused():
    with pytest.raises(DataError, match=r"at least 5 words .* found 3 in item q7 of benchmark quiz"):
        ItemIndex.build([Item("quiz", "q7", "Who are you?")], ngram_words=13)


def test_two_items_of_one_name_are_refused():
    items = [Item("quiz", "q7", "Where do all the rivers go?"), Item("quiz", "q7", "Where do all the birds go?")]
    with pytest.raises(DataError, match="found q7 twice in quiz"):
        ItemIndex.build(items, ngram_words=13)


def test_the_digest_names_items_and_length_but_not_their_order():
    first, second = Item("b", "0", "one two three four five"), Item("b", "1", "six seven eight nine ten")
    digest = ItemIndex.build([first, second], ngram_words=13).digest
    assert digest == ItemIndex.build([second, first], ngram_words=13).digest
    assert digest != ItemIndex.build([first, second], ngram_words=12).digest
    assert digest != ItemIndex.build([first], ngram_words=13).digest
