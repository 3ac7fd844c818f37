"""Items that ask for one of several values hidden in a long text (MK-NIAH: needles with several keys in a haystack), of any length.

After the multi-key task of RULER (Hsieh et al., 2024), in words of this project: a text of so many tokens tells the number of each of a few
names, and then one of them is asked for. Everything is decided by digests: the same text, tokenizer and settings give the same items.
In lm-eval `niah:8192` is a choice among the values of all keys in a text of 8,192 tokens; `niah_written:8192` has the model write it.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import Field, model_validator

from phasewise.tasks.evaluation.benchmark_definitions import Asked, Definition, Part, Suite
from phasewise.tasks.evaluation.harness import NotMeasured, Prepared, PreparedPart
from phasewise.tasks.evaluation.settings import MIN_LENGTH
from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import digest_of_bytes, digest_of_json

if TYPE_CHECKING:
    from phasewise.tasks.evaluation.language_model import JaxLanguageModel

NAME, WRITTEN = "niah", "niah_written"
FOLDER = "niah"
MAX_NEW_TOKENS = 8
"""Room behind a prompt for the answer: no value of the default wording is longer, by its bytes."""
MIN_KEYS = 2
Haystack = Callable[[], Sequence[str]]
CountTokens = Callable[[str], int]
_COLOURS = (
    "amber", "azure", "black", "bronze", "brown", "copper", "coral", "crimson", "golden", "green", "grey", "indigo", "ivory", "olive",
    "orange", "pink", "purple", "red", "scarlet", "silver", "teal", "violet", "white", "yellow",
)  # fmt: skip
_THINGS = (
    "anchor", "basket", "bridge", "candle", "castle", "door", "engine", "feather", "garden", "hammer", "island", "kettle", "ladder",
    "lantern", "mirror", "needle", "orchard", "pencil", "river", "saddle", "tower", "umbrella", "violin", "wagon",
)  # fmt: skip


class Wording(Frozen):
    """How a needle is told and asked for; `{key}` and `{value}` are replaced in each item.

    Attributes:
        keys: names that can be asked for.
        values: possible values; None is six digits of the item's own digest.
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
    """How needles are hidden.

    Attributes:
        length: tokens of text, question and answer together, by the model's tokenizer and with its begin token.
        keys: needles in a text; one is asked for, the others distract.
        depths: share of the text before the needle that is asked for.
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
    """A prompt, the values of all its keys in their order, and the right one.

    Attributes:
        tokens: of the prompt, with the begin token.
        needle_token: approximate position of the needle that is asked for.
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
    depth: float
    keys: tuple[str, ...]
    values: tuple[str, ...]
    gold: int
    others: tuple[float, ...]
    start: float


def build_items(needles: Needles, haystack: Sequence[str], count_tokens: CountTokens) -> list[NeedleItem]:
    """Build `len(depths) · items_per_depth` items, each as long as fits into `needles.length` with its answer.

    Args:
        haystack: the words of a text, which is repeated if it is too short.
        count_tokens: tokens that the model reads for a text, the begin token included.

    Raises:
        DataError: there are no words, or the length has no room for the needles, the question and an answer.
    """
    if not haystack:
        raise DataError(
            "needles need a text to be hidden in, found no words. Give the recipe's components more text, or a folder with some."
        )
    items: list[NeedleItem] = []
    for draw in _draws(needles, frozenset(haystack)):
        if (least := _least(needles, draw, count_tokens)) > needles.length:
            raise DataError(
                f"{needles.length:,} tokens have no room for {needles.keys} needles, their question and its answer, which take {least:,}: "
                "take a greater length, or fewer keys."
            )

        def tokens_of(words: int, draw: _Draw = draw) -> int:
            return count_tokens(_prompt(needles, draw, haystack, words)[0])

        words = bisect_right(range(needles.length + 1), needles.length - _answer_tokens(draw, count_tokens), key=tokens_of) - 1
        prompt, before = _prompt(needles, draw, haystack, words)
        items.append(
            NeedleItem(
                id=digest_of_json([prompt, draw.gold])[:16],
                prompt=prompt,
                choices=draw.values,
                gold=draw.gold,
                answer=draw.values[draw.gold],
                depth=draw.depth,
                tokens=count_tokens(prompt),
                needle_token=count_tokens(before),
            )
        )
    return items


def least_length(needles: Needles, count_tokens: CountTokens) -> int:
    """Tokens of the longest item without any text around its needles: a shorter length has no room for it."""
    return max(_least(needles, draw, count_tokens) for draw in _draws(needles, frozenset()))


def with_room(needles: Needles, count_tokens: CountTokens) -> Needles:
    """Reduce the keys, down to two, until the length has room for them."""
    fewer = (needles.but(keys=keys) for keys in range(needles.keys, MIN_KEYS, -1))
    return next((one for one in fewer if least_length(one, count_tokens) <= one.length), needles.but(keys=MIN_KEYS))


def _least(needles: Needles, draw: _Draw, count_tokens: CountTokens) -> int:
    return count_tokens(_prompt(needles, draw, [], 0)[0]) + _answer_tokens(draw, count_tokens)


def _answer_tokens(draw: _Draw, count_tokens: CountTokens) -> int:
    return max(MAX_NEW_TOKENS, *(count_tokens(f"{draw.keys[0]} {value}") - count_tokens(draw.keys[0]) for value in draw.values))


def _draws(needles: Needles, words: frozenset[str]) -> list[_Draw]:
    """What the digests of each item decide. Six-digit values are all different, and none is a word of the text."""

    def fraction(what: str, number: int, more: int) -> float:
        return int(digest_of_json(["needle", what, number, more])[:13], 16) / 16**13

    def some(names: Sequence[str], what: str, number: int) -> tuple[str, ...]:
        left = list(names)
        return tuple(left.pop(int(fraction(what, number, place) * len(left))) for place in range(needles.keys))

    def six_digits(number: int) -> tuple[str, ...]:
        found: list[str] = []
        attempt = 0
        while len(found) < needles.keys:
            value = str(100_000 + int(900_000 * fraction("number", number, attempt)))
            attempt += 1
            if value not in found and value not in words:
                found.append(value)
        return tuple(found)

    wording, count = needles.wording, len(needles.depths)
    return [
        _Draw(
            depth=needles.depths[number % count],
            keys=some(wording.keys, "key", number),
            values=six_digits(number) if wording.values is None else some(wording.values, "value", number),
            gold=number // count % needles.keys,
            others=tuple(fraction("depth", number, other) for other in range(needles.keys)),
            start=fraction("start", number, 0),
        )
        for number in range(count * needles.items_per_depth)
    ]


def _prompt(needles: Needles, draw: _Draw, haystack: Sequence[str], words: int) -> tuple[str, str]:
    """The prompt with so many words around its needles, and the part of it before the needle that is asked for."""
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


def names_needles(suite: str) -> bool:
    """Whether a suite's name means needles: `niah`, or `niah:LENGTH[,LENGTH…]`."""
    return suite.partition(":")[0] == NAME


def lengths_of(suite: str) -> tuple[int, ...]:
    """Read the lengths of a suite's name; none if the model decides.

    Raises:
        ConfigError: a length is not a number, too short, or named twice.
    """
    _, colon, named = suite.partition(":")
    words = named.split(",") if colon else []
    lengths = tuple(int(word) for word in words if word.isascii() and word.isdigit())
    if len(lengths) < len(words) or len(set(lengths)) < len(lengths) or any(length < MIN_LENGTH for length in lengths):
        raise ConfigError(
            f"--suite {NAME}:LENGTH[,LENGTH…] must have lengths in tokens, each once and {MIN_LENGTH} or more, found {suite!r}: for "
            f"example {NAME}:4096,8192."
        )
    return lengths


def needle_suite(lengths: Sequence[int], max_length: int) -> Suite:
    """Build both benchmarks at each length; without lengths, at a quarter, half and all of what the model reads (`max_length`)."""
    source = "after MK-NIAH of RULER, which Trinity's report names; items, words and depths are this project's"
    chosen = list(lengths) or sorted({max(MIN_LENGTH, max_length // part) for part in (4, 2, 1)})
    asked = tuple(Asked(benchmark=name, shots=0, source=source, length=length) for length in chosen for name in (NAME, WRITTEN))
    return Suite(name="-".join([NAME, *map(str, lengths)]), about="a value among several, hidden in a long text", asked=asked)


def words_of_folder(benchmarks: Path) -> Sequence[str]:
    """The words of the text files in the folder `niah` of a folder of benchmarks.

    Raises:
        DataError: there are none.
    """
    files = sorted((benchmarks / FOLDER).glob("*.txt"))
    words = [word for file in files for word in file.read_text(encoding="utf-8").split()]
    if not words:
        raise DataError(f"no text to hide needles in: put one that the model never saw into {FOLDER}/*.txt of the folder of --benchmarks")
    return words


def definition_of(asked: Asked, needles: Needles) -> Definition:
    """Build the benchmark of one length as lm-eval runs it."""
    is_written = asked.benchmark == WRITTEN
    settings: dict[str, Any] = {"test_split": "test", "doc_to_text": "{{prompt}}", "metadata": {"version": 1.0}}
    if is_written:  # the first word, without a full stop or comma behind it, must be the value
        first = [{"function": "regex", "regex_pattern": r"([^\s.,]+)", "group_select": 0}, {"function": "take_first"}]
        generation = {"until": ["\n", "."], "do_sample": False, "temperature": 0.0, "max_gen_toks": MAX_NEW_TOKENS}
        settings |= {"output_type": "generate_until", "doc_to_target": "{{answer}}", "generation_kwargs": generation}
        settings |= {"filter_list": [{"name": "first-word", "filter": first}]}
    else:
        settings |= {"output_type": "multiple_choice", "doc_to_choice": "{{choices}}", "doc_to_target": "gold"}
    metric = "exact_match" if is_written else "acc"
    return Definition(
        name=asked.benchmark,
        parts=(Part(task=f"{asked.benchmark}_{asked.length}", file=f"{FOLDER}/*.txt"),),
        metric=metric,
        filter="first-word" if is_written else "none",
        shots_split=None,
        settings=settings | {"metric_list": [{"metric": metric, "aggregation": "mean", "higher_is_better": True}]},
        remark=f"{needles.keys} keys, in words of {'this project' if needles.wording == Wording() else 'its own'}",
    )


def prepare_needles(asked: Asked, model: "JaxLanguageModel", haystack: Haystack | None, *, needles: Needles) -> Prepared:
    """Prepare the items of one length for lm-eval, or raise NotMeasured.

    Args:
        haystack: gives the words of the text; None: there is none.
        needles: number of keys, depths and words; its length is that of `asked`.
    """
    assert asked.length is not None
    if asked.length > model.max_length:
        raise NotMeasured(
            f"its items have {asked.length:,} tokens, and the model reads {model.max_length:,}: the needle would be cut off. With "
            f"--context {asked.length} it reads more than it was trained on"
        )
    if haystack is None:
        raise NotMeasured(f"no text to hide needles in: give one with --benchmarks DIR, in DIR/{FOLDER}/*.txt")
    wanted = needles.but(length=asked.length)
    try:
        items = build_items(wanted, haystack(), lambda text: len(model.tok_encode(text)))
    except DataError as error:
        raise NotMeasured(str(error)) from None
    if too_long := [item.id for item in items if item.tokens + MAX_NEW_TOKENS > asked.length]:
        raise NotMeasured(f"{len(too_long)} of its prompts are longer than the {asked.length:,} tokens that they must have with an answer")
    definition = definition_of(asked, wanted)
    lines = "".join(json.dumps(item.model_dump(mode="json"), sort_keys=True) + "\n" for item in items).encode()
    task = definition.parts[0].task
    data = {"dataset_path": "json", "dataset_name": None, "fewshot_split": None, "task": task, "num_fewshot": 0}
    part = PreparedPart(task, definition.settings | data, {"test": lines})
    return Prepared(
        definition,
        asked,
        (part,),
        items_digest=digest_of_json([[task, "test", digest_of_bytes(lines)]]),
        definition_digest=digest_of_json([version("lm_eval"), definition.metric, definition.filter, part.definition]),
    )
