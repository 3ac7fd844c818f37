import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import Result

from phasewise.flows.cli import main
from phasewise.flows.recipes import load_written
from phasewise.flows.recipes.words import Recipe, Tokenizer, continued, cooldown, from_scratch, gates, llama, text, wsd
from phasewise.trainer.base.errors import PhasewiseError
from phasewise.trainer.base.storage import write_json
from tests.flows.commands import Run, assert_refused

SETTINGS: dict[str, tuple[int, str]] = {
    # fields
    "warm-up.batch=-1": (1, "warm-up.batch: expected at least 1, found -1"),
    "*.batch=[[0,8],[0,9]]": (1, "warm-up.batch: steps must increase"),
    "*.nix=1": (1, "warm-up has no field 'nix'"),
    "*.model.head_dim=31": (1, "warm-up.model.head_dim: expected a multiple of 2, found 31"),
    "*.model.qk_norm=7": (1, "warm-up.model.qk_norm: expected true or false, found 7"),
    "*.optimizer.beta1=2": (1, "warm-up.optimizer.adamw.beta1: expected less than 1, found 2"),
    "*.optimizer.kind=adam": (1, "warm-up.optimizer: expected 'kind' to be 'adamw', 'adamc', 'nadamw', 'muon', found 'adam'"),
    "*.learning_rate.0.kind=cubic": (1, "expected 'constant', 'linear', 'cosine' or 'inverse', found 'cubic'"),
    "*.evaluation.benchmarks=[\"nix\"]": (1, "warm-up.evaluation.benchmarks: nothing knows the benchmark 'nix'"),
    'recipe.tokenizer.special_tokens=["a","a"]': (1, "special_tokens: expected texts that differ from each other"),
    'recipe.sources={"all":1,"all":2}': (1, "expected each name once in an object, found 'all' more than once"),
    f"recipe.sources={'[' * 200}{']' * 200}": (1, "expected at most 100 levels of lists and objects, found more"),
    # fields against each other
    "*.model.num_kv_heads=3": (1, "warm-up.model: num_query_heads must be a multiple of num_kv_heads, found 4 and 3"),
    "*.learning_rate=[]": (1, "warm-up: the learning rate must cover steps 0 → 100, found nothing"),
    '*.mixture={"all":50}': (1, "warm-up: the mixture from step 0 must sum to 100 %, found 50.00 %"),
    # phases against each other
    "cooldown.name=warm-up": (1, "two phases are called warm-up"),
    "warm-up.stop_step=50": (1, "phase cooldown starts from step 100 of warm-up, which would stop at step 50"),
    'cooldown.mixture={"all":100}': (1, "declares mixture, and changes no such thing"),
    # what the whole cannot be
    '*.slice=nix': (2, "no slice is called 'nix'"),
    "*.loss_on=answers": (1, "has loss_on answers: all its components must be conversations, and all is plain text"),
    'cooldown.mixture={"all":99.99,"best":0.01}': (1, "a block of 32 has none of best (0.01 %)"),
    'cooldown.mixture={"all":40,"best":30,"unknown":30}': (1, "mine draws from unknown, which flows/recipes/catalogue does not name"),
    "recipe.tokenizer.vocab_size=10": (1, "tokenizer.vocab_size: expected at least 258, for 256 bytes and 2 special tokens, found 10"),
    'recipe.tokenizer.name="./nowhere"': (2, "a tokenizer is a folder with a tokenizer.json, or such a file, found none at nowhere"),
    'recipe.tokenizer.name="./bare"': (1, "must have the tokens <|begin_of_text|> and <|end_of_text|>"),
    'recipe.tokenizer={"name":"./wide","vocab_size":4}': (1, "must have ids below the recipe's tokenizer.vocab_size of 4, found 4"),
    'recipe.tokenizer={"name":"./wide","vocab_size":2048}\nrecipe.sources.all.format=jsonl\n'
    'recipe.sources.all.conversation={"messages":"m","template":"marin"}': (
        1,
        "as special tokens, one token each: the chat template marin writes them",
    ),
    'recipe.sources.all.conversation={"messages":"m","template":"{% nix %}"}\nrecipe.sources.all.format=jsonl': (2, "cannot be used: "),
}  # fmt: skip
"""What `--set` says of a sound recipe, a line each → exit code, and what the refusal says."""
PHASE = "{recipe}/cooldown"
COMMANDS: dict[str, list[str]] = {
    "show": ["{recipe}"], "lineage": ["{recipe}"], "status": ["{recipe}"], "goodput": ["{recipe}"], "run": ["{recipe}"],
    "preflight": ["{recipe}", "--scale", "own"], "data prepare": ["{recipe}"], "data verify": ["{recipe}"], "evaluate": [PHASE],
    "trace": [PHASE, "--step", "120"], "approve": [PHASE, "--reason", "it is good"], "export": [PHASE, "out"], "card": [PHASE, "out"],
    "tokenizer train": ["{recipe}", "out", "--vocab-size", "512"], "sample": [PHASE, "a text"], "chat": [PHASE],
    "data generate": [PHASE, "seeds", "out"],
    "try": [PHASE, "--arm", "small:batch=4"],
    "why": [PHASE, "--step", "120"],
    "mixture": [PHASE],
}  # fmt: skip
"""Every command that takes a recipe, with the least that it needs."""
BY_PHASE = ("run", "show", "lineage", "data prepare", "data verify", "evaluate", "status", "goodput")
OF_EACH_KIND = ("warm-up.batch=-1", "*.model.num_kv_heads=3", "*.slice=nix", 'recipe.tokenizer.name="./bare"')
FLOWS = {
    "train_recipe": False, "prepare_data": False, "train_phase": True, "validate_data": True, "evaluate_checkpoint": True,
    "preflight": True, "export_phase": True, "try_phase": True, "search_mixture": True,
}  # fmt: skip
"""Flow → whether it takes a phase."""
HEAVY = ("jax", "great_expectations", "dask", "distributed", "prefect", "lm_eval", "torch", "transformers")


def recipe_over(folder: Path) -> Recipe:
    model, rate = llama(num_layers=4, d_model=128, seq_len=256, vocab_size=2048), wsd(stop_step=100, warmup=10, decay=0, peak=2e-3)
    given: dict[str, Any] = {"model": model, "batch": 8, "mixture": {"all": 100}, "learning_rate": rate, "gates": gates()}
    first = from_scratch(name="warm-up", stop_step=100, **given)
    better = {"all": 50, "best": 50}
    fall = cooldown(100, 150, peak=2e-3, floor=2e-5)
    last = continued(first, name="cooldown", stop_step=150, declares=("schedule", "mixture"), mixture=better, learning_rate=fall)
    sources = {name: text(str(folder), include=("*.txt",)) for name in better}
    return Recipe(name="mine", tokenizer=Tokenizer(vocab_size=2048), phases=(first, last), sources=sources)


@pytest.fixture
def mine(tmp_path: Path) -> str:
    from tokenizers import Tokenizer as Trained
    from tokenizers import models

    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("Some text.\n\n" * 200)
    for name, words in {"bare": ("a", "b"), "wide": ("a", "b", "c", "<|begin_of_text|>", "<|end_of_text|>")}.items():
        (tmp_path / name).mkdir()
        Trained(models.WordLevel({word: number for number, word in enumerate(words)}, "a")).save(str(tmp_path / name / "tokenizer.json"))
    raw = recipe_over(tmp_path / "text").model_dump(mode="json")
    write_json(tmp_path / "mine.json", raw)
    raw["phases"][0]["stop_stpe"] = 3
    write_json(tmp_path / "typo.json", raw)
    return "mine.json"


def commands_with_a_recipe(group: click.Group = main.main, before: str = "") -> Iterator[str]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands_with_a_recipe(command, f"{before}{name} ")
        elif any(isinstance(one, click.Argument) and "RECIPE" in (one.metavar or "") for one in command.params):
            yield f"{before}{name}"


def sentences(phasewise: Run, recipe: str, setting: str, ways: Iterable[Sequence[str]]) -> Iterator[tuple[str, Result]]:
    for command, *others in ways:
        settings = [word for one in setting.split("\n") if one for word in ("--set", one)]
        home = () if command == "lineage" else ("--home", "home")
        yield command, phasewise(command, *(word.format(recipe=recipe) for word in others), *settings, *home)


def test_every_command_that_takes_a_recipe_is_in_the_table_and_the_recipe_is_sound(phasewise: Run, mine: str):
    without_set = {"tokenizer compare"}  # it reads what a recipe prepared
    assert set(commands_with_a_recipe()) - without_set == set(COMMANDS)
    assert [phasewise(command, mine).exit_code for command in ("show", "lineage")] == [0, 0]


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_that_cannot_be_is_refused(phasewise: Run, mine: str, setting: str):
    for _, result in sentences(phasewise, mine, setting, [("show", "{recipe}")]):
        assert_refused(result, *SETTINGS[setting])


@pytest.mark.parametrize(
    ("recipe", "setting", "code", "said"),
    [
        *(("mine.json", setting, *SETTINGS[setting]) for setting in OF_EACH_KIND),
        ("typo.json", "", 1, "warm-up.stop_stpe: there is no such field"),
        ("marin-7b", "", 2, "no recipe is called 'marin-7b'. Names are marin-8b"),
    ],
)
@pytest.mark.usefixtures("mine")
def test_every_command_refuses_in_the_same_words_before_anything_is_made(
    phasewise: Run, tmp_path: Path, recipe: str, setting: str, code: int, said: str
):
    before = sorted(tmp_path.rglob("*"))
    found: dict[str, str] = {}
    for command, result in sentences(phasewise, recipe, setting, ((name, *words) for name, words in COMMANDS.items())):
        if command != "preflight" or recipe != "marin-7b":  # it has no scale that is the recipe's own
            assert_refused(result, code, said)
            found[command] = result.stderr
    assert len(set(found.values())) == 1, found
    assert sorted(tmp_path.rglob("*")) == before  # no home, and so no server, no Dask and no run


def test_an_unknown_phase_is_refused_by_every_command_in_the_same_words(phasewise: Run, tmp_path: Path):
    for _, result in sentences(phasewise, "marin-8b", "", [(command, "{recipe}/kestral") for command in BY_PHASE]):
        assert_refused(result, 2, "marin-8b has no phase 'kestral', did you mean kestrel")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine.json").mkdir()
    assert_refused(phasewise("show", "mine.json"), 2, "mine.json is a folder")


def test_every_flow_refuses_in_the_same_words(mine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for name, gives_phase in FLOWS.items():
        flow = getattr(import_module(f"phasewise.flows.{name}"), name)
        for setting in ("warm-up.batch=-1", "recipe.tokenizer.vocab_size=10", "*.slice=nix"):
            given: dict[str, Any] = {"recipe": mine, "scale": "own", "home": str(tmp_path / "home"), "settings": (setting,)}
            with pytest.raises(PhasewiseError) as refusal:
                flow.fn(**given, **({"phase": "cooldown"} if gives_phase else {}))
            assert SETTINGS[setting][1] in str(refusal.value), name
    assert not (tmp_path / "home").exists()


def test_nothing_heavy_is_imported_before_a_refusal(mine: str, tmp_path: Path):
    rows = [[*name.split(), *(word.format(recipe=mine) for word in words)] for name, words in COMMANDS.items()]
    code = f"""
import sys
from click.testing import CliRunner
from phasewise.flows.cli import main
for words in {rows!r}:
    result = CliRunner().invoke(main.main, [*words, "--set", "recipe.tokenizer.vocab_size=10"])
    assert result.exit_code == 1 and "expected at least 258" in result.stderr, (words, result.output)
    found = [name for name in {HEAVY!r} if name in sys.modules]
    assert not found, (words, found)
"""
    root = str(Path(__file__).parents[2])
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": root, "PATH": ""}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "expected a JSON value, found an empty text"),
    "deep": (b'{"a":' * 100_000, "expected at most 100 levels"),
    "twice": (b'{"name": "mine", "name": "mine"}', "expected each name once in an object, found 'name' more than once"),
    "NaN": (b'{"name": NaN}', "expected a finite number, found NaN"),
    "a huge integer": (b"[" + b"9" * 10_000 + b"]", "expected integers of at most 64 bits"),
    "UTF-16": ('{"name": "mine"}'.encode("utf-16"), "expected text in UTF-8, found the byte 0xff at 0"),
    "a byte order mark": (b"\xef\xbb\xbf{}", "expected UTF-8 without a byte order mark"),
    "a binary": (b"\x7fELF\x02\x01\x00\x80" * 40, "expected text in UTF-8, found the byte 0x80 at 7"),
    "cut": (b'{"name": "mi', "Unterminated string"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_is_one_line_wherever_json_is_read(phasewise: Run, tmp_path: Path, kind: str):
    from phasewise.tasks.data.tokenizer_training import read_tokenizer_manifest
    from phasewise.tasks.evaluation.made_benchmarks import read_benchmark_folder
    from phasewise.trainer.base.decision import read_decisions
    from phasewise.trainer.data.manifest import read_manifest
    from phasewise.trainer.model.hugging_face_config import read_settings
    from phasewise.trainer.run import read_run
    from phasewise.validations.verdict import read_verdict

    content, said = HOSTILE[kind]
    for name in ("mine.json", "statement.json", "config.json", "tokenizer_manifest.json", "manifest.json", "mine.decision.json"):
        (tmp_path / name).write_bytes(content)
    assert_refused(phasewise("show", "mine.json"), 1, "mine.json", said)
    verified = phasewise("verify", str(tmp_path), "--json")
    assert verified.exit_code == 1
    assert said in json.dumps(json.loads(verified.stdout), ensure_ascii=False)
    readers = (
        lambda: read_tokenizer_manifest(tmp_path), lambda: read_benchmark_folder(tmp_path), lambda: read_manifest(tmp_path),
        lambda: read_settings(tmp_path / "config.json"), lambda: read_run(tmp_path / "mine.json"),
        lambda: read_verdict(tmp_path / "mine.json"), lambda: read_decisions(tmp_path / "mine.json"),
    )  # fmt: skip
    for number, read in enumerate(readers):
        if kind == "NaN" and number == 3:
            continue  # models of others have fields that this project does not read
        with pytest.raises(PhasewiseError) as refusal:
            read()
        assert "\n" not in str(refusal.value), number
        assert kind == "NaN" or said in str(refusal.value), number


def test_a_name_that_another_file_has_is_refused(phasewise: Run, mine: str, tmp_path: Path):
    from phasewise.flows.resolved import check_name_free, origin_of
    from phasewise.tasks.home import Home

    home, recipe = Home.open(str(tmp_path / "home")), load_written(mine)
    origin = origin_of(str(tmp_path / mine), recipe, home)
    assert origin is not None
    write_json(home.root / "recipes" / f"{recipe.run_name}.json", origin.model_dump(mode="json"))
    raw = recipe.model_dump(mode="json")
    write_json(tmp_path / "copy.json", raw)
    write_json(tmp_path / "edited.json", {**raw, "max_tokens": 1_000_000})
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.txt").write_text("Other text.\n\n" * 200)
    write_json(tmp_path / "other.json", recipe_over(tmp_path / "elsewhere").model_dump(mode="json"))
    for command in ("status", "run", "data prepare"):
        assert_refused(phasewise(command, "other.json", "--home", "home"), 1, "the name mine is taken", "mine.json", "other.json")
    for same in (mine, "copy.json", "edited.json"):
        result = phasewise("status", same, "--home", "home")
        assert (result.exit_code, result.stderr) == (1, "")  # no phase is done
    (tmp_path / mine).unlink()  # it was moved
    other = load_written(str(tmp_path / "other.json"))
    check_name_free(origin_of(str(tmp_path / "other.json"), other, home), other, home)
