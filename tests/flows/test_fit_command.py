"""`phasewise evaluate --text`: of a phase, of a checkpoint's folder and of an exported one; and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner, Result

from experiments.survival.runs import tiny_recipe
from phasewise.flows.cli import corpus_fit, main
from phasewise.flows.plan import build_run
from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.data.tokenizer import load_tokenizer, special_tokens, tokenizer_digest, train_tokenizer
from phasewise.tasks.evaluation.model_loading import open_folder
from phasewise.tasks.home import Home
from phasewise.tasks.report.export import export_phase
from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.trainer.base.identity import write_sealed
from phasewise.trainer.base.storage import read_json, write_json
from phasewise.trainer.checkpoints.checkpointer import Checkpoints
from phasewise.trainer.checkpoints.files import checkpoint_path
from phasewise.trainer.config import RunConfig
from phasewise.trainer.data.manifest import FORMAT_VERSION, Manifest, write_manifest
from phasewise.trainer.state import abstract_state, params_digest

Evaluate = Callable[..., Result]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home.open(str(tmp_path_factory.mktemp("home")))


@pytest.fixture(scope="module")
def tokenizer(home: Home) -> Path:
    path = home.tokenizer("0" * 64) / "tokenizer.json"
    train_tokenizer([["the cat sat on the mat", "a dog and a cat"]], 300, path)
    return path


@pytest.fixture(scope="module")
def run(home: Home, tokenizer: Path) -> RunConfig:
    """The first phase of a tiny recipe, with a moving average, on caches that name their tokenizer."""
    recipe = tiny_recipe()
    phase = recipe.phases[0]
    caches = {name: home.tokens(name, "train", "0" * 64) for name in phase.components}
    for name, folder in caches.items():
        folder.mkdir(parents=True)
        begin, end = special_tokens(load_tokenizer(tokenizer))
        counts = {"shards": (), "documents": 0, "tokens": 0, "text_bytes": 0, "left_out": {}}
        code = dict.fromkeys(("reader", "normalizer", "encoder"), "made up")
        write_manifest(folder, Manifest.model_validate({
            "format_version": FORMAT_VERSION, "component": name, "split": "train", "key": "0" * 16, "source": {}, "sources": (),
            "tokenizer_digest": tokenizer_digest(tokenizer), "begin_of_text": begin, "end_of_text": end, "dtype": "uint16", **code,
            **counts,
        }))  # fmt: skip
    values = build_run(recipe, phase, home, caches).model_dump(mode="json")
    return RunConfig.model_validate({**values, "stability": {**values["stability"], "ema_decay": [[0, 0.9]]}})


@pytest.fixture(scope="module")
def checkpoint(run: RunConfig) -> Path:
    """Random weights, and an average that is another."""
    rng = np.random.default_rng(3)
    state = jax.tree.map(lambda leaf: jnp.asarray(0.1 * rng.normal(size=leaf.shape), leaf.dtype), abstract_state(run, with_ema=True))
    path = checkpoint_path(Path(run.output), run.stop_step)
    with Checkpoints(path.parent, run) as checkpoints:
        checkpoints.save(run.stop_step, state, {})
    result = {"checkpoint": str(path), "params_digest": params_digest(state.params), "run_digest": run.digest}
    write_json(Path(run.output) / "result.json", result)
    write_sealed(Path(run.output) / "run.json", run.model_dump(mode="json"))
    return path


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    (folder / "cats.txt").write_text("the cat sat on the mat\r\n" * 20)
    (folder / "dogs.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in ("a dog", "a dog", "")))
    return folder


@pytest.fixture
def evaluate(home: Home, run: RunConfig, checkpoint: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> Evaluate:
    """The command; a phase's data were never prepared, so its plan is given."""
    recipe = tiny_recipe()
    plan = SimpleNamespace(tokenizer=tokenizer)
    about = {"options": "--scale proxy", "digests": KnownDigests()}
    resolved = SimpleNamespace(recipe=recipe, recipe_name="tiny", home=home, plan=plan, run=lambda phase: run, **about)
    monkeypatch.setattr(corpus_fit, "resolve", lambda *_, **__: (resolved, recipe.phases[0]))

    def call(target: object, *arguments: object) -> Result:
        scale = () if Path(str(target)).is_dir() else ("--scale", "proxy")
        return CliRunner().invoke(main.main, ["evaluate", str(target), *scale, *map(str, arguments)])

    return call


def test_a_phase_and_its_checkpoint_and_its_exported_folder_fit_alike(
    evaluate: Evaluate, checkpoint: Path, text: Path, run: RunConfig, tokenizer: Path, tmp_path: Path
) -> None:
    of_phase = evaluate("tiny/kestrel", "--text", text, "--json")
    assert (of_phase.exit_code, of_phase.stderr) == (0, "")
    said = json.loads(of_phase.stdout)
    assert (said["phase"], said["checkpoint"], said["weights"], said["results"]) == ("kestrel", str(checkpoint), "last", [])
    assert said["windows"] == {
        "kind": "rolling", "window_tokens": 128, "stride_tokens": 128, "begin": "given", "end": "not predicted"
    }  # fmt: skip
    assert said["measured_weights"] == ["last", "ema"]
    assert said["bits_per_byte"] == {one["name"]: one["fit"]["last"]["bits_per_byte"] for one in said["subsets"]}
    assert said["macro"]["last"] != said["macro"]["ema"]
    counts = [[one[name] for name in ("files", "documents", "empty_documents", "copies", "normalized")] for one in said["subsets"]]
    assert counts == [[1, 1, 0, 0, 1], [1, 2, 1, 1, 0]]

    of_folder = json.loads(evaluate(checkpoint, "--text", text, "--json").stdout)
    assert of_folder == {name: value for name, value in said.items() if name != "phase"}

    export_phase(run, {"checkpoint": str(checkpoint), "params_digest": said["params_digest"]}, tokenizer, tmp_path / "out")
    exported = json.loads(evaluate(tmp_path / "out", "--text", text, "--json").stdout)
    assert exported["measured_weights"] == ["last"]
    assert exported["bits_per_byte"] == pytest.approx(said["bits_per_byte"], rel=1e-4)


def test_people_read_how_it_was_measured_and_what_is_odd_of_the_text(evaluate: Evaluate, text: Path) -> None:
    said = " ".join(evaluate("tiny/kestrel", "--text", text).stdout.split())
    assert "Rolling windows of 128 tokens, 128 apart; each text by itself, begin-of-text given, end-of-text not predicted." in said
    assert "Note: 1 document without text, which is not measured: dogs.jsonl 1." in said
    assert "Note: 1 document with the text of an earlier one, which is measured again: dogs.jsonl 1." in said
    assert "Note: 1 document that normalisation changed" in said


@pytest.mark.parametrize(
    ("arguments", "exit_code", "words"),
    [
        (("tiny/kestrel", "--text", "nowhere"), 2, "found none at nowhere"),
        (("tiny/kestrel", "--text", "a", "--held-out"), 2, "one measurement at a time"),
        (("tiny/kestrel", "--text", "a", "--tokenizer", "b"), 2, "has its own tokenizer"),
    ],
)
def test_what_cannot_be_asked_is_refused(evaluate: Evaluate, arguments: tuple[str, ...], exit_code: int, words: str) -> None:
    refused = evaluate(*arguments)
    assert (refused.exit_code, refused.stdout) == (exit_code, "")
    assert words in " ".join(refused.stderr.split())


def test_a_folder_without_a_checkpoint_or_without_held_out_documents_is_refused(evaluate: Evaluate, checkpoint: Path, text: Path) -> None:
    assert "whose held-out documents it measures" in evaluate(checkpoint, "--held-out").stderr
    refused = evaluate(text, "--text", text)
    assert (refused.exit_code, refused.stdout) == (1, "")


def test_other_weights_than_the_phase_s_result_names_are_refused(evaluate: Evaluate, run: RunConfig, text: Path) -> None:
    path = Path(run.output) / "result.json"
    result = read_json(path)
    write_json(path, {**result, "params_digest": "0" * 64})
    refused = evaluate("tiny/kestrel", "--text", text)
    write_json(path, result)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "holds other weights than the phase's result names" in refused.stderr


def test_a_damaged_text_ends_with_1(evaluate: Evaluate, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    refused = evaluate("tiny/kestrel", "--text", tmp_path, "--json")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "a.txt, file: not UTF-8" in refused.stderr


def test_the_tokenizer_is_the_one_of_the_caches_or_none(checkpoint: Path, tokenizer: Path, tmp_path: Path) -> None:
    assert open_folder(checkpoint).tokenizer_digest == open_folder(checkpoint, tokenizer).tokenizer_digest == tokenizer_digest(tokenizer)
    other = tmp_path / "tokenizer.json"
    train_tokenizer([["other words make other ids"]], 300, other)
    with pytest.raises(DataError, match="its ids would mean other text"):
        open_folder(checkpoint, other)
    with pytest.raises(ConfigError, match="found no file at nowhere"):
        open_folder(checkpoint, Path("nowhere"))
    moved = tokenizer.rename(tmp_path / "moved.json")
    try:
        with pytest.raises(ConfigError, match=r"name its tokenizer\.json with --tokenizer"):
            open_folder(checkpoint)
    finally:
        moved.rename(tokenizer)
