import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from phasewise.tasks.data.generation import DOCUMENTS, PROVENANCE, Generator, Seed, Task, generate_documents, result_of
from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.trainer.base.identity import read_sealed

ORIGINAL = " ".join(f"word{number}" for number in range(40))
REWRITTEN = " ".join(f"other{number}" for number in range(40))
REPHRASE = Task(kind="rephrase", prompt="{text}\n\nAgain:")


class Replies(Generator):
    """A generator behind the interface with known texts: one list for each seed, in the order of its samples."""

    identity: Mapping[str, Any] = {"name": "replies"}

    def __init__(self, of_seed: Mapping[str, Sequence[str]]) -> None:
        self.left = {text: list(replies) for text, replies in of_seed.items()}

    def generate(self, prompts: Sequence[str]) -> list[str]:
        return [self.left[prompt.removesuffix("\n\nAgain:")].pop(0) for prompt in prompts]


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / DOCUMENTS).read_text().splitlines()]


def test_rephrased_text_is_kept_with_its_seed_and_reasons_are_counted(tmp_path: Path):
    mixed = " ".join(ORIGINAL.split()[:38]) + " " + REWRITTEN
    replies = {ORIGINAL: [ORIGINAL, " ", "too few words", "so it goes " * 20, REWRITTEN, REWRITTEN], REWRITTEN: [mixed] * 6}
    seeds = [Seed("a", ORIGINAL), Seed("b", REWRITTEN)]
    found = generate_documents(seeds, Replies(replies), REPHRASE.but(samples=6), tmp_path / "out", scan=None)
    assert [(row["seed"], row["sample"], row["text"]) for row in rows(tmp_path / "out")] == [("a", 4, REWRITTEN), ("b", 0, mixed)]
    reasons = {"copy of its seed": 1, "empty": 1, "too short": 1, "repetition": 1, "repeated sample": 6}
    assert found["left_out"] == reasons
    kept = read_sealed(tmp_path / "out" / PROVENANCE)
    assert (kept["generator"], kept["seeds"], kept["samples"], kept["searched"]) == ({"name": "replies"}, 2, 12, False)


def test_the_output_is_searched_and_a_document_with_a_test_item_is_left_out(tmp_path: Path):
    seeds = [Seed("a", ORIGINAL), Seed("b", REWRITTEN)]
    replies = {ORIGINAL: [REWRITTEN], REWRITTEN: [ORIGINAL]}

    def scan(documents: Path) -> dict[int, str]:
        lines = documents.read_text().splitlines()
        return {number: "gsm8k, 7" for number, line in enumerate(lines) if ORIGINAL in line}

    found = generate_documents(seeds, Replies(replies), REPHRASE, tmp_path / "out", scan=scan)
    assert [row["seed"] for row in rows(tmp_path / "out")] == ["a"]
    assert (found["left_out"], found["test_items"], found["searched"]) == ({"test item": 1}, ["gsm8k, 7"], True)


def test_only_answers_with_the_right_result_are_kept(tmp_path: Path):
    seeds = [Seed("q:1", "2 + 1,000?", "so 1002\n#### 1,002"), Seed("q:2", "1 / 2?", "#### 0.5")]
    replies = {"2 + 1,000?": ["1001", "it is 1,002", "I cannot say"], "1 / 2?": ["2", "half is 0.50", "it is 5"]}
    task = Task(kind="answer", prompt="{text}", samples=3)
    found = generate_documents(seeds, Replies(replies), task, tmp_path / "out", scan=None)
    kept = [(row["seed"], [turn["content"] for turn in row["messages"]]) for row in rows(tmp_path / "out")]
    assert kept == [("q:1", ["2 + 1,000?", "it is 1,002"]), ("q:2", ["1 / 2?", "half is 0.50"])]
    assert found["left_out"] == {"wrong result": 4}
    assert [result_of(text) for text in ("none", "-3.10", "7.", "#### 4 of 5")] == [None, "-3.1", "7", "5"]


def test_nothing_is_written_without_a_document_or_over_a_folder(tmp_path: Path):
    out = tmp_path / "out"
    for seeds, message in (([], "at least one seed"), ([Seed("a", ORIGINAL)], "no generated document was kept of 1 seeds")):
        with pytest.raises(DataError, match=message):
            generate_documents(seeds, Replies({ORIGINAL: [""]}), REPHRASE, out, scan=None)
    with pytest.raises(ConfigError, match="where the seed stands"):
        generate_documents([], Replies({}), REPHRASE.but(prompt="x"), out, scan=None)
    assert list(tmp_path.iterdir()) == []
    out.mkdir()
    with pytest.raises(ConfigError, match="Give another folder"):
        generate_documents([Seed("a", ORIGINAL)], Replies({}), REPHRASE, out, scan=None)
