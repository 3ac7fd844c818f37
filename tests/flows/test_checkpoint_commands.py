import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import Result
from tokenizers import Tokenizer

from experiments.survival.runs import tiny_recipe
from phasewise.flows.cli import corpus_fit, publish
from phasewise.flows.plan import build_run
from phasewise.flows.status import phase_status
from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.data.tokenizer import BEGIN_OF_TEXT, END_OF_TEXT, load_tokenizer, special_tokens, train_tokenizer
from phasewise.tasks.evaluation.model_loading import open_folder
from phasewise.tasks.home import Home
from phasewise.tasks.report.export import export_phase
from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.trainer.base.identity import digest_of_file, write_sealed
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.storage import read_json
from phasewise.trainer.checkpoints.checkpointer import Checkpoints
from phasewise.trainer.config import RunConfig
from phasewise.trainer.data.manifest import FORMAT_VERSION, Manifest, write_manifest
from phasewise.trainer.model.hugging_face import read_folder
from phasewise.trainer.step import TrainState, abstract_state, params_digest
from tests.flows.commands import Run, assert_refused

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
PHASE = ("tiny/kestrel", "--scale", "proxy")


def as_written(result: Result) -> str:
    return " ".join((result.stderr or result.stdout).split())


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home.open(str(tmp_path_factory.mktemp("home")))


@pytest.fixture(scope="module")
def tokenizer(home: Home) -> Path:
    path = home.keyed("tokenizers", "0" * 64) / "tokenizer.json"
    train_tokenizer([["the cat sat on the mat", "a dog and a cat"]], 300, path)
    return path


@pytest.fixture(scope="module")
def run(home: Home, tokenizer: Path) -> RunConfig:
    recipe = tiny_recipe()
    phase = recipe.phases[0]
    caches = {name: home.tokens(name, "train", "0" * 64) for name in phase.components}
    begin, end = special_tokens(load_tokenizer(tokenizer))
    about: dict[str, Any] = {
        "format_version": FORMAT_VERSION, "split": "train", "key": "0" * 16, "source": {}, "sources": (), "dtype": "uint16",
        "tokenizer_digest": digest_of_file(tokenizer), "begin_of_text": begin, "end_of_text": end, "shards": (), "documents": 0,
        "tokens": 0, "text_bytes": 0, "left_out": {}, "reader": "made up", "normalizer": "made up", "encoder": "made up",
    }  # fmt: skip
    for name, folder in caches.items():
        folder.mkdir(parents=True)
        write_manifest(folder, Manifest.model_validate({**about, "component": name}))
    values = build_run(recipe, phase, home, caches).model_dump(mode="json")
    return RunConfig.model_validate({**values, "stability": {**values["stability"], "ema_decay": [[0, 0.9]]}})


@pytest.fixture(scope="module")
def state(run: RunConfig) -> TrainState:
    rng = np.random.default_rng(3)
    state = jax.tree.map(lambda leaf: jnp.asarray(0.1 * rng.normal(size=leaf.shape), leaf.dtype), abstract_state(run, with_ema=True))
    path = RunFolder(run.output).checkpoint(run.stop_step)
    with Checkpoints(path.parent, run) as checkpoints:
        checkpoints.save(run.stop_step, state, {})
    result = {"checkpoint": str(path), "params_digest": params_digest(state.params), "run_digest": run.digest}
    write_sealed(Path(run.output) / "result.json", result)
    write_sealed(Path(run.output) / "run.json", run.model_dump(mode="json"))
    return state


@pytest.fixture
def checkpoint(run: RunConfig, state: TrainState) -> Path:
    return RunFolder(run.output).checkpoint(run.stop_step)


@pytest.fixture
def command(phasewise: Run, home: Home, run: RunConfig, state: TrainState, tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A command; the phase's data were never prepared, so its plan is given."""
    recipe = tiny_recipe()
    plan = SimpleNamespace(tokenizer=tokenizer, chats_of=lambda _: ())
    about = {"options": "--scale proxy", "digests": KnownDigests()}
    resolved = SimpleNamespace(recipe=recipe, recipe_name="tiny", home=home, plan=plan, run=lambda phase: run, **about)
    for module in (corpus_fit, publish):
        monkeypatch.setattr(module, "resolve", lambda *_, **__: (resolved, recipe.phases[0]))
    return phasewise


@pytest.fixture
def export(command: Run, home: Home) -> Run:
    return lambda *arguments: command("export", "tiny/kestrel", *arguments, "--scale", "proxy", "--home", home.root)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    (folder / "cats.txt").write_text("the cat sat on the mat\r\n" * 20)
    (folder / "dogs.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in ("a dog", "a dog", "")))
    return folder


@pytest.fixture
def suite(phasewise: Run, checkpoint: Path, tokenizer: Path, tmp_path: Path) -> Run:
    items = {
        "copa": {"premise": "It rained.", "choice1": "She was wet.", "choice2": "She sang.", "question": "effect", "label": 0},
        "winogrande": {"sentence": "The wren left as _ was cold.", "option1": "wren", "option2": "boot", "answer": "1"},
    }
    for name, row in items.items():
        (tmp_path / "benchmarks" / name).mkdir(parents=True)
        (tmp_path / "benchmarks" / name / "validation.jsonl").write_text((json.dumps(row) + "\n") * 3)
    own = ("--tokenizer", tokenizer, "--benchmarks", tmp_path / "benchmarks")
    return lambda *options: phasewise("evaluate", checkpoint, *own, *options)


def test_a_suite_names_what_it_did_not_measure_in_the_table_and_the_exit_code(suite: Run, checkpoint: Path):
    result = suite("--suite", "core", "--json")
    assert result.exit_code == 1
    said: dict[str, Any] = json.loads(result.stdout)
    assert (said["checkpoint"], said["weights"], said["suite"], said["bits_per_byte"]) == (str(checkpoint), "last", "core", {})
    values = {one["benchmark"]: one["value"] for one in said["results"]}
    assert len(values) == 13
    assert {name for name, value in values.items() if value is not None} == {"copa:0", "winogrande:0"}
    assert sorted(said["holes"]) == sorted(name for name, value in values.items() if value is None)
    assert {"benchmark", "metric", "value", "stderr", "items"} <= said["results"][0].keys()
    assert said["kept"] == str(checkpoint.parents[1] / "evaluations" / checkpoint.name / "core-last.json")
    lines = suite("--suite", "core").stdout.splitlines()
    assert any(line.split()[:2] == ["copa:0", "acc"] for line in lines)
    assert "piqa:10 not measured: no items: no file piqa/validation.jsonl" in lines
    assert lines[-1].startswith("2 of 13 measured (2 of them before), in ")
    said = json.loads(suite("--suite", "core", "--weights", "ema", "--limit", "1", "--json").stdout)
    assert (said["weights"], said["read"]) == ("ema", [])
    assert said["kept"].endswith(f"/{checkpoint.name}/core-ema-first-1.json")
    assert {one["limit"] for one in said["results"] if one["value"] is not None} == {1}


def test_a_suite_that_cannot_be_measured_is_refused(suite: Run, phasewise: Run, tmp_path: Path):
    without = suite()
    assert without.exit_code == 2
    assert "--benchmarks, --tokenizer needs --suite" in as_written(without)
    assert_refused(suite("--suite", "kore"), 2, "--suite must be one of core, core+mmlu,", "found 'kore'")
    (tmp_path / "model").mkdir()
    assert_refused(phasewise("evaluate model --suite core"), 2, "expected a checkpoint with about/ and state/")
    (tmp_path / "model" / "config.json").write_text("{}")
    assert_refused(phasewise("evaluate model --suite core --weights ema"), 2, "has one set of weights: leave out --weights ema")


def test_a_phase_and_its_checkpoint_and_its_exported_folder_fit_a_text_alike(
    command: Run, checkpoint: Path, text: Path, run: RunConfig, tokenizer: Path, tmp_path: Path
):
    of_phase = command("evaluate", *PHASE, "--text", text, "--json")
    assert (of_phase.exit_code, of_phase.stderr) == (0, "")
    said = json.loads(of_phase.stdout)
    assert (said["phase"], said["checkpoint"], said["weights"], said["results"]) == ("kestrel", str(checkpoint), "last", [])
    windows = {"kind": "rolling", "window_tokens": 128, "stride_tokens": 128, "begin": "given", "end": "not predicted"}
    assert (said["windows"], said["measured_weights"]) == (windows, ["last", "ema"])
    assert said["bits_per_byte"] == {one["name"]: one["fit"]["last"]["bits_per_byte"] for one in said["subsets"]}
    assert said["macro"]["last"] != said["macro"]["ema"]
    counts = [[one[name] for name in ("files", "documents", "empty_documents", "copies", "normalized")] for one in said["subsets"]]
    assert counts == [[1, 1, 0, 0, 1], [1, 2, 1, 1, 0]]
    of_folder = json.loads(command("evaluate", checkpoint, "--text", text, "--json").stdout)
    assert of_folder == {name: value for name, value in said.items() if name != "phase"}
    beside = json.loads(command("evaluate", *PHASE, "--text", text, "--against", checkpoint, "--json").stdout)
    assert {one["name"]: one["bits_per_byte"] for one in beside["subsets"]} == pytest.approx(said["bits_per_byte"])
    assert (beside["against"], beside["tokens"]) == (str(checkpoint), [])
    assert "cats.txt" in command("evaluate", *PHASE, "--text", text, "--against", checkpoint).stdout
    export_phase(run, {"checkpoint": str(checkpoint), "params_digest": said["params_digest"]}, tokenizer, tmp_path / "out")
    exported = json.loads(command("evaluate", tmp_path / "out", "--text", text, "--json").stdout)
    assert exported["measured_weights"] == ["last"]
    assert exported["bits_per_byte"] == pytest.approx(said["bits_per_byte"], rel=1e-4)


@pytest.mark.parametrize(
    ("arguments", "exit_code", "words"),
    [
        ((*PHASE, "--text", "nowhere"), 2, "found none at nowhere"),
        ((*PHASE, "--text", "a", "--held-out"), 2, "one measurement at a time"),
        ((*PHASE, "--text", "a", "--tokenizer", "b"), 2, "has its own tokenizer"),
        ((*PHASE, "--against", "b"), 2, "--against needs --text or --held-out"),
        ((*PHASE, "--text", "damaged", "--json"), 1, "a.txt, file: not UTF-8"),
        (("damaged", "--text", "damaged"), 1, ""),
        (("{checkpoint}", "--held-out"), 2, "whose held-out documents it measures"),
    ],
)
def test_a_text_that_cannot_be_measured_is_refused(
    command: Run, checkpoint: Path, tmp_path: Path, arguments: tuple[str, ...], exit_code: int, words: str
):
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "a.txt").write_bytes(b"caf\xe9")
    refused = command("evaluate", *(one.format(checkpoint=checkpoint) for one in arguments))
    assert (refused.exit_code, refused.stdout) == (exit_code, "")
    assert words in as_written(refused)


def test_the_tokenizer_is_the_one_of_the_caches_or_none(checkpoint: Path, tokenizer: Path, tmp_path: Path):
    assert open_folder(checkpoint).tokenizer_digest == open_folder(checkpoint, tokenizer).tokenizer_digest == digest_of_file(tokenizer)
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


def test_the_exported_folder_holds_the_trained_weights_bit_for_bit_and_a_tokenizer_that_begins_documents(
    export: Run, tmp_path: Path, run: RunConfig, state: TrainState, tokenizer: Path
):
    result = export(tmp_path / "out", "--json")
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
    ours, theirs = (Tokenizer.from_file(str(path)) for path in (tokenizer, tmp_path / "out/tokenizer.json"))
    for text in ("the cat sat", "", "ünïcode 猫\n"):
        assert theirs.encode(text).ids == [ours.token_to_id(BEGIN_OF_TEXT), *ours.encode(text).ids]
        assert theirs.encode(text, add_special_tokens=False).ids == ours.encode(text).ids
    about = read_json(tmp_path / "out/tokenizer_config.json")
    assert (about["bos_token"], about["eos_token"], about["model_max_length"]) == (BEGIN_OF_TEXT, END_OF_TEXT, 128)
    assert read_json(tmp_path / "out/config.json")["eos_token_id"] == ours.token_to_id(END_OF_TEXT)


def test_the_moving_average_is_exported_in_half_the_size_and_the_folder_says_so(export: Run, tmp_path: Path, state: TrainState):
    shown = as_written(export(tmp_path / "ema", "--weights", "ema"))
    assert state.ema is not None
    assert params_digest(read_folder(tmp_path / "ema")[0]) == params_digest(state.ema)
    assert f"{tmp_path}/ema: LlamaForCausalLM, float32, " in shown
    assert "kestrel at step 40, weights ema, from " in shown
    files = "README.md, config.json, generation_config.json, model.safetensors, phasewise.json, tokenizer.json, tokenizer_config.json"
    assert files in shown
    export(tmp_path / "half", "--weights", "ema", "--dtype", "bfloat16")
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("ema", "half")]
    assert 1.9 < sizes[0] / sizes[1] < 2.1
    origin = read_json(tmp_path / "half/phasewise.json")
    assert (origin["weights"], origin["steps"], origin["dtype"]) == ("ema", [40], "bfloat16")
    assert origin["params_digest"] == params_digest(state.ema)
    page = (tmp_path / "half/README.md").read_text()
    assert page.startswith("---\nlibrary_name: transformers\n")
    assert "These are the moving average of the weights at step 40" in page
    assert "evaluation, verdicts, data." in page


def test_the_mean_of_the_last_checkpoints_is_exported(export: Run, tmp_path: Path, run: RunConfig, state: TrainState):
    refused = export(tmp_path / "out", "--weights", "average:2")
    assert refused.exit_code == 1
    assert "the last 2 checkpoints must end with the one of step 40" in as_written(refused)
    earlier = jax.tree.map(lambda leaf: leaf + 1 if leaf.dtype == jnp.float32 else leaf, state)
    path = RunFolder(run.output).checkpoint(35)
    with Checkpoints(path.parent, run) as checkpoints:
        checkpoints.save(35, earlier, {})
    said = json.loads(export(tmp_path / "mean", "--weights", "average:2", "--json").stdout)
    shutil.rmtree(path)
    assert (said["weights"], said["steps"]) == ("average:2", [35, 40])
    for found, one, other in zip(*map(jax.tree.leaves, (read_folder(tmp_path / "mean")[0], state.params, earlier.params)), strict=True):
        assert np.abs(found - (np.asarray(one, np.float64) + other) / 2).max() < 1e-6


@pytest.mark.parametrize("weights", ["first", "average", "average:1", "average:x", "average:-2"])
def test_weights_that_are_none_are_refused(export: Run, tmp_path: Path, weights: str):
    result = export(tmp_path / "out", "--weights", weights)
    assert result.exit_code == 2
    assert "must be last, ema or average:N with N of at least 2" in as_written(result)


def test_other_weights_than_the_result_names_and_a_folder_with_something_in_it_are_refused(
    export: Run, command: Run, tmp_path: Path, run: RunConfig, text: Path
):
    path = Path(run.output) / "result.json"
    result: dict[str, Any] = read_json(path)
    (tmp_path / "mine.txt").touch()
    write_sealed(path, {**result, "checkpoint": "gone"})
    occupied = export(tmp_path, "--json")  # refused before a checkpoint is read
    write_sealed(path, {**result, "params_digest": "0" * 64})
    exported, measured = export(tmp_path / "out"), command("evaluate", *PHASE, "--text", text)
    write_sealed(path, result)
    assert (exported.exit_code, measured.exit_code, measured.stdout) == (1, 1, "")
    assert "expected 000000000000" in as_written(exported)
    assert "holds other weights than the phase's result names" in measured.stderr
    assert_refused(occupied, 2, "must be new or empty")
    assert not (tmp_path / "out").exists()


def test_a_phase_that_is_not_trained_or_whose_tokenizer_lacks_a_token_is_not_exported(
    export: Run, tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
):
    other = tmp_path / "tokenizer.json"
    other.write_text(tokenizer.read_text().replace(END_OF_TEXT, "<|end|>"))
    resolved, _ = publish.resolve("tiny/kestrel", "proxy", None)
    monkeypatch.setattr(resolved, "plan", SimpleNamespace(tokenizer=other, chats_of=lambda _: ()))
    assert_refused(export(tmp_path / "out"), 1, f"must have the tokens {BEGIN_OF_TEXT} and {END_OF_TEXT}")
    monkeypatch.setattr(phase_status, "finished_result", lambda run, **_: None)
    assert_refused(export(tmp_path / "out"), 1, "is not trained at proxy scale")


def test_an_export_of_no_phase_or_to_no_folder_is_refused(phasewise: Run):
    said = "export needs a phase, found the recipe marin-8b. Its phases are marin-8b/kestrel"
    assert_refused(phasewise("export marin-8b out"), 2, said)
    assert_refused(phasewise("export marin-8b/kestrel gs://bucket/out"), 2, "must be on this machine, found gs://bucket/out")


def test_a_model_writes_documents_that_are_searched_for_test_items(phasewise: Run, checkpoint: Path, tokenizer: Path, tmp_path: Path):
    (tmp_path / "seeds").mkdir()
    (tmp_path / "seeds" / "a.txt").write_text("the cat sat on the mat " * 3)
    (tmp_path / "items").mkdir()
    (tmp_path / "items" / "test.jsonl").write_text(json.dumps({"question": "why did the cat sit on the mat of the old grey dog?"}) + "\n")
    arguments = ("data", "generate", checkpoint, tmp_path / "seeds", tmp_path / "out", "--tokenizer", tokenizer)
    given = ("--samples", "4", "--temperature", "1", "--tokens", "60", "--min-words", "1", "--benchmarks", tmp_path / "items", "--json")
    first = phasewise(*arguments, *given)
    assert first.exit_code == 0, first.stderr
    said = json.loads(first.stdout)
    assert (said["seeds"], said["samples"], said["searched"]) == (1, 4, True)
    written = (tmp_path / "out" / "documents.jsonl").read_text().splitlines()
    assert said["documents"] == len(written) == 4 - sum(said["left_out"].values())
    assert len({json.loads(line)["text"] for line in written}) == len(written)
    again = phasewise(*(str(one).replace("/out", "/again") for one in arguments), *given)
    assert json.loads(again.stdout)["documents_digest"] == said["documents_digest"]
    assert_refused(phasewise(*arguments, *given), 2, "Give another folder")
