import gzip
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from phasewise.trainer.base.errors import DataError
from phasewise.validations.evidence.leakage.index import LeakageIndex
from phasewise.validations.evidence.leakage.item_files import read_benchmarks, read_examples, read_items
from tests.shared_data import shared_folder

# Items after equal ones are merged: lines of the test files less the questions that are there twice.
SHARED_COUNTS = {
    "agieval": 2339, "arc_challenge": 1172, "arc_easy": 2376, "bbh": 6506, "boolq": 3270, "commonsense_qa": 1221, "copa": 100,
    "gsm8k": 1319, "hellaswag": 2000, "hendrycks_math": 5000, "humaneval": 164, "ifeval": 541, "lambada_openai": 5151, "mbpp": 499,
    "mmlu": 13936, "mmlu_pro": 11873, "openbookqa": 500, "piqa": 1838, "social_iqa": 1935, "triviaqa_sub3000": 3000,
    "winogrande": 1267, "wsc273": 273,
}  # fmt: skip


def write(path: Path, *questions: str) -> Path:

    path.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(json.dumps({"question": question, "answer": "3"}) + "\n" for question in questions).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def write_all(folder: Path, **files: str) -> None:
    """Files of one question, by names in which `__` stands for a slash."""
    for name, question in files.items():
        write(folder / f"{name.replace('__', '/')}.jsonl", question)


def names(path: Path) -> list[tuple[str, str, str, str]]:
    return [(item.benchmark, item.task, item.id, item.question) for item in read_items(path)]


def test_a_benchmarks_folder_gives_its_test_files_only(tmp_path: Path) -> None:
    write_all(tmp_path / "birds", **{name: f"not this {name}" for name in ("train", "dev", "validation", "prompt", "few_shot")})
    write(tmp_path / "birds" / "test.jsonl", "How many wrens?", "How many owls?")
    write(tmp_path / "birds" / "test_socratic.jsonl.gz", "How many wrens?", "How many larks?")
    write(tmp_path / "birds" / "fjord_test.jsonl", "How many gulls?")
    assert sorted(names(tmp_path / "birds")) == [
        ("birds", "birds", "test:1", "How many wrens?"), ("birds", "birds", "test:2", "How many owls?"),
        ("birds", "fjord", "fjord_test:1", "How many gulls?"), ("birds", "socratic", "test_socratic:2", "How many larks?"),
    ]  # fmt: skip


def test_the_other_splits_are_examples(tmp_path: Path) -> None:
    for name in ("train", "dev", "validation", "prompt"):
        write(tmp_path / "birds" / f"{name}.jsonl", f"How many of {name}?", f"How many of {name}?")
    write(tmp_path / "birds" / "test.jsonl", "How many wrens?", "How many of train?")
    write(tmp_path / "birds" / "leftover.jsonl", "of no split")
    for folder in (tmp_path, tmp_path / "birds"):
        assert not any(item.is_example for item in read_items(folder))
        examples = read_examples(folder)
        assert sorted(item.question for item in examples) == [f"How many of {name}?" for name in ("dev", "prompt", "train", "validation")]
        assert all(item.is_example and item.benchmark == item.task == "birds" for item in examples)
        assert read_benchmarks(folder) == [*read_items(folder), *examples]
    LeakageIndex.build(read_benchmarks(tmp_path))


def test_where_validation_is_evaluated_it_is_no_example(tmp_path: Path) -> None:
    write_all(tmp_path / "birds", validation="How many wrens?", train__0="How many owls?", dev__0="How many gulls?")
    assert [item.id for item in read_examples(tmp_path)] == ["birds/dev/0.jsonl:1", "birds/train/0.jsonl:1"]


def test_examples_that_do_not_read_are_passed_over(tmp_path: Path) -> None:
    write_all(tmp_path / "birds", test="How many wrens?", train="How many owls?")
    (tmp_path / "birds" / "dev.jsonl").write_text("no JSON")
    assert [item.question for item in read_examples(tmp_path)] == ["How many owls?"]
    assert read_benchmarks(tmp_path / "birds" / "test.jsonl") == read_items(tmp_path / "birds" / "test.jsonl")


@pytest.mark.parametrize("name", ["validation", "valid", "dev_rand_split", "val-00000-of-00001"])
def test_without_a_test_split_the_validation_split_is_read(tmp_path: Path, name: str) -> None:
    write_all(tmp_path / "birds", train="not this", leftover="nor this", **{name: "How many wrens?"})
    assert [item.question for item in read_items(tmp_path / "birds")] == ["How many wrens?"]


def test_without_split_names_every_file_is_read_and_is_a_task(tmp_path: Path) -> None:
    write_all(tmp_path / "birds", owls="How many owls?", wrens="How many wrens?")
    assert [item[:2] for item in names(tmp_path / "birds")] == [("birds", "owls"), ("birds", "wrens")]


def test_a_folder_of_folders_gives_every_benchmark_and_a_file_by_itself_is_one(tmp_path: Path) -> None:
    write_all(tmp_path, birds__test="How many wrens?", fish__test__trout="How many trout?", fish__dev__trout="not this", moths="Moths?")
    (tmp_path / "SOURCES.md").write_text("prose")
    assert [item[:2] for item in names(tmp_path)] == [("moths", "moths"), ("birds", "birds"), ("fish", "fish")]
    for name, benchmark in (("train", "birds"), ("wrens", "wrens")):
        assert names(write(tmp_path / "birds" / f"{name}.jsonl", "a"))[0][:2] == (benchmark, benchmark)


def test_json_lists_read_like_lines_and_describe_nothing_beside_them(tmp_path: Path) -> None:
    asked = [("How many wrens?", "3"), ("How many owls?", "4")]
    rows = [{"input": question, "target": answer} for question, answer in asked]
    for number, content in enumerate((json.dumps(rows), json.dumps({"canary": "x", "examples": rows}), "\n".join(map(json.dumps, rows)))):
        path = tmp_path / f"{number}.json"
        path.write_text(content)
        found = [(item.id, item.question, item.answer) for item in read_items(path)]
        assert found == [(f"{number}:{line}", *pair) for line, pair in enumerate(asked, start=1)]
    write_all(tmp_path / "own", birds="How many wrens?")
    (tmp_path / "own" / "manifest.json").write_text('{"benchmarks": []}')
    assert len(read_items(tmp_path / "own")) == 1


def test_own_names_of_items_are_kept_and_made_unique(tmp_path: Path) -> None:
    path = tmp_path / "birds.jsonl"
    path.write_text("".join(json.dumps({"task_id": "wren/1", "prompt": f"Count {number}."}) + "\n" for number in range(2)))
    assert [item.id for item in read_items(path)] == ["wren/1", "wren/1 (birds:2)"]


@pytest.mark.parametrize(("content", "message"), [
    ('{"question": "a"}\n{"question": ', "test.jsonl:2: a line must be one JSON object, found '{\"question\": '"),
    ('{"question": "a"}\n\n[1]\n', "test.jsonl:3: a line must be one JSON object, found '[1]'"),
    ('{"url": "a", "length": 3}\n', "test.jsonl:1: a row must have a field with text that reads as a question, found url, length."),
    ("\n", "must have at least one item, found none"),
])  # fmt: skip
def test_what_does_not_read_is_refused_by_file_and_line(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "test.jsonl").write_text(content)
    with pytest.raises(DataError, match=re.escape(message)):
        read_items(tmp_path)


def test_broken_files_and_folders_without_items_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", "not this")
    for path, message in ((tmp_path, "found none"), (tmp_path / "nowhere", "no such file or folder")):
        with pytest.raises(DataError, match=message):
            read_items(path)
    for name, content in (("a.jsonl.gz", b"no gzip"), ("b.jsonl", b"\xff\xfe\xff"), ("c.json", b"[1, 2]")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=f"{name}.*(must be|found)"):
            read_items(tmp_path / name)


def test_the_real_benchmarks_read_well() -> None:
    items = read_items(shared_folder("benchmarks"))
    assert Counter(item.benchmark for item in items) == SHARED_COUNTS
    assert len({(item.benchmark, item.id) for item in items}) == len(items)
    assert all(item.question for item in items)
    assert [item for item in items if re.search(r"(?i)answer:$|the answer is$|^(question|q|context):", item.question)] == []
    split_off = [item.question for item in items if item.benchmark in {"agieval", "bbh", "social_iqa"}]
    assert [question for question in split_off if re.search(r"\n\(?A[).] |\(A\).*\(B\).*\(C\)|Choices:", question)] == []
    assert [item.benchmark for item in items if item.choices and item.answer not in item.choices] == ["bbh"] * 3  # As they were published.
    assert {item.benchmark for item in items if not item.answer} == {"humaneval", "mbpp", "ifeval", "lambada_openai"}
    assert {item.benchmark for item in items if item.passage} == {"agieval", "boolq"}
    assert {item.task for item in items if item.benchmark == "agieval" and item.passage} == {"lsat-rc", "sat-en"}
    assert {item.benchmark for item in items if item.solutions} == {"gsm8k", "hendrycks_math", "humaneval", "mbpp"}
    assert {len(item.solutions) for item in items if item.benchmark == "gsm8k"} <= {1, 2}
    by_id = {(item.benchmark, item.id): item for item in items}
    for benchmark, id, answer in CHECKED_BY_EYE:
        assert by_id[benchmark, id].answer == answer


CHECKED_BY_EYE = [
    ("gsm8k", "test:1", "18"), ("agieval", "aqua-rat:1", "5(√3 + 1)"), ("agieval", "sat-math:1", "10"),
    ("arc_challenge", "test:1", "Planetary days will become shorter."), ("bbh", "causal_judgement:1", "No"),
    ("arc_easy", "test:1", "Sunlight is the source of energy for nearly all ecosystems."), ("bbh", "date_understanding:1", "12/25/1937"),
    ("boolq", "validation:1", "no"), ("commonsense_qa", "1afa02df02c908a558b4036e80242fac", "bank"),
    ("copa", "validation:1", "water flowed from the spout."), ("hendrycks_math", "0", "2"), ("mmlu", "test:1", "4"),
    ("mmlu_pro", "70", "Unsafe practices, Distress, Fear, Serious"), ("openbookqa", "test:1", "quit eating lunch out"),
    ("social_iqa", "test:1", "Find somewhere to go"), ("triviaqa_sub3000", "test:1", "Onion"), ("winogrande", "validation:1", "Maria"),
    ("wsc273", "test:1", "city councilmen"),
]  # fmt: skip


def test_the_siblings_read_well() -> None:
    items = read_items(shared_folder("hard-negatives"))
    assert Counter(item.benchmark for item in items) == {"mathqa": 2983, "svamp": 1000}
    assert all(item.choices for item in items if item.benchmark == "mathqa")
    assert sum(not item.answer for item in items) == 22  # Their right option is empty in the file.
