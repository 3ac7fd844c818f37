"""The items of a suite that training data are searched for, and those that they are not."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from phasewise.flows.cli import main
from phasewise.tasks.evaluation.benchmark_definitions import Asked, Suite
from phasewise.tasks.evaluation.leakage_items import find_items
from phasewise.trainer.base.errors import ConfigError
from tests.tasks.evaluation.suites.conftest import WriteItems, riddles

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
SUITE = Suite(
    name="made",
    about="",
    asked=tuple(Asked(benchmark=name, shots=shots, source="made up") for name, shots in (("arc_easy", 0), ("arc_easy", 10), ("piqa", 0))),
)


def test_each_benchmark_gives_its_test_items_once_and_what_is_missing_is_named(write_items: WriteItems, folder: Path) -> None:
    write_items("arc_easy/test", riddles(2))
    write_items("arc_easy/train", [{**row, "question": "An example?"} for row in riddles(1)])
    write_items("winogrande/validation", [{"sentence": "Not of _ suite.", "option1": "this", "option2": "it", "answer": "1"}])
    found = find_items(SUITE, folder)
    assert [(item.benchmark, item.question, item.answer) for item in found.items if not item.is_example] == [
        ("arc_easy", f"Where does wren {number} live?", "a very old boot") for number in range(2)
    ]
    assert [item.question for item in found.items if item.is_example] == ["An example?"]
    assert found.missing == {"piqa": "no items: no file piqa/validation.jsonl"}
    write_items("arc_easy/test", riddles(2, answer=1))
    other = find_items(SUITE, folder)
    write_items("arc_easy/train", riddles(3))
    assert len({found.key, other.key, find_items(SUITE, folder).key}) == 3


def test_a_folder_without_an_item_of_the_suite_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="must have items of the suite made, and has none: arc_easy: no items: no file"):
        find_items(SUITE, folder)


def test_a_scan_for_a_suite_fails_where_a_benchmark_of_it_was_not_searched_for(
    write_items: WriteItems, folder: Path, tmp_path: Path
) -> None:
    premise = "The old wren flew over the frozen river to reach its nest before night."
    write_items("copa/validation", [{"premise": premise, "choice1": "It slept.", "choice2": "It sang.", "question": "effect", "label": 0}])
    text = tmp_path / "corpus.jsonl"
    text.write_text(json.dumps({"text": f"A tale. {premise[:-1]} so it slept. The end."}) + "\n")
    call = ["scan", str(text), "--benchmarks", str(folder), "--suite", "core", "--workers", "1", "--home", str(tmp_path / "home")]
    said = CliRunner().invoke(main.main, [*call, "--json"])
    report = json.loads(said.stdout)
    assert said.exit_code == 1
    assert [(hit["benchmark"], hit["item"]) for hit in report["hits"]] == [("copa", "copa:0")]
    assert report["not_searched"]["piqa"] == "no items: no file piqa/validation.jsonl"
    text.write_text(json.dumps({"text": "Nothing of any benchmark is in this text."}) + "\n")
    clean = CliRunner().invoke(main.main, call)
    assert clean.exit_code == 1
    assert "The scan fails: piqa was not searched for: no items: no file piqa/validation.jsonl." in clean.stdout
