"""Every benchmark that a suite names is one that lm-eval has, with the metric, the filter and the splits that are declared."""

import importlib.resources
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from phasewise.tasks.evaluation.benchmark_definitions import (
    DEFINITIONS,
    SHOTS_IN_DEFINITION,
    SUITES,
    Asked,
    Definition,
    Part,
    find_definition,
    find_suite,
)
from phasewise.tasks.evaluation.harness import SHOTS_SEED
from phasewise.tasks.evaluation.language_model import DEFAULT_MAX_NEW_TOKENS
from phasewise.trainer.base.errors import ConfigError

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


@pytest.mark.parametrize("definition", DEFINITIONS.values(), ids=lambda definition: definition.name)
def test_what_is_declared_is_in_the_definition_of_lm_eval(definition: Definition) -> None:
    for part in definition.parts:
        found = settings_of(definition, part)
        metrics = [str(one["metric"]).rpartition(".")[2] for one in found["metric_list"]]
        assert (definition.metric in metrics) or (definition.metric == "pass" and metrics == ["bypass"]), metrics
        filters = [one["name"] for one in found.get("filter_list") or [{"name": "none"}]]
        assert definition.filter in filters, filters
        split = part.split or definition.split
        assert split in (found.get("test_split"), found.get("validation_split"))
        assert not part.include or found["task"] == part.task
        if definition.shots_split == SHOTS_IN_DEFINITION:
            assert found["fewshot_config"]["samples"]
        elif definition.shots_split is not None:
            assert definition.shots_split in (found.get("fewshot_split"), found.get("training_split"))
            assert definition.shots_split != split


SHOTS_OF_LM_EVAL = [asked for suite in SUITES.values() for asked in suite.asked if "lm-eval's" in asked.source]


@pytest.mark.parametrize("asked", SHOTS_OF_LM_EVAL, ids=lambda asked: asked.label)
def test_shots_that_are_said_to_be_lm_eval_s_are(asked: Asked) -> None:
    parts = find_definition(asked.benchmark).parts
    assert {read_yaml(TASKS / (part.include or f"{part.task}/{part.task}.yaml"))["num_fewshot"] for part in parts} == {asked.shots}


def test_defaults_that_are_said_to_be_lm_eval_s_are() -> None:
    from lm_eval.evaluator import simple_evaluate

    assert inspect.signature(simple_evaluate).parameters["fewshot_random_seed"].default == SHOTS_SEED
    models = (TASKS.parent / "models" / "huggingface.py").read_text()  # importing it needs torch
    assert re.findall(r"def max_gen_toks\(self\) -> int:\n\s+return (\d+)", models) == [str(DEFAULT_MAX_NEW_TOKENS)]


def test_each_suite_names_each_line_once_with_its_source() -> None:
    for suite in SUITES.values():
        assert len({asked.label for asked in suite.asked}) == len(suite.asked)
        assert all(asked.source for asked in suite.asked)
        for asked in suite.asked:
            find_definition(asked.benchmark)


def test_the_core_suite_is_what_the_recipes_name() -> None:
    from phasewise.flows.recipes.benchmarks import CORE_BENCHMARKS, WITH_MMLU

    assert tuple(asked.label for asked in find_suite("core").asked) == CORE_BENCHMARKS
    assert tuple(asked.label for asked in find_suite("core+mmlu").asked) == WITH_MMLU


def test_a_name_that_nothing_knows_is_refused_with_what_is_known() -> None:
    with pytest.raises(ConfigError, match=r"core, core\+mmlu, generation, .* found 'kore'"):
        find_suite("kore")
    with pytest.raises(ConfigError, match=r"found 'arc'; known are .*arc_easy"):
        find_definition("arc")
