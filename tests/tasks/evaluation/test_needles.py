"""Items of MK-NIAH: as long as they say, the needle where it is said to be, one value right, and the same for everyone."""

import pytest
from pydantic import ValidationError

from phasewise.tasks.evaluation.needles import MAX_NEW_TOKENS, NeedleItem, Needles, build_items
from phasewise.trainer.base.errors import DataError

HAYSTACK = [f"word{number % 97}" for number in range(3_000)]
FEW = Needles(length=256, items_per_depth=4)


def count_words(text: str) -> int:
    """A token a word, and one to begin."""
    return 1 + len(text.split())


def count_characters(text: str) -> int:
    return 1 + len(text)


def built(needles: Needles = FEW) -> list[NeedleItem]:
    return build_items(needles, HAYSTACK, count_words)


@pytest.mark.parametrize("length", [128, 256, 1_000, 20_000])
def test_prompts_fill_the_length_and_leave_room_for_the_answer(length: int):
    """The haystack is begun again where it is too short."""
    for item in built(Needles(length=length, items_per_depth=1)):
        assert item.tokens == count_words(item.prompt) == length - MAX_NEW_TOKENS


def test_tokens_are_counted_by_the_tokenizer_that_is_given():
    for item in build_items(Needles(length=2_000, items_per_depth=1), HAYSTACK, count_characters):
        assert 2_000 - MAX_NEW_TOKENS - len(" word96") <= count_characters(item.prompt) <= 2_000 - MAX_NEW_TOKENS


@pytest.mark.parametrize("needles", [FEW, Needles(length=256, keys=8, items_per_depth=4)])
def test_every_key_has_its_value_in_the_prompt_and_the_last_one_is_asked_for(needles: Needles):
    for item in built(needles):
        assert len(set(item.choices)) == needles.keys == len(item.choices)
        assert all(item.prompt.count(choice) == 1 for choice in item.choices)
        assert item.choices[item.gold] == item.answer
        key, _, question = item.prompt.rpartition(item.answer)[0].rpartition(" the ")[2].partition(" is")
        assert item.prompt.endswith(f"The secret number of the {key} is"), question


def test_the_needle_is_at_its_depth():
    for item in built(Needles(length=2_000, items_per_depth=2)):
        found = item.prompt.split(" ").index(f"{item.answer}.") - len(["The", "secret", "number", "of", "the", "golden", "castle", "is"])
        told = sum(choice in " ".join(item.prompt.split(" ")[:found]) for choice in item.choices)
        words = found - told * len(["The", "secret", "number", "of", "the", "golden", "castle", "is", "123456."])
        all_words = sum(word.startswith("word") for word in item.prompt.split(" "))
        assert abs(words - item.depth * all_words) <= 1
        assert item.needle_token == count_words(" ".join(item.prompt.split(" ")[:found]))


def test_no_place_among_the_choices_is_right_more_often_at_any_depth():
    for depth in FEW.depths:
        assert sorted(item.gold for item in built() if item.depth == depth) == [0, 1, 2, 3]


def test_the_same_settings_give_the_same_items_and_other_ones_others():
    assert built() == built()
    for change in ({"length": 300}, {"keys": 5}, {"depths": (0.1, 0.2)}):
        assert {item.id for item in built(FEW.but(**change))}.isdisjoint(item.id for item in built()), change
    assert {item.id for item in built()} < {item.id for item in built(FEW.but(items_per_depth=6))}


def test_a_value_is_no_word_of_the_text():
    values = {choice for item in built() for choice in item.choices}
    others = build_items(FEW, [*HAYSTACK, *sorted(values)], count_words)
    assert not values & {choice for item in others for choice in item.choices}


def test_a_length_without_room_is_refused_with_what_it_takes():
    with pytest.raises(DataError, match=r"64 tokens have no room for 8 needles, .* which take 9\d: take a greater length, or fewer keys"):
        built(Needles(length=64, keys=8))
    with pytest.raises(DataError, match="found no words"):
        build_items(FEW, [], count_words)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"length": 10}, "greater than or equal to 64"),
        ({"keys": 1}, "greater than or equal to 2"),
        ({"depths": (1.5,)}, "less than or equal to 1"),
        ({"keys": 577}, "less than or equal to 576"),
    ],
)
def test_what_cannot_be_asked_is_refused(fields: dict[str, object], said: str):
    with pytest.raises(ValidationError, match=said):
        FEW.but(**fields)
