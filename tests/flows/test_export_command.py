"""`phasewise export`: what is written is what was trained, and what is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner, Result
from tokenizers import Tokenizer

from experiments.survival.runs import tiny_recipe
from phasewise.flows.cli import main, publish
from phasewise.flows.plan import build_run
from phasewise.flows.status import phase_status
from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.data.tokenizer import BEGIN_OF_TEXT, END_OF_TEXT, train_tokenizer
from phasewise.tasks.home import Home
from phasewise.trainer.base.identity import write_sealed
from phasewise.trainer.base.storage import read_json, write_json
from phasewise.trainer.checkpoints.checkpointer import Checkpoints
from phasewise.trainer.checkpoints.files import checkpoint_path
from phasewise.trainer.config import RunConfig
from phasewise.trainer.model.hugging_face import read_folder
from phasewise.trainer.state import TrainState, abstract_state, params_digest

Export = Callable[..., Result]


def as_written(error: Result) -> str:
    return " ".join(error.stderr.split())


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    train_tokenizer([["the cat sat on the mat", "a dog and a cat"]], 300, path)
    return path


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home.open(str(tmp_path_factory.mktemp("home")))


@pytest.fixture(scope="module")
def run(home: Home) -> RunConfig:
    """The first phase of a tiny recipe, with a moving average."""
    recipe = tiny_recipe()
    phase = recipe.phases[0]
    values = build_run(recipe, phase, home, dict.fromkeys(phase.components, Path("nowhere"))).model_dump(mode="json")
    return RunConfig.model_validate({**values, "stability": {**values["stability"], "ema_decay": [[0, 0.9]]}})


@pytest.fixture(scope="module")
def state(run: RunConfig) -> TrainState:
    """A whole state of random numbers, saved as a phase's last."""
    rng = np.random.default_rng(3)
    state = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype), abstract_state(run, with_ema=True))
    path = checkpoint_path(Path(run.output), run.stop_step)
    with Checkpoints(path.parent, run) as checkpoints:
        checkpoints.save(run.stop_step, state, {})
    result = {"checkpoint": str(path), "params_digest": params_digest(state.params), "run_digest": run.digest}
    write_json(Path(run.output) / "result.json", result)
    write_sealed(Path(run.output) / "run.json", run.model_dump(mode="json"))
    return state


@pytest.fixture
def phasewise_export(home: Home, run: RunConfig, state: TrainState, tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> Export:
    """The command on that home: its data were never prepared, so the plan is given."""
    recipe = tiny_recipe()
    plan = SimpleNamespace(tokenizer=tokenizer, chats_of=lambda _: ())
    about = {"options": "--scale proxy", "digests": KnownDigests()}
    resolved = SimpleNamespace(recipe=recipe, recipe_name="tiny", home=home, plan=plan, run=lambda phase: run, **about)
    monkeypatch.setattr(publish, "resolve", lambda *_, **__: (resolved, recipe.phases[0]))

    def call(*arguments: object) -> Result:
        return CliRunner().invoke(main.main, ["export", "tiny/kestrel", *map(str, arguments), "--scale", "proxy", "--home", str(home.root)])

    return call


def test_the_folder_holds_the_trained_weights_bit_for_bit(phasewise_export: Export, tmp_path: Path, run: RunConfig, state: TrainState):
    result = phasewise_export(tmp_path / "out", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    said = json.loads(result.stdout)
    params, config = read_folder(tmp_path / "out")
    assert config == run.model
    assert params_digest(params) == params_digest(state.params) == said["params_digest"]
    assert said["folder"] == str(tmp_path / "out")
    assert (said["recipe"], said["scale"], said["phase"], said["step"], said["weights"]) == ("tiny", "proxy", "kestrel", 40, "last")
    assert (said["architecture"], said["dtype"]) == ("LlamaForCausalLM", "float32")
    assert said["parameters"] == sum(leaf.size for leaf in jax.tree.leaves(params))
    assert said["files"] == sorted(path.name for path in (tmp_path / "out").iterdir())
    assert said["bytes"] == sum(path.stat().st_size for path in (tmp_path / "out").iterdir())


def test_the_moving_average_can_be_had_and_half_the_size(phasewise_export: Export, tmp_path: Path, state: TrainState):
    assert phasewise_export(tmp_path / "ema", "--weights", "ema").exit_code == 0
    assert state.ema is not None
    assert params_digest(read_folder(tmp_path / "ema")[0]) == params_digest(state.ema)
    phasewise_export(tmp_path / "half", "--dtype", "bfloat16")
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("ema", "half")]
    assert 1.9 < sizes[0] / sizes[1] < 2.1


def test_the_mean_of_the_last_checkpoints_can_be_had(phasewise_export: Export, tmp_path: Path, run: RunConfig, state: TrainState):
    refused = phasewise_export(tmp_path / "out", "--weights", "average:2")
    assert refused.exit_code == 1
    assert "the last 2 checkpoints must end with the one of step 40" in as_written(refused)
    earlier = jax.tree.map(lambda leaf: leaf + 1 if leaf.dtype == jnp.float32 else leaf, state)
    path = checkpoint_path(Path(run.output), 35)
    with Checkpoints(path.parent, run) as checkpoints:
        checkpoints.save(35, earlier, {})
    said = json.loads(phasewise_export(tmp_path / "mean", "--weights", "average:2", "--json").stdout)
    shutil.rmtree(path)
    assert (said["weights"], said["steps"]) == ("average:2", [35, 40])
    for found, one, other in zip(*map(jax.tree.leaves, (read_folder(tmp_path / "mean")[0], state.params, earlier.params)), strict=True):
        assert np.abs(found - (np.asarray(one, np.float64) + other) / 2).max() < 1e-6


def test_the_folder_says_what_it_holds_and_what_nobody_knows(phasewise_export: Export, tmp_path: Path, state: TrainState):
    phasewise_export(tmp_path / "out", "--weights", "ema", "--dtype", "bfloat16")
    origin = read_json(tmp_path / "out/phasewise.json")
    assert (origin["weights"], origin["steps"], origin["dtype"]) == ("ema", [40], "bfloat16")
    assert state.ema is not None
    assert origin["params_digest"] == params_digest(state.ema)
    page = (tmp_path / "out/README.md").read_text()
    assert page.startswith("---\nlibrary_name: transformers\n")
    assert "These are the moving average of the weights at step 40" in page
    assert "evaluation, verdicts, data." in page


@pytest.mark.parametrize("weights", ["first", "average", "average:1", "average:x", "average:-2"])
def test_weights_that_are_none_are_refused(phasewise_export: Export, tmp_path: Path, weights: str):
    result = phasewise_export(tmp_path / "out", "--weights", weights)
    assert result.exit_code == 2
    assert "must be last, ema or average:N with N of at least 2" in as_written(result)


def test_the_tokenizer_begins_documents_by_itself_and_otherwise_is_the_same(phasewise_export: Export, tmp_path: Path, tokenizer: Path):
    phasewise_export(tmp_path / "out")
    ours, theirs = (Tokenizer.from_file(str(path)) for path in (tokenizer, tmp_path / "out/tokenizer.json"))
    for text in ("the cat sat", "", "ünïcode 猫\n"):
        assert theirs.encode(text).ids == [ours.token_to_id(BEGIN_OF_TEXT), *ours.encode(text).ids]
        assert theirs.encode(text, add_special_tokens=False).ids == ours.encode(text).ids
    about = read_json(tmp_path / "out/tokenizer_config.json")
    assert (about["bos_token"], about["eos_token"], about["model_max_length"]) == (BEGIN_OF_TEXT, END_OF_TEXT, 128)
    assert read_json(tmp_path / "out/config.json")["eos_token_id"] == ours.token_to_id(END_OF_TEXT)


def test_people_are_shown_what_is_where(phasewise_export: Export, tmp_path: Path):
    said = " ".join(phasewise_export(tmp_path / "out").stdout.split())
    assert f"{tmp_path}/out: LlamaForCausalLM, float32, " in said
    assert "kestrel at step 40, weights last, from " in said
    files = "README.md, config.json, generation_config.json, model.safetensors, phasewise.json, tokenizer.json, tokenizer_config.json"
    assert files in said


def test_a_folder_with_something_in_it_is_refused_before_anything_is_read(phasewise_export: Export, tmp_path: Path, run: RunConfig):
    (tmp_path / "mine.txt").touch()
    result = read_json(Path(run.output) / "result.json")
    write_json(Path(run.output) / "result.json", {**result, "checkpoint": "gone"})
    refused = phasewise_export(tmp_path, "--json")
    write_json(Path(run.output) / "result.json", result)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "must be new or empty" in as_written(refused)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_other_weights_than_the_result_names_are_refused(phasewise_export: Export, tmp_path: Path, run: RunConfig):
    path = Path(run.output) / "result.json"
    result: dict[str, Any] = read_json(path)
    write_json(path, {**result, "params_digest": "0" * 64})
    refused = phasewise_export(tmp_path / "out")
    write_json(path, result)
    assert refused.exit_code == 1
    assert "expected 000000000000" in as_written(refused)
    assert not (tmp_path / "out").exists()


def test_what_is_not_trained_is_not_exported(phasewise_export: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(phase_status, "finished_result", lambda run, **_: None)
    result = phasewise_export(tmp_path / "out")
    assert result.exit_code == 1
    assert "is not trained at proxy scale" in as_written(result)


def test_a_tokenizer_without_those_tokens_is_refused(
    phasewise_export: Export, tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
):
    other = tmp_path / "tokenizer.json"
    other.write_text(tokenizer.read_text().replace(END_OF_TEXT, "<|end|>"))
    resolved, _ = publish.resolve("tiny/kestrel", "proxy", None)
    monkeypatch.setattr(resolved, "plan", SimpleNamespace(tokenizer=other, chats_of=lambda _: ()))
    result = phasewise_export(tmp_path / "out")
    assert result.exit_code == 1
    assert f"must have the tokens {BEGIN_OF_TEXT} and {END_OF_TEXT}" in as_written(result)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("marin-8b", "out"), 2, "export needs a phase, found the recipe marin-8b; there are marin-8b/kestrel"),
        (("marin-8b/kestrel", "gs://bucket/out"), 2, "must be on this machine, found gs://bucket/out"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], code: int, said: str):
    result = CliRunner().invoke(main.main, ["export", *arguments])
    assert (result.exit_code, result.stdout) == (code, "")
    assert said in as_written(result)
