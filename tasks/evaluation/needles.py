"""Items that ask for one of several values hidden in a long text (MK-NIAH: needles with several keys in a haystack), of any length.

After the multi-key task of RULER (Hsieh et al., 2024), in words of this project: a text of so many tokens tells the number of each of a few
names, and then one of them is asked for. Everything is decided by digests: the same text, tokenizer and settings give the same items.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pydantic import Field, model_validator

from phasewise.tasks.evaluation.needle_lengths import MIN_LENGTH
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import digest_of_json

MAX_NEW_TOKENS = 8
"""Room behind a prompt for what the model writes: no value of the default wording is longer, by the bytes that it has."""
MIN_KEYS = 2
"""Of one there would be nothing to choose."""

_COLOURS = (
    "amber", "azure", "black", "bronze", "brown", "copper", "coral", "crimson", "golden", "green", "grey", "indigo", "ivory", "olive",
    "orange", "pink", "purple", "red", "scarlet", "silver", "teal", "violet", "white", "yellow",
)  # fmt: skip
_THINGS = (
    "anchor", "basket", "bridge", "candle", "castle", "door", "engine", "feather", "garden", "hammer", "island", "kettle", "ladder",
    "lantern", "mirror", "needle", "orchard", "pencil", "river", "saddle", "tower", "umbrella", "violin", "wagon",
)  # fmt: skip


class Wording(Frozen):
    """How a needle is told and asked for; `{key}` and `{value}` stand for what each item has.

    Attributes:
        keys: names that can be asked for.
        values: what they may be; None is six digits of the item's own digest.
    """

    needle: str = "The secret number of the {key} is {value}."
    question: str = "What is the secret number of the {key}? The secret number of the {key} is"
    keys: tuple[str, ...] = Field(default=tuple(f"{colour} {thing}" for colour in _COLOURS for thing in _THINGS), min_length=2)
    values: tuple[str, ...] | None = None

    @model_validator(mode="after")
    def _has_places(self) -> "Wording":
        if "{key}" not in self.needle or "{value}" not in self.needle or "{key}" not in self.question:
            raise ValueError(
                f"a needle must have {{key}} and {{value}}, and its question {{key}}, found {self.needle!r}, {self.question!r}"
            )
        if len(set(self.keys)) < len(self.keys) or (self.values and len(set(self.values)) < len(self.values)):
            raise ValueError("keys and values must differ from each other, found one twice")
        return self


class Needles(Frozen):
    """What is asked.

    Attributes:
        length: tokens of text, question and answer together, by the model's tokenizer and with its begin token.
        keys: needles in a text; one is asked for, the others distract.
        depths: where the needle that is asked for is, as a share of the text before it.
        items_per_depth: items at each of these.
    """

    length: int = Field(ge=MIN_LENGTH)
    keys: int = Field(default=4, ge=MIN_KEYS)
    depths: tuple[float, ...] = Field(default=(0.0, 0.25, 0.5, 0.75, 1.0), min_length=1)
    items_per_depth: int = Field(default=8, gt=0)
    wording: Wording = Wording()

    @model_validator(mode="after")
    def _is_possible(self) -> "Needles":
        if self.keys > len(self.wording.keys) or (self.wording.values and self.keys > len(self.wording.values)):
            raise ValueError(f"there must be a name and a value for each of the {self.keys} keys")
        if not all(0 <= depth <= 1 for depth in self.depths):
            raise ValueError(f"depths must be between 0 and 1, found {self.depths}")
        return self


class NeedleItem(Frozen):
    """A prompt, the values of all its keys in their order, and which is asked for.

    Attributes:
        tokens: of the prompt, with the begin token.
        needle_token: about where in it the needle begins that is asked for.
    """

    id: str
    prompt: str
    choices: tuple[str, ...]
    gold: int
    answer: str
    depth: float
    tokens: int
    needle_token: int


class _Draw(NamedTuple):
    """What the digest of an item decides."""

    number: int
    depth: float
    keys: tuple[str, ...]
    values: tuple[str, ...]
    gold: int
    others: tuple[float, ...]
    start: float


def build_items(needles: Needles, haystack: Sequence[str], count_tokens: Callable[[str], int]) -> list[NeedleItem]:
    """`len(depths) · items_per_depth` items, each as long as fits into `needles.length` with its answer.

    Args:
        haystack: the words of a text that is long enough for one item, or is begun again.
        count_tokens: how many tokens the model reads for a text, the begin token included.

    Raises:
        DataError: there are no words, or the length has no room for the needles, the question and an answer.
    """
    if not haystack:
        raise DataError(
            "needles need a text to be hidden in, found no words. Give the recipe's components more text, or a folder with some."
        )
    draws = _draws(needles, frozenset(haystack))
    return [_item(needles, draw, haystack, count_tokens) for draw in draws]


def least_length(needles: Needles, count_tokens: Callable[[str], int]) -> int:
    """Tokens that the longest item has without any text around its needles: a shorter length has no room for it."""
    return max(_least(needles, draw, count_tokens) for draw in _draws(needles, frozenset()))


def with_room(needles: Needles, count_tokens: Callable[[str], int]) -> Needles:
    """The same with as many of its keys as its length has room for, and two where it has none for these either."""
    fewer = (needles.but(keys=keys) for keys in range(needles.keys, MIN_KEYS, -1))
    return next((one for one in fewer if least_length(one, count_tokens) <= one.length), needles.but(keys=MIN_KEYS))


def _least(needles: Needles, draw: _Draw, count_tokens: Callable[[str], int]) -> int:
    return count_tokens(_prompt(needles, draw, [], 0)[0]) + _answer_tokens(draw, count_tokens)


def _answer_tokens(draw: _Draw, count_tokens: Callable[[str], int]) -> int:
    """Room that is kept behind a prompt."""
    answers = max(count_tokens(f"{draw.keys[0]} {value}") - count_tokens(draw.keys[0]) for value in draw.values)
    return max(answers, MAX_NEW_TOKENS)


def _draws(needles: Needles, words: frozenset[str]) -> list[_Draw]:
    many = len(needles.depths) * needles.items_per_depth
    return [_draw(needles, words, number, needles.depths[number % len(needles.depths)]) for number in range(many)]


def _draw(needles: Needles, words: frozenset[str], number: int, depth: float) -> _Draw:
    wording = needles.wording
    keys = _some(wording.keys, needles.keys, "key", number)
    told = _numbers(needles.keys, number, words) if wording.values is None else _some(wording.values, needles.keys, "value", number)
    others = tuple(_fraction("depth", number, other) for other in range(needles.keys))
    gold = number // len(needles.depths) % needles.keys
    return _Draw(number, depth, keys, told, gold, others, _fraction("start", number, 0))


def _some(names: Sequence[str], many: int, what: str, number: int) -> tuple[str, ...]:
    """So many of the names, in an order by digest."""
    left = list(names)
    return tuple(left.pop(int(_fraction(what, number, place) * len(left))) for place in range(many))


def _numbers(many: int, number: int, words: frozenset[str]) -> tuple[str, ...]:
    """Six digits each, all different, and none of them a word of the text."""
    found: list[str] = []
    attempt = 0
    while len(found) < many:
        value = str(100_000 + int(900_000 * _fraction("number", number, attempt)))
        attempt += 1
        if value not in found and value not in words:
            found.append(value)
    return tuple(found)


def _fraction(what: str, number: int, more: int) -> float:
    """A number from 0 to 1 by digest."""
    return int(digest_of_json(["needle", what, number, more])[:13], 16) / 16**13


def _item(needles: Needles, draw: _Draw, haystack: Sequence[str], count_tokens: Callable[[str], int]) -> NeedleItem:
    room = needles.length - _answer_tokens(draw, count_tokens)

    def tokens_of(words: int) -> int:
        return count_tokens(_prompt(needles, draw, haystack, words)[0])

    if (least := _least(needles, draw, count_tokens)) > needles.length:
        raise DataError(
            f"{needles.length:,} tokens have no room for {needles.keys} needles, their question and its answer, which take {least:,}: take "
            "a greater length, or fewer keys."
        )
    words = bisect_right(range(needles.length + 1), room, key=tokens_of) - 1
    prompt, before = _prompt(needles, draw, haystack, words)
    return NeedleItem(
        id=digest_of_json([prompt, draw.gold])[:16],
        prompt=prompt,
        choices=draw.values,
        gold=draw.gold,
        answer=draw.values[draw.gold],
        depth=draw.depth,
        tokens=count_tokens(prompt),
        needle_token=count_tokens(before),
    )


def _prompt(needles: Needles, draw: _Draw, haystack: Sequence[str], words: int) -> tuple[str, str]:
    """The prompt with so many words around its needles, and the part of it that is before the needle that is asked for."""
    first = int(draw.start * len(haystack))
    text = [haystack[(first + place) % len(haystack)] for place in range(words)]
    depths = [draw.depth if place == draw.gold else other for place, other in enumerate(draw.others)]
    told = [needles.wording.needle.format(key=key, value=value) for key, value in zip(draw.keys, draw.values, strict=True)]
    parts: list[str] = []
    done = 0
    before = ""
    for place in sorted(range(needles.keys), key=lambda place: (depths[place], place)):
        at = round(depths[place] * words)
        parts += [*text[done:at]]
        if place == draw.gold:
            before = " ".join(parts)
        parts.append(told[place])
        done = at
    question = needles.wording.question.format(key=draw.keys[draw.gold])
    return re.sub(" +", " ", " ".join([*parts, *text[done:], question])), before
