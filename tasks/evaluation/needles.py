"""Needles in a haystack with several keys (MK-NIAH): a question about one of several values in a long text, at any length.

The format follows the multi-key task of RULER (Hsieh et al., 2024) in this project's words. Digests decide everything: equal text,
tokenizer and settings give equal items. `niah:8192` is a choice among the values of all keys in a text of 8,192 tokens, and
`niah_written:8192` lets the model write the value.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import Field

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
MAX_NEW_TOKENS = 8  # room for the answer, enough for the default values at one token per byte
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
KEYS = tuple(f"{colour} {thing}" for colour in _COLOURS for thing in _THINGS)
NEEDLE = "The secret number of the {key} is {value}."
QUESTION = "What is the secret number of the {key}? The secret number of the {key} is"


class Needles(Frozen):
    """Settings of the items. `length` counts text, question, answer and BOS token. `depths` are shares of the text before the answer."""

    length: int = Field(ge=MIN_LENGTH)
    keys: int = Field(default=4, ge=MIN_KEYS, le=len(KEYS))
    depths: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(default=(0.0, 0.25, 0.5, 0.75, 1.0), min_length=1)
    items_per_depth: int = Field(default=8, gt=0)


class NeedleItem(Frozen):
    """A prompt with the values of all keys. `needle_token` is the approximate position of the answer's needle."""

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
    """Build items that fill `needles.length` with their answers. A short haystack is repeated. `count_tokens` includes the BOS token."""
    if not haystack:
        raise DataError(
            "needles need a text to be hidden in, found no words. Give the recipe's components more text, or a folder with some."
        )
    items: list[NeedleItem] = []
    for draw in _draws(needles, frozenset(haystack)):
        least, answer_tokens = _least(needles, draw, count_tokens)
        if least > needles.length:
            raise DataError(
                f"{needles.length:,} tokens have no room for {needles.keys} needles, their question and its answer, which take {least:,}: "
                "take a greater length, or fewer keys."
            )
        room, numbers = needles.length - answer_tokens, range(needles.length + 1)
        words = bisect_right(numbers, room, key=lambda words, draw=draw: count_tokens(_prompt(needles, draw, haystack, words)[0])) - 1
        prompt, before = _prompt(needles, draw, haystack, words)
        items.append(
            NeedleItem(
                id=digest_of_json([prompt, draw.gold])[:16], prompt=prompt, choices=draw.values, gold=draw.gold,
                answer=draw.values[draw.gold], depth=draw.depth, tokens=count_tokens(prompt), needle_token=count_tokens(before),
            )
        )  # fmt: skip
    return items


def least_length(needles: Needles, count_tokens: CountTokens) -> int:
    """Return the tokens of the longest item without surrounding text."""
    return max(_least(needles, draw, count_tokens)[0] for draw in _draws(needles, frozenset()))


def _least(needles: Needles, draw: _Draw, count_tokens: CountTokens) -> tuple[int, int]:
    """Return the tokens of an item without surrounding text, and the tokens of its answer."""
    key = draw.keys[0]
    answer = max(MAX_NEW_TOKENS, *(count_tokens(f"{key} {value}") - count_tokens(key) for value in draw.values))
    return count_tokens(_prompt(needles, draw, [], 0)[0]) + answer, answer


def _draws(needles: Needles, words: frozenset[str]) -> list[_Draw]:
    """Draw keys, values and positions by digests. Six-digit values are distinct and absent from `words`."""

    def fraction(kind: str, number: int, more: int) -> float:
        return int(digest_of_json(["needle", kind, number, more])[:13], 16) / 16**13

    draws: list[_Draw] = []
    count = len(needles.depths)
    for number in range(count * needles.items_per_depth):
        left = list(KEYS)
        keys = tuple(left.pop(int(fraction("key", number, draw) * len(left))) for draw in range(needles.keys))
        values: list[str] = []
        attempt = 0
        while len(values) < needles.keys:
            value = str(100_000 + int(900_000 * fraction("number", number, attempt)))
            attempt += 1
            if value not in values and value not in words:
                values.append(value)
        depth, gold = needles.depths[number % count], number // count % needles.keys
        others = tuple(fraction("depth", number, other) for other in range(needles.keys))
        draws.append(_Draw(depth, keys, tuple(values), gold, others, fraction("start", number, 0)))
    return draws


def _prompt(needles: Needles, draw: _Draw, haystack: Sequence[str], words: int) -> tuple[str, str]:
    """Return the prompt with `words` words around its needles, and the text before the answer's needle."""
    first = int(draw.start * len(haystack))
    text = [haystack[(first + word) % len(haystack)] for word in range(words)]
    depths = [draw.depth if key == draw.gold else other for key, other in enumerate(draw.others)]
    parts: list[str] = []
    done = 0
    before = ""
    for number in sorted(range(needles.keys), key=lambda number: (depths[number], number)):
        at = round(depths[number] * words)
        parts += text[done:at]
        if number == draw.gold:
            before = " ".join(parts)
        parts.append(NEEDLE.format(key=draw.keys[number], value=draw.values[number]))
        done = at
    return re.sub(" +", " ", " ".join([*parts, *text[done:], QUESTION.format(key=draw.keys[draw.gold])])), before


def lengths_of(suite: str) -> tuple[int, ...]:
    """Read the lengths in a suite's name, or raise a ConfigError for invalid, short or repeated lengths."""
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
    """Build both benchmarks at each length. The default is a quarter, half and all of the model's `max_length`."""
    source = "after MK-NIAH of RULER, which Trinity's report names; items, words and depths are this project's"
    chosen = list(lengths) or sorted({max(MIN_LENGTH, max_length // part) for part in (4, 2, 1)})
    asked = tuple(Asked(benchmark=name, shots=0, source=source, length=length) for length in chosen for name in (NAME, WRITTEN))
    return Suite(name="-".join([NAME, *map(str, lengths)]), about="a value among several, hidden in a long text", asked=asked)


def words_of_folder(benchmarks: Path) -> Sequence[str]:
    """Read the words of `niah/*.txt` in the folder of benchmarks. A DataError reports missing text."""
    files = sorted((benchmarks / FOLDER).glob("*.txt"))
    words = [word for file in files for word in file.read_text(encoding="utf-8").split()]
    if not words:
        raise DataError(f"no text to hide needles in: put one that the model never saw into {FOLDER}/*.txt of the folder of --benchmarks")
    return words


def definition_of(asked: Asked, needles: Needles) -> Definition:
    """Build the lm-eval benchmark of one length."""
    is_written = asked.benchmark == WRITTEN
    settings: dict[str, Any] = {"test_split": "test", "doc_to_text": "{{prompt}}", "metadata": {"version": 1.0}}
    if is_written:  # compare the first word without punctuation
        first = [{"function": "regex", "regex_pattern": r"([^\s.,]+)", "group_select": 0}, {"function": "take_first"}]
        generation = {"until": ["\n", "."], "do_sample": False, "temperature": 0.0, "max_gen_toks": MAX_NEW_TOKENS}
        settings |= {"output_type": "generate_until", "doc_to_target": "{{answer}}", "generation_kwargs": generation}
        settings |= {"filter_list": [{"name": "first-word", "filter": first}]}
    else:
        settings |= {"output_type": "multiple_choice", "doc_to_choice": "{{choices}}", "doc_to_target": "gold"}
    metric = "exact_match" if is_written else "acc"
    return Definition(
        name=asked.benchmark, parts=(Part(task=f"{asked.benchmark}_{asked.length}", file=f"{FOLDER}/*.txt"),), metric=metric,
        filter="first-word" if is_written else "none", shots_split=None,
        settings=settings | {"metric_list": [{"metric": metric, "aggregation": "mean", "higher_is_better": True}]},
        remark=f"{needles.keys} keys, in words of this project",
    )  # fmt: skip


def prepare_needles(asked: Asked, model: "JaxLanguageModel", haystack: Haystack | None, *, needles: Needles) -> Prepared:
    """Prepare the items of one length for lm-eval, or raise NotMeasured. `asked.length` replaces the length of `needles`."""
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
