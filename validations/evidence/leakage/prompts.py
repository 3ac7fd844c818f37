"""Removal of prompt frames from benchmark texts: labels such as "Question:", cues such as "Answer:", and lists of options."""

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
OPTIONS_LABEL = re.compile(r"(?:\A|(?<=\s))(?:answer\s+|possible\s+)?(?:options|choices)\s*:\s*", re.IGNORECASE)
FIRST_MARK = re.compile(r"(?<![\w\\])[Aa](?:\s?\)|[.:])")
DASH = re.compile(r"\s*[-*•]\s+(.+)")
LETTERED = re.compile(r"\s*(?:\(([A-Za-z])\)|([A-Za-z])\s?[).:?]|([A-Z])(?=\s))\s*")
LETTER = re.compile(r"\(?([A-Za-z])(?:\)|\.|:)?")
MIN_INLINE_OPTIONS = 3
MAX_CUE_CHARACTERS = 120


class SplitPrompt(NamedTuple):
    """A question and its options. `labelled`: a word such as "Options:" precedes the options."""

    question: str
    options: tuple[str, ...]
    labelled: bool


def strip_frame(text: str) -> str:
    """Remove a leading "Question:" or "Context:" and trailing cues such as "Answer:"."""
    if CONTEXT_LABEL.match(text):
        text = INNER_QUESTION_LABEL.sub("", CONTEXT_LABEL.sub("", text, count=1), count=1)
    else:
        text = QUESTION_LABEL.sub("", text, count=1)
    text = text.strip()
    while found := next((match for cue in CUES if (match := cue.search(text, len(text) - MAX_CUE_CHARACTERS))), None):
        text = text[: found.start()].strip()
    return text


def split_options(text: str) -> SplitPrompt:
    """Split a text that ends with a list of options.

    A list has letters from A or, after a word such as "Options:", dashes. Without such a word, the list starts a line or has at least three
    options with letters in parentheses.
    """
    text = text.strip()
    for label in _option_labels(text):
        tail = text[label.end() :]
        options = _lettered_options(tail, anywhere=True)
        if not options:
            lines = [DASH.fullmatch(line) for line in tail.strip().split("\n")]
            dashed = tuple(line[1].strip() for line in lines if line)
            options = dashed if len(dashed) == len(lines) > 1 else ()
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
    """Remove a list of these options from the end of a text."""
    found = split_options(text)
    if found.options and set(map(_squeeze, found.options)) <= set(map(_squeeze, options)):
        return found.question
    for label in _option_labels(text):
        tail = _squeeze(text[label.end() :])
        if options and all(_squeeze(option) in tail for option in options):
            return text[: label.start()].strip()
    return text


def split_background(text: str) -> tuple[str, str]:
    """Split a text at its last "Q:" into background and question."""
    background, mark, question = text.rpartition(" Q: ")
    return (background.strip(), question.strip()) if mark else ("", text)


def strip_letters(options: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split options and their letters, in any order: `(A)yes (B)no` gives (yes, no) and (A, B). If a letter is missing, none is removed."""
    found = [LETTERED.match(option) for option in options]
    letters = tuple((match[1] or match[2] or match[3]).upper() for match in found if match)
    if len(options) < 2 or sorted(letters) != list(LETTERS[: len(options)]):
        return tuple(options), ()
    return tuple(option[match.end() :].strip() for option, match in zip(options, found, strict=True) if match), letters


def are_letters(options: Sequence[str]) -> bool:
    """Return whether the options are only letters from A, so that the question holds their texts."""
    return len(options) > 1 and [letter_index(option) for option in options] == list(range(len(options)))


def letter_index(text: str) -> int | None:
    """Return 0 for `A`, `(a)` or `A.`, and None if the text is not one letter."""
    match = LETTER.fullmatch(text.strip())
    return LETTERS.index(match[1].upper()) if match else None


def distinct_parts(texts: Sequence[str]) -> tuple[str, ...]:
    """Remove the first and last words that all texts share."""
    words = [text.split() for text in texts]
    start = 0
    while all(len(row) > start + 1 for row in words) and len({row[start] for row in words}) == 1:
        start += 1
    end = 0
    while all(len(row) > start + end + 1 for row in words) and len({row[-1 - end] for row in words}) == 1:
        end += 1
    return tuple(" ".join(row[start : len(row) - end]) for row in words)


def _option_labels(text: str) -> list[re.Match[str]]:
    """Find words such as "Options:", the last first. Most texts have none, which a plain search finds much faster."""
    folded = text.lower()
    return list(reversed(list(OPTIONS_LABEL.finditer(text)))) if "options" in folded or "choices" in folded else []


def _lettered_options(text: str, *, anywhere: bool) -> tuple[str, ...]:
    """Split a text that is a list with letters in one style. Return no options for any other text."""
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


def _squeeze(text: str) -> str:
    return " ".join(text.split()).casefold()
