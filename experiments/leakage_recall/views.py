"""Plain-text views of an item: complete in standard formats, or a single part."""

import csv
import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from experiments.leakage_recall.edits import SMALL_NUMERAL
from phasewise.validations.evidence.leakage.items import BenchmarkItem

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
CALCULATOR_TAG = re.compile(r"<<[-0-9.+*/=()%$, x]+>>")
Render = Callable[[BenchmarkItem, Random], str]


@dataclass(frozen=True)
class View:
    parts: tuple[str, ...]
    needs: tuple[str, ...]
    render: Render

    def can_show(self, item: BenchmarkItem) -> bool:
        return all(part_text(item, part) for part in self.needs)

    def num_words(self, item: BenchmarkItem) -> int:
        """Words of the item's own text that are shown, without labels and without a published passage."""
        shown = [part for part in self.parts if part != "answer" or "choices" not in self.parts]  # the answer is one of the choices
        return sum(len(words(part_text(item, part))) for part in shown)


def words(text: str) -> list[str]:
    """Runs of letters and digits of the lower-cased text."""
    return re.findall(r"\w+", text.lower())


def part_text(item: BenchmarkItem, part: str) -> str:
    if part == "choices":
        return "\n".join(item.choices)
    if part == "solution":
        return item.solutions[0] if item.solutions else ""
    if part == "calculator tags":
        return "<<" if CALCULATOR_TAG.search(part_text(item, "solution")) else ""
    if part == "small numerals":
        found = [numeral for numeral in SMALL_NUMERAL.findall(item.question) if numeral[0] != "<"]
        return " ".join(found) if len(found) >= MIN_NUMERALS else ""
    return item.answer if part == "answer" else item.question


def letter(number: int) -> str:
    return LETTERS[number] if number < len(LETTERS) else str(number + 1)


def gold_letter(item: BenchmarkItem) -> str:
    return letter(item.choices.index(item.answer)) if item.answer in item.choices else item.answer


def ending(item: BenchmarkItem) -> str:
    return part_text(item, "solution") or item.answer


def is_code(item: BenchmarkItem) -> bool:
    """Whether the solution is a program."""
    return bool(re.search(r"^\s*(def|return|import|for) ", part_text(item, "solution"), re.MULTILINE))


def lm_eval(item: BenchmarkItem, _rng: Random | None = None) -> str:
    passage = f"{item.passage}\n\n" if item.passage else ""
    if item.choices:
        lines = [f"{letter(i)}. {choice}" for i, choice in enumerate(item.choices)]
        return f"{passage}Question: {item.question}\n" + "\n".join(lines) + f"\nAnswer: {gold_letter(item)}"
    if is_code(item):
        return f"{item.question}\n{ending(item)}"
    return f"{passage}Question: {item.question}\nAnswer: {ending(item)}" if ending(item) else passage + item.question


def cloze(item: BenchmarkItem, _rng: Random) -> str:
    return f"Question: {item.question}\nAnswer: {item.answer}"


def olmes(item: BenchmarkItem, _rng: Random) -> str:
    if item.choices:
        lines = "".join(f"\n {letter(i)}. {choice}" for i, choice in enumerate(item.choices))
        return f"Question: {item.question}{lines}\nAnswer: {gold_letter(item)}"
    solution = CALCULATOR_TAG.sub("", ending(item)).replace("\n#### ", " So the answer is ")
    return f"Question: {item.question}\nAnswer: {solution}"


def chat(item: BenchmarkItem, rng: Random) -> str:
    choices = "".join(f"\n{letter(i)}) {choice}" for i, choice in enumerate(item.choices))
    asked, said = item.question + choices, ending(item)
    return rng.choice(
        (
            f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n{said}<|im_end|>",
            f"<|start_header_id|>user<|end_header_id|>\n\n{asked}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n{said}<|eot_id|>",
            f"<s>[INST] {asked} [/INST] {said}</s>",
            f"Human: {asked}\n\nAssistant: {said}",
            f"### Instruction:\n{asked}\n\n### Response:\n{said}",
        )
    )


def flash_card(item: BenchmarkItem, rng: Random) -> str:
    """A card of a collection, or an entry of a list of frequent questions."""
    front, back = item.question, ending(item) if item.solutions else item.answer
    return rng.choice((f"Front: {front}\nBack: {back}", f"**Q:** {front}\n\n**A:** {back}", f"{front}\n\t{back}", f"{front} :: {back}"))


def answer_first(item: BenchmarkItem, _rng: Random) -> str:
    return f"Solution: {ending(item)}\nThis answers: {item.question}"


def shuffled_choices(item: BenchmarkItem, rng: Random) -> str:
    choices = list(item.choices)
    rng.shuffle(choices)
    return lm_eval(item._replace(choices=tuple(choices)))


def relettered_choices(item: BenchmarkItem, rng: Random) -> str:
    marks = rng.choice(
        (["1) ", "2) ", "3) "], ["a) ", "b) ", "c) "], ["(A) ", "(B) ", "(C) "], ["i. ", "ii. ", "iii. "], ["- "], ["* "], [""])
    )
    lines = [f"{_mark(marks, i)}{choice}" for i, choice in enumerate(item.choices)]
    return f"{item.question}\n" + "\n".join(lines) + f"\nCorrect answer: {item.answer}"


def inline_choices(item: BenchmarkItem, _rng: Random) -> str:
    listed = " ".join(f"({letter(i)}) {choice}" for i, choice in enumerate(item.choices))
    return f"{item.question} {listed} ANSWER: {gold_letter(item)}"


def record(item: BenchmarkItem, _rng: Random) -> str:
    fields = {"question": item.question, "choices": list(item.choices), "answer": ending(item), "id": item.id}
    return json.dumps({name: value for name, value in fields.items() if value})


def separated(item: BenchmarkItem, rng: Random) -> str:
    """A row of a file with comma- or tab-separated values."""
    file = io.StringIO()
    cells = [item.id, item.question, *item.choices, ending(item)]
    csv.writer(file, delimiter=rng.choice(",\t;")).writerow(cells)
    return file.getvalue().strip()


def table_row(item: BenchmarkItem, rng: Random) -> str:
    """A row of a table in Markdown or in HTML."""
    cells = [item.question, *item.choices, ending(item)]
    if rng.random() < 0.5:
        return "| " + " | ".join(cell.replace("\n", "<br>") for cell in cells) + " |"
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def yaml_entry(item: BenchmarkItem, _rng: Random) -> str:
    """A block of YAML."""
    blocks = {"question": item.question, "options": "\n".join(item.choices), "target": ending(item)}
    indented = {name: value.replace("\n", "\n    ") for name, value in blocks.items() if value}
    return "- " + "\n  ".join(f"{name}: |\n    {value}" for name, value in indented.items())


def python_literal(item: BenchmarkItem, _rng: Random) -> str:
    """The item in a Python source."""
    return f"EXAMPLE = {{'input': {item.question!r}, 'options': {list(item.choices)!r}, 'target': {ending(item)!r}}}"


def part_alone(item: BenchmarkItem, rng: Random) -> str:
    long_enough = [part for part in ("question", "solution") if len(words(part_text(item, part))) >= MIN_WORDS]
    return part_text(item, rng.choice(long_enough or ["question"]))


@dataclass(frozen=True)
class PartAlone(View):
    def num_words(self, item: BenchmarkItem) -> int:
        return max(len(words(part_text(item, part))) for part in self.parts)


def _mark(marks: list[str], number: int) -> str:
    if number < len(marks):
        return marks[number]
    first = marks[0]
    letters = {"1) ": f"{number + 1}) ", "a) ": f"{letter(number).lower()}) ", "(A) ": f"({letter(number)}) "}
    return letters.get(first, first)


def _part(part: str) -> Render:
    return lambda item, _rng: part_text(item, part)


MIN_WORDS, MIN_NUMERALS = 13, 2
EVERYTHING = ("question", "choices", "answer", "solution")
WHOLE = View(EVERYTHING, ("question",), lm_eval)
PART = PartAlone(("question", "solution"), ("question",), part_alone)
QUESTION = View(("question",), ("question",), _part("question"))
WITH_NUMERALS = View(("question",), ("question", "small numerals"), _part("question"))
VIEWS: dict[str, View] = {
    "lm-eval's format": WHOLE,
    "cloze: question and gold answer": View(("question", "answer"), ("question", "answer"), cloze),
    "OLMES's format": View(EVERYTHING, ("question", "answer"), olmes),
    "chat markup": View(EVERYTHING, ("question",), chat),
    "flash cards": View(("question", "answer", "solution"), ("question", "answer"), flash_card),
    "answer before question": View(("question", "answer", "solution"), ("question", "answer"), answer_first),
    "question alone": QUESTION,
    "choices alone": View(("choices",), ("choices",), _part("choices")),
    "solution alone": View(("solution",), ("solution",), _part("solution")),
    "gold choice alone": View(("answer",), ("choices", "answer"), _part("answer")),
    "calculator tags kept": View(("solution",), ("calculator tags",), _part("solution")),
    "calculator tags stripped": View(
        ("solution",), ("calculator tags",), lambda item, _rng: CALCULATOR_TAG.sub("", part_text(item, "solution"))
    ),
    "calculator tags spaced out": View(
        ("solution",), ("calculator tags",), lambda item, _rng: CALCULATOR_TAG.sub(" ", part_text(item, "solution"))
    ),
    "choices shuffled": View(("question", "choices"), ("question", "choices"), shuffled_choices),
    "choices with other marks": View(("question", "choices"), ("question", "choices"), relettered_choices),
    "choices in one line": View(("question", "choices"), ("question", "choices"), inline_choices),
    "JSON-lines record": View(EVERYTHING, ("question",), record),
    "comma- and tab-separated row": View(EVERYTHING, ("question",), separated),
    "table row": View(EVERYTHING, ("question",), table_row),
    "YAML entry": View(EVERYTHING, ("question",), yaml_entry),
    "Python literal": View(EVERYTHING, ("question",), python_literal),
}
