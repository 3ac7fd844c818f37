from collections.abc import Sequence

import pytest

from phasewise.validations.evidence.leakage.items import BenchmarkItem, Fields, as_item, first_index, merge_equal, parse_row

TALE = "A wren built its nest in an old boot that hung by the garden door."
LONG_TALE = " ".join([TALE] * 20)
STEPS = "First count the eggs in the boot, which are four; then take away the one that the cuckoo ate last week, which leaves three eggs."


def read(*rows: Fields) -> list[BenchmarkItem]:
    parsed = [row for fields in rows if (row := parse_row(fields)) is not None]
    assert len(parsed) == len(rows)
    return [as_item(row, first=first_index(parsed), benchmark="birds", task="birds", id=row.id) for row in parsed]


def parts(*rows: Fields) -> list[tuple[str, tuple[str, ...], str]]:
    return [(item.question, item.choices, item.answer) for item in read(*rows)]


ASKED = "Where does the wren nest?"
OFFERED = ("in a boot", "in a hat", "in a pot")
CHOICE_ROWS: Sequence[Fields] = [
    {"question": ASKED, "choices": list(OFFERED), "answer": 1},
    {"question": ASKED, "choices": list(OFFERED), "answer": "B"},
    {"question": ASKED, "choices": list(OFFERED), "gold": [1]},
    {"question": ASKED, "choices": str(list(OFFERED)), "answer": "in a hat"},
    {"question": ASKED, "choices": {"text": list(OFFERED), "label": ["A", "B", "C"]}, "answerKey": "B"},
    {"question": ASKED, "choices": {"text": list(OFFERED), "label": ["1", "2", "3"]}, "answerKey": "2"},
    {"question": ASKED, "choices": [{"label": label, "text": text} for label, text in zip("ABC", OFFERED, strict=True)], "answerKey": "B"},
    {"question": {"stem": ASKED, "choices": [{"label": x, "text": t} for x, t in zip("ABC", OFFERED, strict=True)]}, "answerKey": "B"},
    {"question_stem": ASKED, "options": ["A)in a boot", "B)in a hat", "C)in a pot"], "correct": "B"},
    {"Problem": ASKED, "options": "a ) in a boot , b ) in a hat , c ) in a pot", "correct": "b"},
    {"question": ASKED, "options": dict(zip("ABC", OFFERED, strict=True)), "answer": "in a hat", "answer_idx": "B"},
    {"question": ASKED, "options": list(OFFERED), "answer": "B", "answer_index": 1, "cot_content": ""},
    {"question": ASKED, "mc1_targets": {"choices": list(OFFERED), "labels": [0, 1, 0]}},
    {"input": ASKED, "A": OFFERED[0], "B": OFFERED[1], "C": OFFERED[2], "target": "B"},
    {"question": ASKED, "opa": OFFERED[0], "opb": OFFERED[1], "opc": OFFERED[2], "cop": 1},
    {"ctx": ASKED, "endings": list(OFFERED), "label": "1", "activity_label": "Nesting"},
    {"goal": ASKED, "sol1": OFFERED[0], "sol2": OFFERED[1], "sol3": OFFERED[2], "label": 1},
    {"premise": ASKED, "choice1": OFFERED[0], "choice2": OFFERED[1], "choice3": OFFERED[2], "question": "cause", "label": 1},
    {"query": f"Question: {ASKED}\nA. in a boot\nB. in a hat\nC. in a pot\nAnswer: ", "choices": ["A", "B", "C"], "gold": 1},
    {"query": f"Q: {ASKED} Answer Choices: (A)in a boot (B)in a hat (C)in a pot\nA: Among A through C, the answer is",
     "choices": ["(A)in a boot", "(B)in a hat", "(C)in a pot"], "gold": [1]},
    {"query": "x", "raw": {"passage": None, "question": ASKED, "options": ["(A)in a boot", "(B)in a hat", "(C)in a pot"], "label": "B"}},
    {"input": f"{ASKED}\nOptions:\n(A) in a boot\n(B) in a hat\n(C) in a pot", "target": "(B)"},
    {"input": f"{ASKED}\nOptions:\n- in a boot\n- in a hat\n- in a pot", "target": "in a hat"},
    {"prompt": f"{ASKED}\nA) in a boot\nB) in a hat\nC) in a pot\nAnswer:", "label": "B"},
]  # fmt: skip


@pytest.mark.parametrize("row", CHOICE_ROWS, ids=lambda row: "-".join(row))
def test_choices_read_the_same_however_they_are_written(row: Fields) -> None:
    assert parts(row) == [(ASKED, OFFERED, "in a hat")]


FREE_ROWS: Sequence[tuple[Fields, tuple[str, str, tuple[str, ...]]]] = [
    ({"question": ASKED, "answer": "4 - 1 = <<4-1=3>>3\n#### 3"}, (ASKED, "3", ("4 - 1 = <<4-1=3>>3",))),
    ({"problem": ASKED, "solution": r"So \boxed{\frac{1}{3}} it is."}, (ASKED, r"\frac{1}{3}", (r"So \boxed{\frac{1}{3}} it is.",))),
    ({"Body": TALE, "Question": ASKED, "Answer": 51.0}, (f"{TALE}\n{ASKED}", "51", ())),
    ({"prompt": "def nest():", "canonical_solution": "    return 1\n"}, ("def nest():", "", ("    return 1",))),
    ({"text": "Write a function.", "code": "def f():\n  pass", "task_id": 11}, ("Write a function.", "", ("def f():\n  pass",))),
    ({"instruction": ASKED, "input": "", "output": STEPS}, (ASKED, "", (STEPS,))),
    ({"instruction": "Answer.", "input": ASKED, "response": "in a boot"}, (f"{ASKED}", "in a boot", ())),
    ({"query": ASKED, "label": "in a boot"}, (ASKED, "in a boot", ())),
    ({"context": f"Question: {ASKED}\nAnswer:", "answer": "boot", "aliases": ["Boot"]}, (ASKED, "boot", ())),
    ({"context": "The wren nested in a", "continuation": "boot"}, ("The wren nested in a", "boot", ())),
    ({"question": ASKED, "answer": {"value": "boot", "aliases": ["shoe"]}}, (ASKED, "boot", ())),
    ({"question": ASKED, "answer": None, "answer_number": 18}, (ASKED, "18", ())),
    ({"question": ASKED, "answer": True}, (ASKED, "yes", ())),
    ({"messages": [{"role": "user", "content": ASKED}, {"role": "assistant", "content": "In a boot."}]}, (ASKED, "In a boot.", ())),
    ({"conversations": [{"from": "human", "value": ASKED}, {"from": "gpt", "value": STEPS}]}, (ASKED, "", (STEPS,))),
    ({"prompt": ["Name a bird.", "And another one."], "key": 7}, ("Name a bird.\nAnd another one.", "", ())),
    ({"premise": TALE, "hypothesis": ASKED, "label": 2}, (f"{TALE}\n{ASKED}", "", ())),
    ({"text": TALE}, (TALE, "", ())),
]


@pytest.mark.parametrize(("row", "expected"), FREE_ROWS, ids=lambda value: "-".join(value) if isinstance(value, dict) else "")
def test_free_answers_and_worked_solutions_are_kept_apart(row: Fields, expected: tuple[str, str, tuple[str, ...]]) -> None:
    [item] = read(row)
    assert (item.question, item.answer, item.solutions) == expected
    assert item.choices == ()


def test_published_text_is_a_passage_and_text_written_for_the_test_is_not() -> None:
    [boolq] = read({"passage": TALE, "question": "does the wren nest in a boot", "label": 1})
    assert (boolq.question, boolq.passage, boolq.answer) == ("does the wren nest in a boot", TALE, "yes")
    [squad] = read({"context": TALE, "question": ASKED, "answers": {"text": ["an old boot"], "answer_start": [28]}})
    assert (squad.question, squad.passage, squad.answer) == (ASKED, TALE, "an old boot")
    puzzle, reading = read(*({"passage": text, "question": ASKED, "options": list(OFFERED), "label": "A"} for text in (TALE, LONG_TALE)))
    assert (puzzle.question, puzzle.passage) == (f"{TALE}\n{ASKED}", "")
    assert (reading.question, reading.passage) == (ASKED, LONG_TALE)
    framed = f"{LONG_TALE} Q: {ASKED} Answer Choices: (A)in a boot (B)in a hat (C)in a pot\nA: Among A through C, the answer is"
    [query] = read({"query": framed, "choices": ["(A)in a boot", "(B)in a hat", "(C)in a pot"], "gold": [0]})
    assert (query.question, query.passage, query.answer) == (ASKED, LONG_TALE, "in a boot")


def test_wrong_answers_beside_a_right_one_are_choices() -> None:
    for row in (
        {"Question": ASKED, "Correct Answer": "boot", "Incorrect Answer 1": "hat", "Incorrect Answer 2": "pot", "Explanation": STEPS},
        {"question": ASKED, "correct_answer": "boot", "distractor1": "hat", "distractor2": "pot", "support": TALE},
        {"question": ASKED, "best_answer": "boot", "incorrect_answers": ["hat", "pot"]},
    ):
        assert parts(row) == [(ASKED, ("boot", "hat", "pot"), "boot")]


def test_a_blank_is_filled_with_the_right_option_and_so_are_beginnings_with_one_end() -> None:
    row = {"sentence": "The wren left the boot since the _ was cold.", "option1": "wren", "option2": "boot", "answer": "2"}
    assert parts(row) == [("The wren left the boot since the boot was cold.", ("wren", "boot"), "boot")]
    assert read({**row, "answer": ""})[0].question == row["sentence"]
    assert read({"question": "Wrens live in _ .", "choices": ["boots", "hats"], "answer": 0})[0].question == "Wrens live in _ ."
    row = {"context_options": ["The wren left since the wren", "The wren left since the boot"], "continuation": "was cold.", "gold": 1}
    assert parts(row) == [("The wren left since the boot was cold.", ("wren", "boot"), "boot")]


def test_whether_choices_count_from_0_or_1_is_known_by_the_whole_file() -> None:
    rows = [{"question": ASKED, "answerA": "a hat", "answerB": "a boot", "answerC": "a pot", "label": label} for label in ("1", "2", "3")]
    assert [item.answer for item in read(*rows)] == ["a hat", "a boot", "a pot"]
    rows = [{"goal": ASKED, "sol1": "a hat", "sol2": "a boot", "label": label} for label in (1, 0)]
    assert [item.answer for item in read(*rows)] == ["a boot", "a hat"]


def test_an_unknown_or_empty_right_choice_leaves_the_answer_empty_and_a_row_without_a_question_is_none() -> None:
    assert [item.answer for item in read({"question": ASKED, "choices": list(OFFERED), "label": -1})] == [""]
    assert parts({"query": f"{ASKED}\nA. \nB. a hat", "choices": ["A", "B"], "gold": 0}) == [(ASKED, ("a hat",), "")]
    assert parse_row({"url": "here", "length": 3}) is None
    assert parse_row({"question": "  "}) is None


ITEM = BenchmarkItem("birds", "birds", "1", "How many wrens sit here?", answer="3", solutions=("one and two",))


def test_equal_questions_become_one_item_and_other_choices_and_benchmarks_are_others() -> None:
    first, shuffled, other = (ITEM._replace(choices=choices) for choices in (("a", "b"), ("b", "a"), ("a", "c")))
    foreign = first._replace(benchmark="fish")
    assert merge_equal([first, shuffled, other, foreign]) == [first, other, foreign]
    again = ITEM._replace(id="2", question="How many  wrens\nsit here?", solutions=("two and one", "one and two"))
    assert merge_equal([ITEM, again]) == [ITEM._replace(solutions=("one and two", "two and one"))]


def test_an_item_without_its_passage_is_the_same_item() -> None:
    bare, full = ITEM._replace(id="2"), ITEM._replace(passage="Three wrens sat down.")
    other = ITEM._replace(passage="Four wrens sat down.")
    for items, merged in (([full, bare], [full]), ([bare, full], [bare._replace(passage=full.passage)]), ([full, other], [full, other])):
        assert merge_equal(items) == merged
