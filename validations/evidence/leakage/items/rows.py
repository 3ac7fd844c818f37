"""Rows of benchmark files, whatever their fields are called, read as items. The names are data: `fields.py`."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast

from phasewise.validations.evidence.leakage.items import fields as known
from phasewise.validations.evidence.leakage.items.item import BenchmarkItem
from phasewise.validations.evidence.leakage.items.options import Options, options_of
from phasewise.validations.evidence.leakage.items.prompts import (
    are_letters,
    distinct_parts,
    letter_index,
    split_background,
    split_options,
    strip_frame,
    without_options,
)
from phasewise.validations.evidence.leakage.items.values import Fields, named_fields, texts_of

MIN_SOURCE_WORDS = 200  # A longer text beside a question with choices was published; the logic puzzles of exams stay below.
MAX_ANSWER_WORDS = 20  # A longer answer is a worked solution.
BLANK = re.compile(r"(?<!\w)_(?!\w)")
FINAL_ANSWER = "####"
QUESTION_SHAPES = tuple((names, frozenset(names)) for names in known.QUESTIONS)


class ParsedRow(NamedTuple):
    """A row before its right choice is known: whether a file counts choices from 0 or from 1 only the whole file tells.

    `completions`: the question as it reads with each choice filled in, where the choices are inside it.
    """

    question: str
    options: Options
    gold: object
    answer: str
    solutions: tuple[str, ...]
    passage: str
    id: str
    completions: tuple[str, ...] = ()


def parse_row(row: Fields) -> ParsedRow | None:
    """The row's parts, or `None` where no field reads as a question."""
    fields = named_fields(row)
    if "contextoptions" in fields and "continuation" in fields:
        return _parse_completions(fields)
    names = next((names for names, needed in QUESTION_SHAPES if needed <= fields.keys() and _question(fields, names)), None)
    options = options_of(fields)
    if names is None and not options.texts:
        return None
    names = names or ()
    rest = {name: value for name, value in fields.items() if name not in names}
    gold = options.gold if options.gold is not None else _first(rest, known.GOLD)
    question, background, options = _unframe(_question(fields, names), options, gold)
    passage, background = _beside(rest, background, offers_choices=bool(options.texts))
    answer, solutions = _worked(rest, fields)
    if not answer and not options.texts and passage and gold in (0, 1):
        answer = ("no", "yes")[bool(gold)]
    question = "\n".join(filter(None, (background, question)))
    completions: tuple[str, ...] = ()
    if names == (known.BLANKED,) and len(BLANK.findall(question)) == 1:
        completions = tuple(BLANK.sub(lambda _, text=text: text, question) for text in options.texts)
    return ParsedRow(question, options, gold, answer, solutions, passage, id_of(rest), completions)


def first_index(rows: Iterable[ParsedRow]) -> int:
    """The number of the first choice in these rows: 0, or 1 where no right choice has number 0 and one has the number of the last."""
    numbers = [(number, row) for row in rows if row.options.texts and (number := _number(row)) is not None]
    if any(number == 0 for number, _ in numbers) or not numbers:
        return 0
    if any(number == len(row.options.texts) for number, row in numbers):
        return 1
    return int(all(row.options.numbered and isinstance(row.gold, str) for _, row in numbers))


def as_item(row: ParsedRow, *, first: int, benchmark: str, task: str, id: str) -> BenchmarkItem:
    """The item that the row describes; `first` is the number of the first choice."""
    texts = row.options.texts
    gold = _gold_index(row, first) if texts else None
    answer = row.answer if not texts else ""
    if gold is not None:
        answer = texts[gold]
    elif texts and isinstance(row.gold, str) and letter_index(row.gold) is None and not row.gold.strip().isdecimal():
        answer = row.gold.strip()
    question = row.question if gold is None or not row.completions else row.completions[gold]
    return BenchmarkItem(benchmark, task, id, question, tuple(filter(None, texts)), answer, row.solutions, row.passage)


def id_of(row: Fields) -> str:
    """The row's own name, or nothing."""
    fields = named_fields(row)
    found = (fields[name] for name in known.IDS if name in fields)
    return next((str(value) for value in found if isinstance(value, str | int) and str(value).strip()), "")


def _question(fields: Fields, names: tuple[str, ...]) -> str:
    texts = [text for name in names if (text := "\n".join(_turns(fields[name], asked=True)).strip())]
    asked = [text for text in texts if len(text.split()) > 1]  # COPA's "cause" and "effect" say what is asked, in one word.
    return "\n".join(asked or texts)


def _turns(value: object, *, asked: bool) -> tuple[str, ...]:
    """Texts of a question; of a conversation, what the user says, or else what is answered."""
    if isinstance(value, str):
        return (value,) if asked else ()
    members = cast(Sequence[object], value) if isinstance(value, list | tuple) else ()
    turns = [cast(Fields, member) for member in members if isinstance(member, dict)]
    if not turns:
        return texts_of(value) if asked else ()
    return tuple(text for turn in turns if (turn.get("role", turn.get("from")) in ("user", "human")) == asked for text in texts_of(turn))


def _parse_completions(fields: Fields) -> ParsedRow:
    """A row that offers beginnings of a sentence with one end: what differs between them is the choice."""
    beginnings, end = texts_of(fields["contextoptions"]), " ".join(texts_of(fields["continuation"]))
    gap = " " if end[:1].isalnum() else ""
    completions = tuple(f"{beginning.strip()}{gap}{end.strip()}" for beginning in beginnings)
    gold = _first(fields, known.GOLD)
    return ParsedRow(
        completions[0] if completions else end, Options(distinct_parts(beginnings)), gold, "", (), "", id_of(fields), completions
    )


def _unframe(text: str, options: Options, gold: object) -> tuple[str, str, Options]:
    """The question, the background that was before it in the same text, and the options, wherever they were."""
    text = strip_frame(text)
    if options.texts and not are_letters(options.texts):
        cut = without_options(text, options.texts)
        background, question = split_background(cut) if cut != text else ("", cut)
        return question, background, options
    split = split_options(text)
    if split.options and (split.labelled or options.texts or (isinstance(gold, str) and letter_index(gold) is not None)):
        background, question = split_background(split.question)
        return question, background, Options(split.options)
    return text, "", Options()


def _beside(fields: Fields, background: str, *, offers_choices: bool) -> tuple[str, str]:
    """Published source text, and text that belongs to the question."""
    sources = [text for name in known.SOURCES if name in fields for text in texts_of(fields[name])]
    texts = [background, *(text for name in known.BACKGROUNDS if name in fields for text in texts_of(fields[name]))]
    background = "\n".join(filter(None, texts)).strip()
    if not offers_choices or len(background.split()) > MIN_SOURCE_WORDS:
        sources, background = [*sources, background], ""
    return "\n".join(text.strip() for text in sources if text).strip(), background


def _worked(fields: Fields, all_fields: Fields) -> tuple[str, tuple[str, ...]]:
    """The final answer where it is free, and worked solutions. A text with both is taken apart."""
    answer = ""
    solutions = [text for name in known.SOLUTIONS if name in fields for text in texts_of(fields[name])]
    replies = [text for name in ("messages", "conversations") for text in _turns(all_fields.get(name), asked=False)]
    for text in [text for name in known.ANSWERS if name in fields for text in _answers(name, fields[name])] + replies:
        worked, mark, final = text.rpartition(FINAL_ANSWER)
        if mark:
            solutions.append(worked.strip())
            answer = answer or final.strip()
        elif len(text.split()) > MAX_ANSWER_WORDS:
            solutions.append(text)
        else:
            answer = answer or text.strip()
    answer = answer or next((boxed for text in solutions if (boxed := _boxed(text))), "")
    return answer, tuple(dict.fromkeys(text.strip("\r\n").rstrip() for text in solutions))


def _answers(name: str, value: object) -> tuple[str, ...]:
    """Texts of a field that may hold the answer. The number of a class says nothing."""
    if name in ("label", "gold") and isinstance(value, int) and not isinstance(value, bool):
        return ()
    return texts_of(value)


def _boxed(text: str) -> str:
    """What the last `\\boxed{…}` of a solution holds."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return ""
    depth = 0
    for place in range(start + len("\\boxed"), len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[start + len("\\boxed{") : place].strip()
    return ""


def _number(row: ParsedRow) -> int | None:
    """The number that names the right choice, if a number does."""
    gold = row.gold
    if isinstance(gold, int):
        return int(gold)
    is_number = isinstance(gold, str) and gold.strip().isdecimal() and gold.strip() not in row.options.labels + row.options.texts
    return int(cast(str, gold)) if is_number else None


def _gold_index(row: ParsedRow, first: int) -> int | None:
    """The place of the right choice. Labels come before texts, texts before letters and numbers."""
    texts, labels = row.options.texts, row.options.labels
    number = _number(row)
    if number is not None:
        return number - first if 0 <= number - first < len(texts) else None
    gold = str(row.gold).strip() if row.gold is not None else ""
    letter = letter_index(gold)
    for names in ([label.upper() for label in labels], list(texts), [text.casefold() for text in texts]):
        for spelling in (gold, gold.casefold(), gold.strip("().: ").upper()):
            if spelling in names:
                return names.index(spelling)
    return letter if letter is not None and letter < len(texts) else None


def _first(fields: Fields, names: Sequence[str]) -> object:
    """The first field of these names that says something; of a list, its first member."""
    for name in names:
        value = fields.get(name)
        if isinstance(value, list):
            value = next(iter(cast(list[object], value)), None)
        if isinstance(value, dict):
            value = next(iter(texts_of(cast(Fields, value))), None)
        if value is not None and value != "":
            return value
    return None
