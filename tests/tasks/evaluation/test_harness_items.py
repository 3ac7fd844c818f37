import importlib.resources
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from phasewise.tasks.evaluation.harness import OFFLINE, Setting, offline_imports, read_setting
from phasewise.tasks.evaluation.leakage_items import items_of_tasks
from phasewise.trainer.base.errors import ConfigError, DataError

Define = Callable[..., str]
TALE = "A wren built its nest in an old boot that hung by the garden door."
BUILT_IN = Path(str(importlib.resources.files("lm_eval"))) / "tasks"


@pytest.fixture
def define(tmp_path: Path) -> Define:
    """Writes the definition of a task over rows, on its own or on top of one of lm-eval's, and gives its name."""

    def write(name: str, rows: list[dict[str, Any]], *, split: str = "test", include: str = "", **settings: Any) -> str:
        data = tmp_path / f"{name}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        definition = {"task": name, "dataset_path": "json", "dataset_name": None, "num_fewshot": 0, "fewshot_split": None}
        definition |= {"training_split": None, "validation_split": None, "test_split": None} | {f"{split}_split": split}
        definition |= {"dataset_kwargs": {"data_files": {split: str(data)}, "cache_dir": str(tmp_path / "cache")}}
        definition |= {"include": str(BUILT_IN / include)} if include else {}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(definition | settings))
        return name

    return write


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_built_in_tasks_over_local_rows_give_items_in_their_parts(define: Define, tmp_path: Path):
    choices = {"text": ["in a boot", "in a hat"], "label": ["A", "B"]}
    letter = {"question": "Where?", "subject": "abstract_algebra", "choices": choices["text"] * 2, "answer": 1}
    tale = {"passage": TALE, "question": "does the wren nest in a boot", "label": 1}
    blank = {"sentence": "The wren left the boot since the _ was cold.", "option1": "wren", "option2": "boot", "answer": "2"}
    names = [
        define("sums", [{"question": "How many eggs?", "answer": "4 - 1 = <<4-1=3>>3\n#### 3"}], include="gsm8k/gsm8k.yaml"),
        define("nests", [{"question": "Where?", "choices": choices, "answerKey": "B"}], include="arc/arc_easy.yaml"),
        define("letters", [letter], include="mmlu/default/mmlu_abstract_algebra.yaml"),
        define("tales", [tale], split="validation", include="super_glue/boolq/default.yaml"),
        define("blanks", [blank], split="validation", include="winogrande/default.yaml"),
    ]
    sums, nests, letters, tales, blanks = items_of_tasks(names, tmp_path)
    assert (sums.question, sums.answer, sums.solutions) == ("How many eggs?", "3", ("4 - 1 = <<4-1=3>>3",))
    assert (sums.benchmark, sums.task, sums.id) == ("sums", "sums", "sums:0")
    assert (nests.question, nests.choices, nests.answer) == ("Where?", ("in a boot", "in a hat"), "in a hat")
    assert (letters.question, letters.choices, letters.answer) == ("Where?", ("in a boot", "in a hat") * 2, "in a hat")
    assert (tales.question, tales.passage, tales.answer) == ("does the wren nest in a boot?", TALE, "yes")
    assert (blanks.question, blanks.answer) == ("The wren left the boot since the boot was cold.", "boot")


def test_own_tasks_and_groups_are_read_as_they_word_their_documents(define: Define, tmp_path: Path):
    rows = [{"bird": bird, "home": ["boot", "hat"], "right": 1, "id": bird} for bird in ("wren", "owl", "wren")]
    question = {"doc_to_text": "Question: Where does the {{bird}} live?\nAnswer:", "doc_to_choice": "home", "doc_to_target": "right"}
    homes = define("homes", rows, output_type="multiple_choice", **question)
    opening = {"doc_to_text": "{{opening}}", "doc_to_target": "end"}
    words = define("words", [{"opening": "A wren sat in the", "end": "boot"}], output_type="generate_until", **opening)
    items = items_of_tasks([homes, words], tmp_path)
    assert [item.question for item in items] == ["Where does the wren live?", "Where does the owl live?", "A wren sat in the"]
    assert [item.answer for item in items] == ["hat", "hat", "boot"]
    assert [item.id for item in items] == ["homes:wren", "homes:owl", "words:0"]
    settings = {"output_type": "generate_until", "doc_to_text": "Where does the {{bird}} live?", "doc_to_target": "home"}
    names = [define(name, [{"bird": name, "home": "boot"}], **settings) for name in ("wrens", "owls")]
    (tmp_path / "birds.yaml").write_text(yaml.safe_dump({"group": "birds", "task": names}))
    assert [(item.benchmark, item.task) for item in items_of_tasks(["birds"], tmp_path)] == [("birds", "wrens"), ("birds", "owls")]


def test_rows_changed_within_the_same_instant_are_read_again(define: Define, tmp_path: Path):
    name = define("birds", [{"bird": "wren"}], output_type="generate_until", doc_to_text="Count the {{bird}}.", doc_to_target="bird")
    assert [item.question for item in items_of_tasks([name], tmp_path)] == ["Count the wren."]
    path = tmp_path / "birds.jsonl"
    before = path.stat()
    path.write_text(path.read_text().replace("wren", "lark"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert [item.question for item in items_of_tasks([name], tmp_path)] == ["Count the lark."]


def test_what_cannot_be_had_is_refused_with_what_to_do(define: Define, tmp_path: Path):
    settings = {"output_type": "generate_until", "doc_to_target": "bird"}
    with pytest.raises(DataError, match=r"must be able to load the task 'taught', found ValueError: .*must have valid or test docs"):
        items_of_tasks([define("taught", [{"bird": "wren"}], split="training", doc_to_text="{{bird}}", **settings)], tmp_path)
    with pytest.raises(DataError, match="every document must give a question through doc_to_text, found none in document 0"):
        items_of_tasks([define("silent", [{"bird": ""}], doc_to_text="{{bird}}", **settings)], tmp_path)
    far = define("far", [{"bird": "wren"}], doc_to_text="{{bird}}", **settings)
    (tmp_path / "far.jsonl").unlink()
    with pytest.raises(DataError, match="must be able to load the task 'far'"):
        items_of_tasks([far], tmp_path)
    with pytest.raises(ConfigError, match="must be a task, group or tag of lm-eval, found 'no_such_birds'"):
        items_of_tasks(["no_such_birds"], tmp_path)


def test_what_is_started_afterwards_may_ask_the_hub(monkeypatch: pytest.MonkeyPatch):
    for name in OFFLINE:
        monkeypatch.delenv(name, raising=False)
    with offline_imports():
        assert {name: os.environ[name] for name in OFFLINE} == OFFLINE
    assert not OFFLINE.keys() & os.environ.keys()
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    with offline_imports():
        assert os.environ["HF_HUB_OFFLINE"] == "0"
    assert os.environ["HF_HUB_OFFLINE"] == "0"


ITEMS = [{"question": "One and one?", "answer": "two"}, {"question": "Two and two?", "answer": "four"}]
DEFINITION: dict[str, Any] = {
    "task": "sums", "dataset_path": "json", "test_split": "test", "output_type": "multiple_choice", "metric_list": [{"metric": "acc"}],
    "doc_to_text": "Question: {{question}}\nAnswer:", "doc_to_choice": ["two", "four"], "doc_to_target": "{{answer}}",
    "metadata": {"version": 1.0},
}  # fmt: skip


def measured(folder: Path, *, items: list[Any] = ITEMS, limit: int | None = None, precision: str = "float32", **changed: Any) -> Setting:
    from lm_eval.api.model import LM
    from lm_eval.evaluator import evaluate
    from lm_eval.tasks import TaskManager

    class Same(LM):
        def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
            return [(-1.0, False) for _ in requests]

        def loglikelihood_rolling(self, requests: list[Any]) -> Any:
            raise NotImplementedError

        generate_until = loglikelihood_rolling

    folder.mkdir()
    (folder / "test.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    files = {"data_files": {"test": str(folder / "test.jsonl")}, "cache_dir": str(folder / "cache")}
    task = {**DEFINITION, "dataset_kwargs": files, **changed}
    manager = TaskManager(include_defaults=False)
    found: Any = evaluate(lm=Same(), task_dict=manager.load([task]), bootstrap_iters=1, log_samples=True, limit=limit)
    return read_setting(found, ["sums"], filter_name="none", precision=precision)


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return measured(tmp_path_factory.mktemp("setting") / "before")


@pytest.mark.parametrize(("changed", "fields"), [
    ({}, set()), ({"metadata": {"version": 2.0}}, {"version"}), ({"precision": "bfloat16"}, {"precision"}),
    ({"doc_to_text": "Q: {{question}}\nA:"}, {"prompts_digest"}), ({"items": ITEMS[::-1]}, {"items_digest", "prompts_digest"}),
    ({"items": [{**ITEMS[0], "note": "a field that no prompt has"}, ITEMS[1]]}, {"items_digest"}),
    ({"limit": 1}, {"asked", "items_digest", "prompts_digest"}),
    ({"num_fewshot": 1, "fewshot_split": "test", "fewshot_config": {"sampler": "first_n"}}, {"shots", "prompts_digest"}),
])  # fmt: skip
def test_a_setting_tells_what_was_put_otherwise(before: Setting, tmp_path: Path, changed: dict[str, Any], fields: set[str]):
    after = measured(tmp_path / "after", **changed)
    assert {name for name in before if before[name] != after[name]} == fields
