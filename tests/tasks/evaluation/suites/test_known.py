import importlib.resources
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from phasewise.flows.cli import main
from phasewise.tasks.evaluation import benchmark_definitions
from phasewise.tasks.evaluation.benchmark_definitions import SUITES, Asked, Definition, Part, Suite, find_definition, find_suite
from phasewise.tasks.evaluation.harness import SHOTS_SEED
from phasewise.tasks.evaluation.language_model import DEFAULT_MAX_NEW_TOKENS
from phasewise.tasks.evaluation.leakage_items import find_items
from phasewise.trainer.base.errors import ConfigError
from tests.tasks.evaluation.suites.conftest import Bench, riddles

TASKS = Path(str(importlib.resources.files("lm_eval"))) / "tasks"


class _Loader(yaml.SafeLoader):
    """Code is named and not imported."""


_Loader.add_constructor("!function", lambda loader, node: f"!function {node.value}")


def settings_of(definition: Definition, part: Part) -> dict[str, Any]:
    return (read_yaml(TASKS / part.include) if part.include else {}) | definition.settings


def read_yaml(path: Path) -> dict[str, Any]:
    read = yaml.load(path.read_text(), _Loader)  # a safe loader
    included = [read.pop("include")] if "include" in read else []
    return {key: value for name in included for key, value in read_yaml(path.parent / name).items()} | read


@pytest.mark.parametrize("definition", benchmark_definitions.DEFINITIONS.values(), ids=lambda definition: definition.name)
def test_what_is_declared_is_in_the_definition_of_lm_eval(definition: Definition):
    for part in definition.parts:
        found = settings_of(definition, part)
        metrics = [str(one["metric"]).rpartition(".")[2] for one in found["metric_list"]]
        assert (definition.metric in metrics) or (definition.metric == "pass" and metrics == ["bypass"]), metrics
        filters = [one["name"] for one in found.get("filter_list") or [{"name": "none"}]]
        assert definition.filter in filters, filters
        split = part.split or definition.split
        assert split in (found.get("test_split"), found.get("validation_split"))
        assert not part.include or found["task"] == part.task
        if definition.shots_split == benchmark_definitions.SHOTS_IN_DEFINITION:
            assert found["fewshot_config"]["samples"]
        elif definition.shots_split is not None:
            assert definition.shots_split in (found.get("fewshot_split"), found.get("training_split"))
            assert definition.shots_split != split


SHOTS_OF_LM_EVAL = [asked for suite in SUITES.values() for asked in suite.asked if "lm-eval's" in asked.source]


@pytest.mark.parametrize("asked", SHOTS_OF_LM_EVAL, ids=lambda asked: asked.label)
def test_shots_that_are_said_to_be_lm_eval_s_are(asked: Asked):
    parts = find_definition(asked.benchmark).parts
    assert {read_yaml(TASKS / (part.include or f"{part.task}/{part.task}.yaml"))["num_fewshot"] for part in parts} == {asked.shots}


def test_suites_and_defaults_are_what_they_say_and_other_names_are_refused():
    from lm_eval.evaluator import simple_evaluate

    assert inspect.signature(simple_evaluate).parameters["fewshot_random_seed"].default == SHOTS_SEED
    models = (TASKS.parent / "models" / "huggingface.py").read_text()  # importing it needs torch
    assert re.findall(r"def max_gen_toks\(self\) -> int:\n\s+return (\d+)", models) == [str(DEFAULT_MAX_NEW_TOKENS)]
    from phasewise.flows.recipes.benchmarks import CORE_BENCHMARKS, WITH_MMLU

    for suite in SUITES.values():
        assert len({asked.label for asked in suite.asked}) == len(suite.asked)
        assert all(asked.source for asked in suite.asked)
        for asked in suite.asked:
            find_definition(asked.benchmark)
    assert tuple(asked.label for asked in find_suite("core").asked) == CORE_BENCHMARKS
    assert tuple(asked.label for asked in find_suite("core+mmlu").asked) == WITH_MMLU
    with pytest.raises(ConfigError, match=r"core, core\+mmlu, generation, .* found 'kore'"):
        find_suite("kore")
    with pytest.raises(ConfigError, match=r"found 'arc'; known are .*arc_easy"):
        find_definition("arc")


pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
ASKED = (("arc_easy", 0), ("arc_easy", 10), ("piqa", 0))
SUITE = Suite(name="made", about="", asked=tuple(Asked(benchmark=name, shots=shots, source="made up") for name, shots in ASKED))


def test_each_benchmark_gives_its_test_items_once_and_what_is_missing_is_named(bench: Bench, folder: Path):
    bench.write("arc_easy/test", riddles(2))
    bench.write("arc_easy/train", [{**row, "question": "An example?"} for row in riddles(1)])
    bench.write("winogrande/validation", [{"sentence": "Not of _ suite.", "option1": "this", "option2": "it", "answer": "1"}])
    found = find_items(SUITE, folder)
    wrens = [("arc_easy", f"Where does wren {number} live?", "a very old boot") for number in range(2)]
    assert [(item.benchmark, item.question, item.answer) for item in found.items if not item.is_example] == wrens
    assert [item.question for item in found.items if item.is_example] == ["An example?"]
    assert found.missing == {"piqa": "no items: no file piqa/validation.jsonl"}
    bench.write("arc_easy/test", riddles(2, answer=1))
    other = find_items(SUITE, folder)
    bench.write("arc_easy/train", riddles(3))
    assert len({found.key, other.key, find_items(SUITE, folder).key}) == 3


def test_a_folder_without_an_item_of_the_suite_is_refused(folder: Path):
    with pytest.raises(ConfigError, match="must have items of the suite made, and has none: arc_easy: no items: no file"):
        find_items(SUITE, folder)


def test_a_scan_for_a_suite_fails_where_a_benchmark_of_it_was_not_searched_for(bench: Bench, folder: Path, tmp_path: Path):
    premise = "The old wren flew over the frozen river to reach its nest before night."
    bench.write("copa/validation", [{"premise": premise, "choice1": "It slept.", "choice2": "It sang.", "question": "effect", "label": 0}])
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
