"""Ten ways in which lm-eval gives a wrong score without a word, none of them open here; and declarations against its definitions."""

import importlib.resources
import inspect
import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from phasewise.flows.cli import main
from phasewise.tasks.evaluation import benchmark_definitions, harness
from phasewise.tasks.evaluation.benchmark_definitions import SUITES, Asked, Definition, Part, Suite, find_definition, find_suite
from phasewise.tasks.evaluation.harness import SHOTS_SEED
from phasewise.tasks.evaluation.language_model import DEFAULT_MAX_NEW_TOKENS, JaxLanguageModel
from phasewise.tasks.evaluation.leakage_items import find_items
from phasewise.trainer.base.errors import ConfigError, EvaluationError
from phasewise.trainer.model.params import Params
from tests.tasks.evaluation.suites.conftest import Bench, riddles, sums

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def prefer(word: str) -> Callable[[str, str], float]:
    return lambda _context, text: 0.0 if word in text else -9.0


def test_1_a_second_model_is_not_given_the_answers_of_the_first(bench: Bench, params: Params):
    bench.write("arc_easy/test", riddles(4))
    first = bench.run(bench.scripted(prefer("boot")), "arc_easy:0").results[0]
    other = bench.scripted(prefer("hat"), weights=jax.tree.map(lambda weight: weight + 1, params))
    second = bench.run(other, "arc_easy:0").results[0]
    assert (first["value"], second["value"]) == (1.0, 0.0)
    assert other.asked


def test_2_a_file_that_changed_within_its_time_stamp_is_read_again(bench: Bench):
    path = bench.write("arc_easy/test", riddles(4, answer=0))
    before = path.stat()
    model = bench.scripted(prefer("boot"))
    assert bench.run(model, "arc_easy:0").results[0]["value"] == 1.0
    bench.write("arc_easy/test", riddles(4, answer=1))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert bench.run(model, "arc_easy:0").results[0]["value"] == 0.0


def test_3_a_model_that_answers_nan_has_no_score(model: JaxLanguageModel, broken_params: Params, bench: Bench):
    bench.write("arc_easy/test", riddles(4))
    model.params = broken_params
    with pytest.raises(EvaluationError, match="finite number, found nan"):
        bench.run(model, "arc_easy:0")


def test_4_the_floor_is_what_a_dumb_answer_scores_on_the_items(bench: Bench):
    bench.write("arc_easy/test", [*riddles(6, answer=1), *riddles(2, answer=0)])
    bench.write("gsm8k/test", [*sums(3), *sums(1)])
    riddle, sum_ = bench.run(bench.scripted(), "arc_easy:0", "gsm8k_cot:8").results
    assert riddle["floors"] == {"random": pytest.approx(1 / 3), "constant": 0.75, "longest_choice": 0.25}
    assert riddle["baseline"] == 0.75
    assert sum_["floors"] == {"random": None, "constant": 0.5, "longest_choice": None}


def test_5_only_the_filter_that_is_declared_counts_and_each_item_once(bench: Bench):
    bench.write("gsm8k/test", sums(5))

    def say(context: str) -> str:
        number = int(context.rpartition("What is ")[2].partition(" ")[0])
        return f"The answer is {number + 1}." if number < 2 else f"It must be {number + 1}"

    [found] = bench.run(bench.scripted(say=say), "gsm8k_cot:8").results
    assert (found["filter"], found["items"], found["value"]) == ("strict-match", 5, 0.4)
    assert found["others"] == {"exact_match,flexible-extract": 1.0}
    assert found["stderr"] == pytest.approx(np.std([1, 1, 0, 0, 0], ddof=1) / math.sqrt(5))


def test_6_a_limit_is_marked_and_is_no_result_of_the_whole(bench: Bench):
    bench.write("arc_easy/test", [*riddles(2), *riddles(4, answer=1)])
    model = bench.scripted(prefer("boot"))
    some = bench.run(model, "arc_easy:0", limit=2)
    assert (some.results[0]["value"], some.results[0]["items"], some.results[0]["limit"]) == (1.0, 2, 2)
    assert some.results[0]["remarks"] == ["only the first 2 of 6 items"]
    whole = bench.run(model, "arc_easy:0")
    assert (whole.results[0]["value"], whole.results[0]["limit"], whole.results[0]["remarks"]) == (pytest.approx(1 / 3), None, [])
    assert (whole.read, whole.path == some.path) == ((), False)


@pytest.mark.parametrize(("name", "metric", "value", "other"), [("arc_easy", "acc", 0.0, 1.0), ("arc_challenge", "acc_norm", 1.0, 0.0)])
def test_7_accuracy_and_that_by_length_are_not_mixed(bench: Bench, name: str, metric: str, value: float, other: float):
    bench.write(f"{name}/test", riddles(3))
    model = bench.scripted(lambda _context, text: {"boot": -6.0, "hat": -5.0, "nest": -9.0}[text.split()[-1]])
    [found] = bench.run(model, f"{name}:0").results
    assert (found["metric"], found["value"], list(found["others"].values())) == (metric, value, [other])


def test_8_as_many_examples_as_asked_for_are_in_the_prompt_or_there_is_no_result(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    bench.write("arc_easy/test", riddles(2))
    bench.write("arc_easy/train", [{**row, "question": f"Example {number}?"} for number, row in enumerate(riddles(9))])
    model = bench.scripted()
    measured = bench.run(model, "arc_easy:0", "arc_easy:2")
    none, two = measured.results
    assert (none["shots"], two["shots"], two["setting"] and two["setting"]["shots"]) == (0, 2, 2)
    assert {context.count("Example ") for context, _ in model.asked[:6]} == {0}
    assert {context.count("Example ") for context, _ in model.asked[6:]} == {2}
    assert len({context.rpartition("\n\n")[0] for context, _ in model.asked[6:]}) == 2  # drawn for each item
    asked_again = bench.scripted()
    measured.path.unlink()
    bench.run(asked_again, "arc_easy:0", "arc_easy:2")
    assert asked_again.asked == model.asked  # and the same ones the next time
    load = harness.load_tasks

    def load_without_shots(*arguments: Any) -> dict[str, Any]:
        tasks = load(*arguments)
        for task in tasks.values():
            task.set_config("num_fewshot", 0)
        return tasks

    monkeypatch.setattr(harness, "load_tasks", load_without_shots)
    measured.path.unlink()
    with pytest.raises(EvaluationError, match=r"arc_easy:2 must be put with 2 shots, found \{'arc_easy': 0\}"):
        bench.run(bench.scripted(), "arc_easy:2")


def test_9_two_tasks_of_one_name_are_not_one(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    bench.write("arc_easy/test", riddles(2))
    bench.write("arc_challenge/test", riddles(3, answer=1))
    parts = tuple(Part(task="arc_easy", include="arc/arc_easy.yaml", file=f"{name}/test.jsonl") for name in ("arc_easy", "arc_challenge"))
    monkeypatch.setitem(benchmark_definitions.DEFINITIONS, "both", Definition(name="both", parts=parts, metric="acc"))
    with pytest.raises(EvaluationError, match="must load the tasks arc_easy, arc_easy, found arc_easy: two have the same name"):
        bench.run(bench.scripted(), "both:0")


def test_10_the_working_folder_decides_nothing(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    bench.write("arc_easy/test", riddles(4))
    here = bench.run(bench.scripted(prefer("boot")), "arc_easy:0")
    kept = json.loads(here.path.read_text())
    here.path.unlink()
    monkeypatch.chdir(tmp_path)
    bench.run(bench.scripted(prefer("boot")), "arc_easy:0")
    again = json.loads(here.path.read_text())
    for found in (kept, again):
        found["benchmarks"]["arc_easy:0"]["result"]["seconds"] = 0
        del found["digest"]
    assert again == kept
    assert "git" not in json.dumps(kept)
    assert capfd.readouterr() == ("", "")


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
