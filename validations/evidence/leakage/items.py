"""Rows of benchmark files, whatever their fields are called, read as items. The names are data: `fields.py`."""

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, cast

from phasewise.validations.evidence.leakage import fields as known
from phasewise.validations.evidence.leakage.fields import IDS, INNER_TEXTS, NESTED
from phasewise.validations.evidence.leakage.prompts import (
    are_letters,
    distinct_parts,
    letter_index,
    split_background,
    split_options,
    strip_frame,
    strip_letters,
    without_options,
)

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
                places[place] = other._replace(
                    answer=other.answer or item.answer,
                    solutions=tuple(dict.fromkeys(other.solutions + item.solutions)),
                    passage=other.passage or item.passage,
                )
                break
        else:
            places.append(item)
    return [item for places in groups.values() for item in places]


def _squeeze(text: str) -> str:
    return " ".join(text.split())


def _texts(item: BenchmarkItem) -> tuple[str, ...]:
    return item.question, " ".join(item.choices), *item.solutions


def _bare(text: str) -> str:
    return re.sub(r"[^\w\s]|_", "", text)


def _joins_much(text: str, bare: str) -> bool:
    apart = len(re.findall(r"[^\W_]+", text))
    return apart - len(bare.split()) > MAX_JOINED_SHARE * apart


Fields = Mapping[str, object]


def named_fields(row: Fields) -> dict[str, object]:
    """The row's fields by their names as they are compared; of a row inside a row, the inner one's."""
    fields = {_spelling(str(name)): value for name, value in row.items()}
    for name in NESTED:
        inner = fields.get(name)
        if isinstance(inner, dict):
            return {**{key: fields[key] for key in IDS if key in fields}, **named_fields(cast(Fields, inner))}
    question = fields.get("question")
    if isinstance(question, dict):
        return {**{key: value for key, value in fields.items() if key != "question"}, **named_fields(cast(Fields, question))}
    return fields


@lru_cache(maxsize=4096)
def _spelling(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def texts_of(value: object) -> tuple[str, ...]:
    """The texts in a value: itself, its members, or the field of it that holds text. Numbers and truth become words."""
    if value is None:
        return ()
    if isinstance(value, bool):
        return ("yes" if value else "no",)
    if isinstance(value, float) and value.is_integer():
        return (str(int(value)),)
    if isinstance(value, str):
        listed = _listed(value)
        return texts_of(listed) if listed is not None else (value,) if value.strip() else ()
    if isinstance(value, dict):
        inner = named_fields(cast(Fields, value))
        return next((texts for name in INNER_TEXTS if (texts := texts_of(inner.get(name)))), ())
    if isinstance(value, list | tuple):
        return tuple(text for member in cast(Sequence[object], value) for text in texts_of(member))
    return (str(value),)


def _listed(text: str) -> list[object] | None:
    """The list that a string spells, as JSON or Python."""
    if not (text.startswith("[") and text.rstrip().endswith("]")):
        return None
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return cast(list[object], value) if isinstance(value, list) else None


def spells_list(text: str) -> bool:
    """Whether a string spells a list, as JSON or Python."""
    return _listed(text) is not None


class Options(NamedTuple):
    """What is offered. `labels` name the choices, where they have names; `numbered` where those are columns that count from 1."""

    texts: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    gold: object = None
    numbered: bool = False


def options_of(fields: Fields) -> Options:
    """What the row offers: in one field, in a column a choice, or as a right choice beside wrong ones."""
    for name in known.CHOICES + (("answers",) if "label" in fields else ()):
        if name in fields and (found := _listed_options(fields[name])).texts:
            return found
    columns: dict[str, dict[str, str]] = {}
    for name, value in fields.items():
        match = re.fullmatch(known.CHOICE_COLUMN, name)
        if match and isinstance(value, str | int | float) and (texts := texts_of(value)):
            columns.setdefault(match[1], {})[match[2].upper()] = texts[0].strip()
    for column in columns.values():
        labels = tuple(sorted(column, key=lambda label: (len(label), label)))
        if len(labels) > 1 and labels[0] in ("A", "0", "1"):
            return Options(tuple(column[label] for label in labels), labels if labels[0] == "A" else (), numbered=labels[0] == "1")
    wrong = [text for name, value in fields.items() if re.fullmatch(known.WRONG_CHOICE, name) for text in texts_of(value)]
    right = next((texts[0] for name in known.RIGHT_CHOICE if (texts := texts_of(fields.get(name)))), "")
    return Options(tuple(text.strip() for text in (right, *wrong)), gold=right) if wrong and right else Options()


def _listed_options(value: object) -> Options:
    """Options of one field: a list, a list of rows, texts beside labels, labels as names, or one string."""
    if isinstance(value, str) and not spells_list(value):
        value = split_options(f"Options: {value}").options
    labels: tuple[str, ...] = ()
    gold: object = None
    if isinstance(value, dict):
        inner = named_fields(cast(Fields, value))
        marks = cast(Sequence[object], inner.get("label", inner.get("labels", inner.get("key"))) or ())
        texts = texts_of(cast(Fields, value))
        if all(isinstance(text, str) and letter_index(str(name)) is not None for name, text in cast(Fields, value).items()):
            texts, labels = tuple(str(text) for text in cast(Fields, value).values()), tuple(str(name) for name in cast(Fields, value))
        elif len(marks) == len(texts) and all(mark in (0, 1) for mark in marks):
            gold = texts[list(marks).index(1)] if 1 in marks else None
        elif len(marks) == len(texts):
            labels = texts_of(tuple(marks))
    else:
        texts = texts_of(value)
        members = cast(Sequence[object], value) if isinstance(value, list | tuple) else ()
        rows = [named_fields(cast(Fields, member)) for member in members if isinstance(member, dict)]
        labels = tuple(str(row.get("label", row.get("key", row.get("id", "")))) for row in rows)
    texts = tuple(text.strip() for text in texts)
    if not labels:
        texts, labels = strip_letters(texts)
    return Options(texts, labels if len(labels) == len(texts) else (), gold)


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
        # A row that offers beginnings of a sentence with one end: what differs between them is the choice
        beginnings, end = texts_of(fields["contextoptions"]), " ".join(texts_of(fields["continuation"]))
        gap = " " if end[:1].isalnum() else ""
        completions = tuple(f"{beginning.strip()}{gap}{end.strip()}" for beginning in beginnings)
        gold = _first(fields, known.GOLD)
        return ParsedRow(
            completions[0] if completions else end, Options(distinct_parts(beginnings)), gold, "", (), "", id_of(fields), completions
        )
    names = next((names for names, needed in QUESTION_SHAPES if needed <= fields.keys() and _question(fields, names)), None)
    options = options_of(fields)
    if names is None and not options.texts:
        return None
    names = names or ()
    rest = {name: value for name, value in fields.items() if name not in names}
    gold = options.gold if options.gold is not None else _first(rest, known.GOLD)
    question, background, options = _unframe(_question(fields, names), options, gold)
    passage, background = _beside(rest, background, offers_choices=bool(options.texts))
    # The final answer where it is free, and worked solutions. A text with both is taken apart
    answer = ""
    solutions = [text for name in known.SOLUTIONS if name in rest for text in texts_of(rest[name])]
    replies = [text for name in ("messages", "conversations") for text in _turns(fields.get(name), asked=False)]
    for text in [text for name in known.ANSWERS if name in rest for text in _answers(name, rest[name])] + replies:
        worked, mark, final = text.rpartition(FINAL_ANSWER)
        if mark:
            solutions.append(worked.strip())
            answer = answer or final.strip()
        elif len(text.split()) > MAX_ANSWER_WORDS:
            solutions.append(text)
        else:
            answer = answer or text.strip()
    answer = answer or next((boxed for text in solutions if (boxed := _boxed(text))), "")
    solutions = tuple(dict.fromkeys(text.strip("\r\n").rstrip() for text in solutions))
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
