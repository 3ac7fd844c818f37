"""Prompt frames taken off benchmark texts: labels such as "Question:", cues such as "Answer:", lists of options."""

import re
from collections.abc import Sequence
from typing import NamedTuple

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
QUESTION_LABEL = re.compile(r"\A\s*(?:#+\s*|\*\*)?(?:question|q|problem|query|instruction)(?:\s+\d+)?\s*:\s*(?:\*\*)?\s*", re.IGNORECASE)
CONTEXT_LABEL = re.compile(r"\A\s*(?:context|passage)\s*:\s*(?=.*\n\s*(?:question|q)\s*:)", re.IGNORECASE | re.DOTALL)
INNER_QUESTION_LABEL = re.compile(r"(?<=\n)\s*(?:question|q)\s*:\s*", re.IGNORECASE)
CUES = (
    re.compile(
        r"(?:\A|\s)(?:#+\s*|\*\*)?(?:(?:the|your|final|correct)\s+)*answer(?:\s+is)?\s*(?:\*\*)?\s*:\s*(?:\*\*)?\s*\Z", re.IGNORECASE
    ),
    re.compile(r"(?:\A|\n)\s*(?:#+\s*|\*\*)?(?:answer|solution|response)\s*(?:\*\*)?\s*:?\s*(?:\*\*)?\s*\Z", re.IGNORECASE),
    re.compile(r"(?:\A|\n)\s*A:(?:\s*Among A through [A-Z], the answer is:?)?\s*\Z"),
    re.compile(r"(?:\A|\s)(?:A:\s*)?Let[’']s think step by step\.?\s*\Z", re.IGNORECASE),
)
OPTIONS_WORDS = ("options", "choices")
OPTIONS_LABEL = re.compile(r"(?:\A|(?<=\s))(?:answer\s+|possible\s+)?(?:options|choices)\s*:\s*", re.IGNORECASE)
FIRST_MARK = re.compile(r"(?<![\w\\])[Aa](?:\s?\)|[.:])")
DASH = re.compile(r"\s*[-*•]\s+(.+)")
LETTERED = re.compile(r"\s*(?:\(([A-Za-z])\)|([A-Za-z])\s?[).:?]|([A-Z])(?=\s))\s*")
LETTER = re.compile(r"\(?([A-Za-z])(?:\)|\.|:)?")
MIN_INLINE_OPTIONS = 3
MAX_CUE_CHARACTERS = 120


class SplitPrompt(NamedTuple):
    """A question and the options that followed it. `labelled`: a word such as "Options:" announced them."""

    question: str
    options: tuple[str, ...]
    labelled: bool


def strip_frame(text: str) -> str:
    """`text` without a leading "Question:" or "Context:" and without trailing cues such as "Answer:"."""
    text = CONTEXT_LABEL.sub("", text, count=1) if (in_context := CONTEXT_LABEL.match(text)) else QUESTION_LABEL.sub("", text, count=1)
    if in_context:
        text = INNER_QUESTION_LABEL.sub("", text, count=1)
    text = text.strip()
    while found := next((match for cue in CUES if (match := cue.search(text, len(text) - MAX_CUE_CHARACTERS))), None):
        text = text[: found.start()].strip()
    return text


def split_options(text: str) -> SplitPrompt:
    """Question and options, where `text` ends with a list of options; else all of it is the question.

    A list is lettered from A on or, after a word such as "Options:", dashed. Without such a word it starts a line, or has three options or
    more, each with its letter in parentheses.
    """
    text = text.strip()
    for label in _option_labels(text):
        options = _lettered_options(text[label.end() :], anywhere=True) or _dashed_options(text[label.end() :])
        if options:
            return SplitPrompt(text[: label.start()].strip(), options, labelled=True)
    for mark in reversed(list(FIRST_MARK.finditer(text))):
        start = mark.start() - text.endswith("(", 0, mark.start())
        starts_line = not text[:start].rpartition("\n")[2].strip()
        if starts_line or start < mark.start():
            options = _lettered_options(text[start:], anywhere=not starts_line)
            if len(options) >= (2 if starts_line else MIN_INLINE_OPTIONS):
                return SplitPrompt(text[:start].strip(), options, labelled=False)
    return SplitPrompt(text, (), labelled=False)


def without_options(text: str, options: Sequence[str]) -> str:
    """`text` without a list of just these options at its end."""
    found = split_options(text)
    if found.options and set(map(_squeeze, found.options)) <= set(map(_squeeze, options)):
        return found.question
    for label in _option_labels(text):
        tail = _squeeze(text[label.end() :])
        if options and all(_squeeze(option) in tail for option in options):
            return text[: label.start()].strip()
    return text


def split_background(text: str) -> tuple[str, str]:
    """What is before a last "Q:", and the question after it."""
    background, mark, question = text.rpartition(" Q: ")
    return (background.strip(), question.strip()) if mark else ("", text)


def strip_letters(options: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Options without their letters, and the letters: `(A)yes (B)no` gives (yes, no) and (A, B). Where not all are lettered: no letters.

    The letters may be in any order, but they are the first ones of the alphabet.
    """
    found = [LETTERED.match(option) for option in options]
    letters = tuple((match[1] or match[2] or match[3]).upper() for match in found if match)
    if len(options) < 2 or sorted(letters) != list(LETTERS[: len(options)]):
        return tuple(options), ()
    return tuple(option[match.end() :].strip() for option, match in zip(options, found, strict=True) if match), letters


def are_letters(options: Sequence[str]) -> bool:
    """Whether the options are bare letters from A on: what they stand for is in the question."""
    return len(options) > 1 and [letter_index(option) for option in options] == list(range(len(options)))


def letter_index(text: str) -> int | None:
    """0 for `A`, `(a)`, `A.`; `None` where `text` isn't one letter."""
    match = LETTER.fullmatch(text.strip())
    return LETTERS.index(match[1].upper()) if match else None


def distinct_parts(texts: Sequence[str]) -> tuple[str, ...]:
    """What is left of each text without the words that all begin and all end with."""
    words = [text.split() for text in texts]
    start = 0
    while all(len(row) > start + 1 for row in words) and len({row[start] for row in words}) == 1:
        start += 1
    end = 0
    while all(len(row) > start + end + 1 for row in words) and len({row[-1 - end] for row in words}) == 1:
        end += 1
    return tuple(" ".join(row[start : len(row) - end]) for row in words)


def _option_labels(text: str) -> list[re.Match[str]]:
    """Words such as "Options:" that may announce a list, the last one first."""
    # A plain search for the words is faster by far, and most texts have none.
    folded = text.lower()
    return list(reversed(list(OPTIONS_LABEL.finditer(text)))) if any(word in folded for word in OPTIONS_WORDS) else []


def _lettered_options(text: str, *, anywhere: bool) -> tuple[str, ...]:
    """Options of a text that is a list from its first letter to its end; none where it isn't. Marks all look like the first."""
    text = text.strip()
    first = re.match(r"(\(?)([Aa])(\s?\)|[.:]|(?=\s))", text)
    if not first:
        return ()
    alphabet = LETTERS if first[2] == "A" else LETTERS.lower()
    before = r"\s+|(?<=[^\w\s])" if anywhere else r"\s*\n\s*"
    after = re.escape(first[3]) or r"(?=\s)"
    starts, ends = [first.end()], list[int]()
    for letter in alphabet[1:]:
        mark = re.compile(f"(?:{before}){re.escape(first[1])}{letter}{after}")
        match = mark.search(text, starts[-1])
        if not match:
            break
        ends.append(match.start())
        starts.append(match.end())
    options = tuple(text[start:end].strip(" \n\t,") for start, end in zip(starts, [*ends, len(text)], strict=True))
    return options if (len(options) > 1 or first[1]) and any(options) else ()


def _dashed_options(text: str) -> tuple[str, ...]:
    lines = [DASH.fullmatch(line) for line in text.strip().split("\n")]
    options = tuple(line[1].strip() for line in lines if line)
    return options if len(options) == len(lines) > 1 else ()


def _squeeze(text: str) -> str:
    return " ".join(text.split()).casefold()
