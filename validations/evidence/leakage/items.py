"""Benchmark items from rows with any field names. Names are compared in lower case, reduced to letters and digits."""

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import NamedTuple, cast

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


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


QUESTIONS = tuple(
    tuple(shape.split("+"))
    for shape in _names(
        "body+question premise+hypothesis premise+question premise sentence1+sentence2 "
        "inputsentence1+inputsentence2+inputsentence3+inputsentence4 question questionstem questiontext questioncontent problem "
        "problemstatement goal query instruction+input instruction instructprompt completeprompt prompt prompts turns input inputs ctx "
        "ctxa+ctxb startphrase sentence stem claim statement opening description intent context text messages conversations"
    )
)
"""Fields that together hold the question. The first shape with all its fields applies."""
BLANKED = "sentence"  # in this field, an underscore between spaces is a blank for one of two options
SOURCES = ("article", "document", "paragraph", "support", "abstract", "story", "contexts")  # published text that a question is about
BACKGROUNDS = ("passage", "context", "background", "scenario")  # text that may be published or written for the test
CHOICES = _names("choices options endings answerchoices answeroptions candidates candidateanswers possibleanswers alternatives mc1targets")
CHOICE_COLUMN = r"(choice|option|opt|op|sol|solution|ending|answer|ans|candidate|sentencequiz|randomsentencequiz|)([a-j]|[0-9]{1,2})"
"""A column per choice: `option1`, `opa`, `ending0`, `answerA`, `sentence_quiz1`, or only `A`."""
WRONG_CHOICE = r"(?:incorrect|wrong)(?:answers?|choices?|options?)[0-9]*|distractors?[0-9]*"
RIGHT_CHOICE = ("correctanswer", "bestanswer", "rightanswer", "answer")
GOLD = _names(
    "answerindex answeridx correctindex correctanswerindex goldindex gold goldlabel label answerkey answerletter correctoption "
    "correctchoice correct cop answerrightending target targets answer correctanswer"
)
ANSWERS = _names(
    "answer finalanswer answernumber answers correctanswer bestanswer expectedanswer groundtruth goldanswer referenceanswer reference "
    "finaldecision target targets gold label output outputs response completion continuation"
)
SOLUTIONS = _names(
    "canonicalsolution referencecode code solution solutions rationale reasoning cotcontent cot chainofthought explanation exp longanswer"
)
IDS = _names("id taskid questionid problemid uniqueid exampleid qid uid guid key idx index ind")
NESTED = ("raw", "row", "doc")  # fields that may hold the row itself
INNER_TEXTS = _names("text texts value content spans number stem choices contexts")  # fields with the text of a value that is a row
MAX_JOINED_SHARE = 0.1
MIN_SOURCE_WORDS = 200  # a longer text next to a question with choices was published. Logic puzzles of exams are shorter
MAX_ANSWER_WORDS = 20  # a longer answer is a worked solution
PUNCTUATION = re.compile(r"[^\w\s]|_")
BLANK = re.compile(r"(?<!\w)_(?!\w)")
FINAL_ANSWER = "####"
HELD_OUT = "held-out "  # prefix of the benchmark of held-out documents, before the component
Fields = Mapping[str, object]
_QUESTION_SHAPES = tuple((names, frozenset(names)) for names in QUESTIONS)


class BenchmarkItem(NamedTuple):
    """One test item."""

    benchmark: str
    task: str  # group of items with one template, such as a subject. Equal to `benchmark` if the benchmark has one group
    id: str  # the item's id, or its file and line. Unique within a benchmark
    question: str  # question without frames such as "Question:" and without options
    choices: tuple[str, ...] = ()  # options without letters
    answer: str = ""  # text of the right choice, or the final answer
    solutions: tuple[str, ...] = ()  # worked solutions and code
    passage: str = ""  # published source text, which never counts without the question
    is_excerpt: bool = False  # part of ordinary text, such as a held-out document. Only a copy counts, not its turns of phrase
    is_example: bool = False
    """Item of a split without evaluation, such as train. Prevents that its copies are taken for edited copies of a similar test item."""


def without_punctuation(item: BenchmarkItem) -> BenchmarkItem | None:
    """Return the item without punctuation, which joins words (`x-1` becomes `x1`), or None if few words join."""
    bare = partial(PUNCTUATION.sub, "")
    reading = item._replace(
        question=bare(item.question),
        choices=tuple(map(bare, item.choices)),
        answer=bare(item.answer),
        solutions=tuple(map(bare, item.solutions)),
        passage=bare(item.passage),
    )
    texts, bare_texts = ((one.question, " ".join(one.choices), *one.solutions) for one in (item, reading))
    for text, joined in zip(texts, bare_texts, strict=True):
        apart = len(re.findall(r"[^\W_]+", text))
        if apart - len(joined.split()) > MAX_JOINED_SHARE * apart:
            return reading
    return None


def merge_equal(items: Iterable[BenchmarkItem]) -> list[BenchmarkItem]:
    """Merge equal items in the given order: the first item gets missing fields from the others.

    Equal items of a benchmark have the same question, passage and set of choices except for white space. An item without a passage equals
    the first such item with a passage.
    """

    def squeeze(text: str) -> str:
        return " ".join(text.split())

    groups: dict[tuple[str, str, frozenset[str]], list[BenchmarkItem]] = {}
    for item in items:
        group = groups.setdefault((item.benchmark, squeeze(item.question), frozenset(map(squeeze, item.choices))), [])
        for place, other in enumerate(group):
            if squeeze(item.passage) == squeeze(other.passage) or not (item.passage and other.passage):
                group[place] = other._replace(
                    answer=other.answer or item.answer,
                    solutions=tuple(dict.fromkeys(other.solutions + item.solutions)),
                    passage=other.passage or item.passage,
                )
                break
        else:
            group.append(item)
    return [item for group in groups.values() for item in group]


def _named_fields(row: Fields) -> dict[str, object]:
    """Return the row's fields by reduced name. Fields of a nested row replace the outer fields except ids."""
    fields = {_spelling(str(name)): value for name, value in row.items()}
    for name in NESTED:
        inner = fields.get(name)
        if isinstance(inner, dict):
            return {**{key: fields[key] for key in IDS if key in fields}, **_named_fields(cast(Fields, inner))}
    question = fields.get("question")
    if isinstance(question, dict):
        return {**{key: value for key, value in fields.items() if key != "question"}, **_named_fields(cast(Fields, question))}
    return fields


@lru_cache(maxsize=4096)
def _spelling(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _texts_of(value: object) -> tuple[str, ...]:
    """Return the texts of a value: the value, its members, or its field of text. Numbers and booleans become words."""
    if value is None:
        return ()
    if isinstance(value, bool):
        return ("yes" if value else "no",)
    if isinstance(value, float) and value.is_integer():
        return (str(int(value)),)
    if isinstance(value, str):
        listed = _listed(value)
        return _texts_of(listed) if listed is not None else (value,) if value.strip() else ()
    if isinstance(value, dict):
        inner = _named_fields(cast(Fields, value))
        return next((texts for name in INNER_TEXTS if (texts := _texts_of(inner.get(name)))), ())
    if isinstance(value, list | tuple):
        return tuple(text for member in cast(Sequence[object], value) for text in _texts_of(member))
    return (str(value),)


def _listed(text: str) -> list[object] | None:
    """Return the list that a string spells as JSON or Python."""
    if not (text.startswith("[") and text.rstrip().endswith("]")):
        return None
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return cast(list[object], value) if isinstance(value, list) else None


class Options(NamedTuple):
    """Choices. `labels` are the names of the choices. `numbered`: the choices are columns numbered from 1."""

    texts: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    gold: object = None
    numbered: bool = False


def _options_of(fields: Fields) -> Options:
    """Find the choices: in one field, in a column per choice, or as a right choice and wrong choices."""
    for name in (*CHOICES, *(("answers",) if "label" in fields else ())):
        if name in fields and (found := _listed_options(fields[name])).texts:
            return found
    columns: dict[str, dict[str, str]] = {}
    for name, value in fields.items():
        match = re.fullmatch(CHOICE_COLUMN, name)
        if match and isinstance(value, str | int | float) and (texts := _texts_of(value)):
            columns.setdefault(match[1], {})[match[2].upper()] = texts[0].strip()
    for column in columns.values():
        labels = tuple(sorted(column, key=lambda label: (len(label), label)))
        if len(labels) > 1 and labels[0] in ("A", "0", "1"):
            return Options(tuple(column[label] for label in labels), labels if labels[0] == "A" else (), numbered=labels[0] == "1")
    wrong = [text for name, value in fields.items() if re.fullmatch(WRONG_CHOICE, name) for text in _texts_of(value)]
    right = next((texts[0] for name in RIGHT_CHOICE if (texts := _texts_of(fields.get(name)))), "")
    return Options(tuple(text.strip() for text in (right, *wrong)), gold=right) if wrong and right else Options()


def _listed_options(value: object) -> Options:
    """Read the choices of one field: a list, a list of rows, texts with labels, labels as names, or one string."""
    if isinstance(value, str) and _listed(value) is None:
        value = split_options(f"Options: {value}").options
    labels: tuple[str, ...] = ()
    gold: object = None
    texts = _texts_of(value)
    if isinstance(value, dict):
        members = cast(Fields, value)
        inner = _named_fields(members)
        marks = cast(Sequence[object], inner.get("label", inner.get("labels", inner.get("key"))) or ())
        if all(isinstance(text, str) and letter_index(str(name)) is not None for name, text in members.items()):
            texts, labels = tuple(str(text) for text in members.values()), tuple(str(name) for name in members)
        elif len(marks) == len(texts) and all(mark in (0, 1) for mark in marks):
            gold = texts[list(marks).index(1)] if 1 in marks else None
        elif len(marks) == len(texts):
            labels = _texts_of(tuple(marks))
    elif isinstance(value, list | tuple):
        rows = [_named_fields(cast(Fields, member)) for member in cast(Sequence[object], value) if isinstance(member, dict)]
        labels = tuple(str(row.get("label", row.get("key", row.get("id", "")))) for row in rows)
    texts = tuple(text.strip() for text in texts)
    if not labels:
        texts, labels = strip_letters(texts)
    return Options(texts, labels if len(labels) == len(texts) else (), gold)


class ParsedRow(NamedTuple):
    """A row before its right choice is known: only the whole file shows whether choices count from 0 or from 1."""

    question: str
    options: Options
    gold: object
    answer: str
    solutions: tuple[str, ...]
    passage: str
    id: str
    completions: tuple[str, ...] = ()  # the question with each choice filled in, if the choices are part of the question


def parse_row(row: Fields) -> ParsedRow | None:
    """Split a row into its parts. None if no field reads as a question."""
    fields = _named_fields(row)
    if "contextoptions" in fields and "continuation" in fields:
        # Several beginnings of a sentence with one end: the choices are the differences of the beginnings
        beginnings, end = _texts_of(fields["contextoptions"]), " ".join(_texts_of(fields["continuation"]))
        gap = " " if end[:1].isalnum() else ""
        completions = tuple(f"{beginning.strip()}{gap}{end.strip()}" for beginning in beginnings)
        question, options = completions[0] if completions else end, Options(distinct_parts(beginnings))
        return ParsedRow(question, options, _first(fields, GOLD), "", (), "", id_of(fields), completions)
    names = next((names for names, needed in _QUESTION_SHAPES if needed <= fields.keys() and _question(fields, names)), None)
    options = _options_of(fields)
    if names is None and not options.texts:
        return None
    names = names or ()
    rest = {name: value for name, value in fields.items() if name not in names}
    gold = options.gold if options.gold is not None else _first(rest, GOLD)
    question, background = strip_frame(_question(fields, names)), ""
    split = split_options(question)
    if options.texts and not are_letters(options.texts):
        without = without_options(question, options.texts)
        background, question = split_background(without) if without != question else ("", question)
    elif split.options and (split.labelled or options.texts or (isinstance(gold, str) and letter_index(gold) is not None)):
        background, question = split_background(split.question)
        options = Options(split.options)
    else:
        options = Options()
    # Published source text, and text that belongs to the question
    sources = [text for name in SOURCES if name in rest for text in _texts_of(rest[name])]
    backgrounds = [background, *(text for name in BACKGROUNDS if name in rest for text in _texts_of(rest[name]))]
    background = "\n".join(filter(None, backgrounds)).strip()
    if not options.texts or len(background.split()) > MIN_SOURCE_WORDS:
        sources, background = [*sources, background], ""
    passage = "\n".join(text.strip() for text in sources if text).strip()
    answer, solutions = _answer_and_solutions(fields, rest)
    if not answer and not options.texts and passage and gold in (0, 1):
        answer = ("no", "yes")[bool(gold)]
    question = "\n".join(filter(None, (background, question)))
    completions: tuple[str, ...] = ()
    if names == (BLANKED,) and len(BLANK.findall(question)) == 1:
        completions = tuple(BLANK.sub(lambda _, text=text: text, question) for text in options.texts)
    return ParsedRow(question, options, gold, answer, solutions, passage, id_of(rest), completions)


def _answer_and_solutions(fields: Fields, rest: Fields) -> tuple[str, tuple[str, ...]]:
    """Find the final answer of an open question, and worked solutions. A text with both is split."""
    answer = ""
    solutions = [text for name in SOLUTIONS if name in rest for text in _texts_of(rest[name])]
    texts: list[str] = []
    for name in ANSWERS:
        is_class = name in ("label", "gold") and isinstance(rest.get(name), int) and not isinstance(rest.get(name), bool)
        if name in rest and not is_class:  # the number of a class is not an answer
            texts += _texts_of(rest[name])
    texts += [text for name in ("messages", "conversations") for text in _turns(fields.get(name), asked=False)]
    for text in texts:
        worked, mark, final = text.rpartition(FINAL_ANSWER)
        if mark:
            solutions.append(worked.strip())
            answer = answer or final.strip()
        elif len(text.split()) > MAX_ANSWER_WORDS:
            solutions.append(text)
        else:
            answer = answer or text.strip()
    for text in () if answer else solutions:  # the content of the last `\\boxed{…}`
        _, mark, boxed = text.rpartition("\\boxed{")
        depth = 1
        for place, letter in enumerate(boxed if mark else ""):
            depth += {"{": 1, "}": -1}.get(letter, 0)
            if depth == 0:
                answer = answer or boxed[:place].strip()
                break
    return answer, tuple(dict.fromkeys(text.strip("\r\n").rstrip() for text in solutions))


def first_index(rows: Iterable[ParsedRow]) -> int:
    """Return the number of the first choice in these rows: 1 if no right choice is 0 and one is the number of choices, else 0."""
    numbers = [(number, row) for row in rows if row.options.texts and (number := _number(row)) is not None]
    if any(number == 0 for number, _ in numbers) or not numbers:
        return 0
    if any(number == len(row.options.texts) for number, row in numbers):
        return 1
    return int(all(row.options.numbered and isinstance(row.gold, str) for _, row in numbers))


def as_item(row: ParsedRow, *, first: int, benchmark: str, task: str, id: str) -> BenchmarkItem:
    """Build the item of a row. `first` is the number of the first choice."""
    texts, labels = row.options.texts, row.options.labels
    gold, number = None, _number(row) if texts else None
    if number is not None:
        gold = number - first if 0 <= number - first < len(texts) else None
    elif texts:
        # Labels come before texts, texts before letters
        given = str(row.gold).strip() if row.gold is not None else ""
        spellings = (given, given.casefold(), given.strip("().: ").upper())
        named = ([label.upper() for label in labels], list(texts), [text.casefold() for text in texts])
        gold = next((names.index(spelling) for names in named for spelling in spellings if spelling in names), letter_index(given))
        gold = gold if gold is not None and gold < len(texts) else None
    answer = row.answer if not texts else ""
    if gold is not None:
        answer = texts[gold]
    elif texts and isinstance(row.gold, str) and letter_index(row.gold) is None and not row.gold.strip().isdecimal():
        answer = row.gold.strip()
    question = row.question if gold is None or not row.completions else row.completions[gold]
    return BenchmarkItem(benchmark, task, id, question, tuple(filter(None, texts)), answer, row.solutions, row.passage)


def id_of(row: Fields) -> str:
    """Return the row's id, or an empty text."""
    fields = _named_fields(row)
    found = (fields[name] for name in IDS if name in fields)
    return next((str(value) for value in found if isinstance(value, str | int) and str(value).strip()), "")


def _question(fields: Fields, names: tuple[str, ...]) -> str:
    texts = [text for name in names if (text := "\n".join(_turns(fields[name], asked=True)).strip())]
    asked = [text for text in texts if len(text.split()) > 1]  # skips COPA's question, "cause" or "effect"
    return "\n".join(asked or texts)


def _turns(value: object, *, asked: bool) -> tuple[str, ...]:
    """Return the texts of a question. In a conversation, return the user's turns, or the other turns if not `asked`."""
    if isinstance(value, str):
        return (value,) if asked else ()
    members = cast(Sequence[object], value) if isinstance(value, list | tuple) else ()
    turns = [cast(Fields, member) for member in members if isinstance(member, dict)]
    if not turns:
        return _texts_of(value) if asked else ()
    return tuple(text for turn in turns if (turn.get("role", turn.get("from")) in ("user", "human")) == asked for text in _texts_of(turn))


def _number(row: ParsedRow) -> int | None:
    gold = row.gold
    if isinstance(gold, int):
        return int(gold)
    is_number = isinstance(gold, str) and gold.strip().isdecimal() and gold.strip() not in row.options.labels + row.options.texts
    return int(cast(str, gold)) if is_number else None


def _first(fields: Fields, names: Sequence[str]) -> object:
    """Return the first field of these names that is not empty, or the first member of a list."""
    for name in names:
        value = fields.get(name)
        if isinstance(value, list):
            value = next(iter(cast(list[object], value)), None)
        if isinstance(value, dict):
            value = next(iter(_texts_of(cast(Fields, value))), None)
        if value is not None and value != "":
            return value
    return None
