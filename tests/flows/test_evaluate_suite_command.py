"""`phasewise evaluate --suite` on a checkpoint of ours."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest
from click.testing import CliRunner, Result

from experiments.survival.runs import tiny_recipe
from phasewise.flows.cli import main
from phasewise.flows.plan import build_run
from phasewise.tasks.data.tokenizer import train_tokenizer
from phasewise.tasks.evaluation import model_loading
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.checkpoints.checkpointer import Checkpoints
from phasewise.trainer.config import RunConfig
from phasewise.trainer.state import init_state
from tests.flows.commands import assert_refused

Evaluate = Callable[..., Result]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first phase of a tiny recipe, not trained, with a moving average of its own."""
    recipe = tiny_recipe()
    phase = recipe.phases[0]
    home = Home.open(str(tmp_path_factory.mktemp("home")))
    values = build_run(recipe, phase, home, dict.fromkeys(phase.components, Path("nowhere"))).model_dump(mode="json")
    run = RunConfig.model_validate({**values, "stability": {**values["stability"], "ema_decay": [[0, 0.9]]}})
    fresh = init_state(run)
    folder = Path(run.output) / "checkpoints"
    with Checkpoints(folder, run) as checkpoints:
        checkpoints.save(4, fresh._replace(ema=jax.tree.map(lambda weight: weight + 0.5, fresh.params)), {})
    return folder / "4"


@pytest.fixture(scope="module")
def benchmarks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Items in the form of COPA and of WinoGrande; the others of the suite have none."""
    folder = tmp_path_factory.mktemp("benchmarks")
    items = {
        "copa": [{"premise": "It rained.", "choice1": "She was wet.", "choice2": "She sang.", "question": "effect", "label": 0}],
        "winogrande": [{"sentence": "The wren left as _ was cold.", "option1": "wren", "option2": "boot", "answer": "1"}],
    }
    for name, rows in items.items():
        (folder / name).mkdir()
        (folder / name / "validation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows * 3))
    return folder


@pytest.fixture
def evaluate(checkpoint: Path, benchmarks: Path, tmp_path_factory: pytest.TempPathFactory) -> Evaluate:
    tokenizer = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    train_tokenizer([["the cat sat on the mat", "a dog and a cat"]], 300, tokenizer)

    def call(*options: str) -> Result:
        given = [str(checkpoint), "--tokenizer", str(tokenizer), "--benchmarks", str(benchmarks), *options]
        return CliRunner().invoke(main.main, ["evaluate", *given])

    return call


def test_holes_are_in_the_table_and_in_the_exit_code(evaluate: Evaluate, checkpoint: Path) -> None:
    result = evaluate("--suite", "core", "--json")
    assert result.exit_code == 1
    said: dict[str, Any] = json.loads(result.stdout)
    assert (said["checkpoint"], said["weights"], said["suite"], said["bits_per_byte"]) == (str(checkpoint), "last", "core", {})
    values = {one["benchmark"]: one["value"] for one in said["results"]}
    assert len(values) == 13
    assert {name for name, value in values.items() if value is not None} == {"copa:0", "winogrande:0"}
    assert sorted(said["holes"]) == sorted(name for name, value in values.items() if value is None)
    assert {"benchmark", "metric", "value", "stderr", "items"} <= said["results"][0].keys()
    assert said["kept"] == str(checkpoint.parents[1] / "evaluations" / "4" / "core-last.json")

    again = evaluate("--suite", "core")
    lines = again.stdout.splitlines()
    assert any(line.split()[:2] == ["copa:0", "acc"] for line in lines)
    assert "piqa:10 not measured: no items: no file piqa/validation.jsonl" in lines
    assert lines[-1].startswith("2 of 13 measured (2 of them before), in ")


def test_the_moving_average_is_another_model(evaluate: Evaluate, checkpoint: Path) -> None:
    said = json.loads(evaluate("--suite", "core", "--weights", "ema", "--limit", "1", "--json").stdout)
    assert (said["weights"], said["read"]) == ("ema", [])
    assert said["kept"].endswith("/4/core-ema-first-1.json")
    assert {one["limit"] for one in said["results"] if one["value"] is not None} == {1}


def test_what_would_change_nothing_is_refused(evaluate: Evaluate, tmp_path: Path) -> None:
    without = evaluate()
    assert without.exit_code == 2
    assert "--benchmarks, --tokenizer needs --suite" in " ".join(without.stderr.split())
    assert_refused(evaluate("--suite", "kore"), 2, "--suite must be one of core, core+mmlu,", "found 'kore'")
    (tmp_path / "config.json").write_text("{}")
    refused = CliRunner().invoke(main.main, ["evaluate", str(tmp_path), "--suite", "core", "--weights", "ema"])
    assert_refused(refused, 2, "has one set of weights: leave out --weights ema")
    (tmp_path / "config.json").unlink()
    assert_refused(CliRunner().invoke(main.main, ["evaluate", str(tmp_path), "--suite", "core"]), 2, "and is neither")


def test_the_chat_templates_of_its_caches_go_with_a_checkpoint(evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*_: Any, **given: Any) -> None:
        raise ConfigError(f"opened with {given['chats']}")

    monkeypatch.setattr(model_loading, "find_chats", lambda *_: ("the template",))
    monkeypatch.setattr(model_loading, "model_of_checkpoint", opened)
    assert_refused(evaluate("--suite", "core"), 2, "opened with ('the template',)")


def test_a_checkpoint_whose_caches_are_gone_asks_for_its_tokenizer(checkpoint: Path, benchmarks: Path) -> None:
    result = CliRunner().invoke(main.main, ["evaluate", str(checkpoint), "--suite", "core", "--benchmarks", str(benchmarks)])
    assert_refused(result, 2, "name its tokenizer.json with --tokenizer")
