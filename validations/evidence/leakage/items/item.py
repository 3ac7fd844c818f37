"""A benchmark item in its parts: what is asked, what is offered, what is right, how it is worked out, what it is about.

Each part can leak alone, so each is kept apart.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

MAX_JOINED_SHARE = 0.1
HELD_OUT = "held-out "
"""What the benchmark of a held-out document starts with, before its component."""


class BenchmarkItem(NamedTuple):
    """One test item.

    Attributes:
        benchmark: what the report names.
        task: the group of items that share a template, such as one subject; equal to `benchmark` where there is only one group.
        id: the item's own name, or its file and line; unique within a benchmark.
        question: what is asked, without frames such as "Question:" and without the options.
        choices: what is offered, without letters; empty where the answer is free.
        answer: the right choice's text, or the final answer; empty where there is none or it isn't known.
        solutions: worked solutions and code.
        passage: published source text that the question is about. It is legitimately found elsewhere, so alone it never counts.
        is_excerpt: cut from ordinary text, such as a held-out document; what has its turns of phrase is not yet a copy of it.
        is_example: of a split that nobody is judged by, such as train. It may be trained on: it is only there so that its copies aren't
            taken for edited copies of a test item like it.
    """

    benchmark: str
    task: str
    id: str
    question: str
    choices: tuple[str, ...] = ()
    answer: str = ""
    solutions: tuple[str, ...] = ()
    passage: str = ""
    is_excerpt: bool = False
    is_example: bool = False


def without_punctuation(item: BenchmarkItem) -> BenchmarkItem | None:
    """The item as a text has it whose punctuation was deleted, which joins words: `x-1` is `x1`. Nothing where that changes little."""
    bare = item._replace(
        question=_bare(item.question),
        choices=tuple(map(_bare, item.choices)),
        answer=_bare(item.answer),
        solutions=tuple(map(_bare, item.solutions)),
        passage=_bare(item.passage),
    )
    return bare if any(_joins_much(*texts) for texts in zip(_texts(item), _texts(bare), strict=True)) else None


def merge_equal(items: Iterable[BenchmarkItem]) -> list[BenchmarkItem]:
    """One item for all that ask the same, in the order given: the first stays, and gets what the others know.

    Items of one benchmark ask the same when question, passage and set of choices are the same but for white space. An item without a
    passage asks the same as the first one like it that has a passage.
    """
    groups: dict[tuple[str, str, frozenset[str]], list[BenchmarkItem]] = {}
    for item in items:
        places = groups.setdefault((item.benchmark, _squeeze(item.question), frozenset(map(_squeeze, item.choices))), [])
        for place, other in enumerate(places):
            if _squeeze(item.passage) == _squeeze(other.passage) or not (item.passage and other.passage):
                places[place] = _join(other, item)
                break
        else:
            places.append(item)
    return [item for places in groups.values() for item in places]


def _join(first: BenchmarkItem, other: BenchmarkItem) -> BenchmarkItem:
    return first._replace(
        answer=first.answer or other.answer,
        solutions=tuple(dict.fromkeys(first.solutions + other.solutions)),
        passage=first.passage or other.passage,
    )


def _squeeze(text: str) -> str:
    return " ".join(text.split())


def _texts(item: BenchmarkItem) -> tuple[str, ...]:
    return item.question, " ".join(item.choices), *item.solutions


def _bare(text: str) -> str:
    return re.sub(r"[^\w\s]|_", "", text)


def _joins_much(text: str, bare: str) -> bool:
    apart = len(re.findall(r"[^\W_]+", text))
    return apart - len(bare.split()) > MAX_JOINED_SHARE * apart
