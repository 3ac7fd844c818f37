import json
from pathlib import Path

import pytest

from experiments.survival.runs import tiny_recipe
from phasewise.flows.checks import check_declared
from phasewise.flows.cli.evaluate import evaluate_by
from phasewise.flows.cli.run import run_recipe
from phasewise.flows.evaluate_checkpoint import evaluate_checkpoint
from phasewise.flows.recipes import load_recipe, load_record
from phasewise.flows.recipes.scales import proxy_phase
from phasewise.flows.train_phase import train_phase
from phasewise.tasks.evaluation.settings import BENCHMARKS_VARIABLE
from phasewise.trainer.base.errors import ConfigError

NOT_NAMED = r"the gate of phase .* cannot judge it: the gate asks piqa:1: PHASEWISE_BENCHMARKS must name a folder with their items"
NO_EXAMPLES = r"the gate asks piqa:1, and .* lacks its files: no split for its 1 shots: no file piqa/train.jsonl"


def written(folder: Path, *benchmarks: str) -> str:
    recipe = tiny_recipe().model_dump(mode="json")
    recipe["phases"][0]["evaluation"]["benchmarks"] = benchmarks
    path = folder / "mine.json"
    path.write_text(json.dumps(recipe | {"name": "mine"}))
    return str(path)


@pytest.mark.parametrize(
    ("benchmarks", "said"),
    [
        (
            ("bananas",),
            r"benchmarks: nothing knows the benchmark 'bananas': expected .*, found none. Near names: .*\. known are word_order, next_word",
        ),
        (("next_word", "piqa"), "expected the number of examples in the prompt after a colon, as in piqa:0"),
        (("next_word", "piqa:07"), "expected the number"),
        (("sciqq:0",), r"Near names: .*sciq"),
        (("truthfulqa_mc1:2",), "it has no split for examples, only truthfulqa_mc1:0 is possible"),
        (("wsc273:1",), "it has no split for examples, only wsc273:0 is possible"),
        (("humaneval:0",), "it runs programs that the model writes"),
        ((), "expected at least one benchmark, found none"),
        (("niah:128",), "expected at least one benchmark in addition to needles, found none"),
        (("next_word", "niah"), "'niah': expected the tokens of its text after a colon, 64 or more, as in niah:4096"),
        (("next_word", "niah:8"), "'niah:8': expected the tokens"),
        (("next_word", "niah_written:0128"), "expected the tokens"),
        (("next_word", "niah:100000"), r"cannot measure niah:100000 .* its rows have \d+ tokens, and the needle would be cut off"),
        (("next_word", "next_word"), "must be named once, found next_word, next_word"),
    ],
)
def test_names_are_refused_on_load(tmp_path: Path, benchmarks: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_recipe(written(tmp_path, *benchmarks), "proxy")


def test_a_benchmark_whose_items_are_not_here_is_refused_before_work_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, home = written(tmp_path, "next_word", "piqa:1"), tmp_path / "home"
    phase = load_recipe(target, "proxy").phases[0].name
    folder = tmp_path / "benchmarks"
    (folder / "piqa").mkdir(parents=True)
    (folder / "piqa/validation.jsonl").write_text('{"goal": "To sleep", "sol1": "lie down", "sol2": "run", "label": 0}\n')
    for named, said in (("", NOT_NAMED), (str(folder), NO_EXAMPLES)):
        monkeypatch.setenv(BENCHMARKS_VARIABLE, named)
        with pytest.raises(ConfigError, match=said):
            run_recipe(target, "proxy", str(home), as_json=True)
        with pytest.raises(ConfigError, match=said):
            evaluate_by(f"{target}/{phase}", "proxy", str(home), {})
        for flow in (train_phase, evaluate_checkpoint):
            with pytest.raises(ConfigError, match=said):
                flow.fn(target, phase, "proxy", str(home))
    assert not list(home.rglob("*.jsonl"))
    (folder / "piqa/train.jsonl").write_bytes((folder / "piqa/validation.jsonl").read_bytes())
    recipe = load_recipe(target, "proxy")
    check_declared(recipe, recipe.phases)


def test_the_record_names_lm_evals_and_its_proxy_those_that_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    full, proxy = load_record("marin-8b", "full"), load_record("marin-8b", "proxy")
    assert {"piqa:10", "mmlu:5"} <= {name for phase in full.phases for name in phase.evaluation.benchmarks}
    assert {phase.evaluation.benchmarks for phase in proxy.phases} == {("word_order", "next_word")}
    check_declared(proxy, proxy.phases)
    monkeypatch.delenv(BENCHMARKS_VARIABLE, raising=False)
    with pytest.raises(ConfigError, match="piqa:10"):
        check_declared(full, full.phases)


def test_no_proxy_is_asked_to_find_needles_and_who_asks_must_hide_some() -> None:
    phase = load_record("trinity-nano", "full").phase("context-extension")
    asks = phase.gates.but(model=phase.gates.model.but(needle_error_rate=0.01))
    assert proxy_phase(phase.but(gates=asks)).gates.model.needle_error_rate is None
    with pytest.raises(ValueError, match=r"phase phase-2 limits errors on needles .* without a needle: add one to evaluation.benchmarks"):
        load_record("trinity-nano", "full").phase("phase-2").but(gates=asks)
