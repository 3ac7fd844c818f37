"""What a recipe names and nothing carries out is refused before work starts."""

import json
from pathlib import Path

import pytest

from flows.commands.evaluate import evaluate_target
from flows.commands.run import run_recipe
from flows.declared import check_declared
from flows.evaluate_checkpoint import evaluate_checkpoint
from flows.recipes import load_recipe, load_record
from flows.train_phase import train_phase
from tests.pulse.runs import tiny_recipe
from trainer.base.errors import ConfigError

NOT_MEASURED = r"names the benchmarks piqa:10, which are lm-eval's and are not measured by its gate yet .*: name word_order or next_word"


def written(folder: Path, *benchmarks: str) -> str:
    """A file of a small recipe whose first phase names these."""
    recipe = tiny_recipe().model_dump(mode="json")
    recipe["phases"][0]["evaluation"]["benchmarks"] = benchmarks
    path = folder / "mine.json"
    path.write_text(json.dumps(recipe | {"name": "mine"}))
    return str(path)


@pytest.mark.parametrize(
    ("benchmarks", "said"),
    [
        (("bananas",), r"benchmarks: nothing knows the benchmark 'bananas'; known are word_order, next_word, .* piqa:10"),
        (("next_word", "piqa:7"), "nothing knows the benchmark 'piqa:7'"),
        ((), "at least one benchmark must be named, found none"),
        (("next_word", "next_word"), "must be named once, found next_word, next_word"),
    ],
)
def test_names_are_refused_on_load(tmp_path: Path, benchmarks: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_recipe(written(tmp_path, *benchmarks), "proxy")


def test_a_benchmark_that_nothing_measures_is_refused_before_work_starts(tmp_path: Path) -> None:
    target, home = written(tmp_path, "next_word", "piqa:10"), tmp_path / "home"
    phase = load_recipe(target, "proxy").phases[0].name
    with pytest.raises(ConfigError, match=NOT_MEASURED):
        run_recipe(target, "proxy", str(home), as_json=True)
    with pytest.raises(ConfigError, match=NOT_MEASURED):
        evaluate_target(f"{target}/{phase}", "proxy", str(home))
    for flow in (train_phase, evaluate_checkpoint):
        with pytest.raises(ConfigError, match=NOT_MEASURED):
            flow.fn(target, phase, "proxy", str(home))
    assert not list(home.rglob("*.jsonl"))


def test_the_record_names_lm_evals_and_its_proxy_those_that_are_made() -> None:
    full, proxy = load_record("marin-8b", "full"), load_record("marin-8b", "proxy")
    assert {"piqa:10", "mmlu:5"} <= {name for phase in full.phases for name in phase.evaluation.benchmarks}
    assert {phase.evaluation.benchmarks for phase in proxy.phases} == {("word_order", "next_word")}
    check_declared(proxy, proxy.phases)
    with pytest.raises(ConfigError, match="piqa:10"):
        check_declared(full, full.phases)
