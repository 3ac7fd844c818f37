import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from phasewise.flows.recipes import default_scale, load_target, load_written, split_target
from phasewise.flows.recipes.python_file import allow_code
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.resolved import resolve
from phasewise.trainer.base.errors import ConfigError, PhasewiseError, RecipeError

MINE = """
from phasewise.flows.recipes.words import Recipe, Tokenizer, continued, cooldown, from_scratch, llama, text, wsd

MODEL = llama(num_layers=2, d_model=64)
WARM_UP = from_scratch(
    name="warm-up", stop_step=40, model=MODEL, learning_rate=wsd(stop_step=40, warmup=4, decay=0, peak=1e-3), batch=8,
    mixture={"notes": 100},
)
COOLDOWN = continued(WARM_UP, name="cooldown", stop_step=60, declares=("schedule",), learning_rate=cooldown(40, 60, 1e-3))
MINE = Recipe(name="mine", tokenizer=Tokenizer(vocab_size=4096), phases=(WARM_UP, COOLDOWN), sources={"notes": text("notes")})
"""
Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(text: str = MINE, name: str = "mine.py") -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write_file


def load(name: str) -> Recipe:
    with allow_code():
        return load_written(name)


def refusal(name: str, kind: type[PhasewiseError] = RecipeError) -> str:
    with pytest.raises(PhasewiseError) as refused:
        load(name)
    assert type(refused.value) is kind
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        ("mine.py", ("mine.py", None)), ("mine.py/cooldown", ("mine.py", "cooldown")), ("mine.py:MINE", ("mine.py:MINE", None)),
        ("a/b.py/mine.py:MINE/cooldown", ("a/b.py/mine.py:MINE", "cooldown")),
        ("/there/mine.py/cooldown/", ("/there/mine.py", "cooldown")), ("./mine.json/cooldown", ("./mine.json", "cooldown")),
        ("/there/mine.yaml", ("/there/mine.yaml", None)), ("marin-8b/kestrel", ("marin-8b", "kestrel")),
        ("mine.pyx/kestrel", ("mine.pyx", "kestrel")),
    ],
)  # fmt: skip
def test_a_target_is_split(target: str, parts: tuple[str, str | None]):
    assert split_target(target) == parts


def test_the_only_recipe_of_a_file_needs_no_name_and_one_of_several_does(write: Write):
    path = write()
    recipe = load(path)
    assert (recipe.name, default_scale(recipe)) == ("mine", "own")
    assert load(f"{path}:MINE") == recipe
    with allow_code():
        assert load_target(f"{path}/cooldown", "own")[1] == recipe.phase("cooldown")
    path = write(MINE + 'OTHER = Recipe.model_validate(MINE.model_dump() | {"name": "other"})\nSAME = MINE\n')
    assert load(f"{path}:OTHER").name == "other"
    said = refusal(path, ConfigError)
    assert all(f"{path}:{name}" in said for name in ("MINE", "OTHER"))
    assert "has no recipe called 'MODEL'" in refusal(f"{path}:MODEL", ConfigError)
    assert load(write(MINE + "SAME = MINE\n")).name == "mine"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\ny = (\n", "line 2: this is not Python: '(' was never closed"),
        ("x = 1\nraise KeyError('gone')\n", "line 2: KeyError: 'gone'"),
        ("import sys\n\nsys.exit(3)\n", "line 3: SystemExit: 3"),
        ("import no_such_module\n", "line 1: ModuleNotFoundError"),
        ("x = 1\n", "has no recipe: at its top level"),
        (MINE.replace("stop_step=60", 'stop_step="soon"'), "line 9: Phase is invalid: stop_step: expected a whole number, found 'soon'"),
        (MINE.replace('("schedule",)', '("shedule",)'), "start.declares.0: 'shedule' is unknown, did you mean schedule?"),
        (MINE.replace('("schedule",)', "()"), "line 10: Recipe is invalid: recipe: the hand-off warm-up → cooldown makes a change that"),
        (MINE.replace('name="mine"', 'name="marin-8b"'), "calls its recipe marin-8b, which is a recipe of this project"),
        ("open('nowhere')\n", "line 1: FileNotFoundError"),
        ("\0", "this is not Python"),
    ],
)
def test_a_mistake_is_one_line_with_its_place(write: Write, text: str, said: str):
    path = write(text)
    found = refusal(path)
    assert said in found
    assert found.startswith(path)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (".", "is a folder, and a recipe is a .py or a .json file. Files in it are mine.py"),
        ("mine.yaml", "is not a recipe: a recipe is a .py or a .json file, and the file does not exist"),
        ("notes.txt", "is not a recipe: a recipe is a .py or a .json file. "),
        ("/nowhere/mine", "no such file: /nowhere/mine. A recipe is a .py or a .json file"),
        (
            "marin-8",
            "no recipe is called 'marin-8'. Names are marin-8b, marin-32b, trinity-nano, trinity-mini, trinity-large, or "
            "a .py or .json file. Did you mean marin-8b",
        ),
        ("mine.json:MINE", "a .json file is one recipe"),
    ],
)
def test_what_is_no_recipe_says_what_is_one(write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, said: str):
    write()
    write("x", "notes.txt")
    monkeypatch.chdir(tmp_path)
    assert said in refusal(name, ConfigError)
    assert split_target(name)[0] == name


def test_what_lies_beside_the_file_is_imported_and_forgotten(write: Write, tmp_path: Path):
    recipe = MINE.replace('name="mine"', "name=NAME").replace("\nMODEL", "\nfrom beside import NAME\n\nMODEL", 1)
    write('NAME = "first"', "beside.py")
    other = tmp_path / "other"
    other.mkdir()
    (other / "beside.py").write_text('NAME = "second"')
    (other / "mine.py").write_text(recipe)
    before = set(sys.modules), list(sys.path)
    assert load(write(recipe)).name == "first"
    assert load(str(other / "mine.py")).name == "second"
    refusal(write("import beside\n1 / 0\n"))
    assert {name for name in set(sys.modules) - before[0] if "beside" in name or "recipe_file" in name} == set()
    assert list(sys.path) == before[1]
    assert not list(tmp_path.rglob("__pycache__"))


def test_a_file_runs_once_in_a_command_and_prints_nothing_there(write: Write, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    counter = tmp_path / "counter"
    path = write(MINE + f"print('hello')\nwith open({str(counter)!r}, 'a') as file:\n    file.write('x')\n")
    with allow_code():
        for _ in range(2):
            resolve(f"{path}/cooldown", "own", str(tmp_path / "home"))
            load_written(path)
    assert counter.read_text() == "x"
    assert capfd.readouterr() == ("", "hello\n")


def test_code_does_not_run_where_nobody_named_the_file(write: Write, tmp_path: Path):
    touched = tmp_path / "touched"
    path = write(MINE + f"open({str(touched)!r}, 'w').close()\n")
    with pytest.raises(RecipeError, match=r"code runs only if `phasewise` gets the file on the command line.*phasewise new mine.json"):
        load_written(path)
    assert not touched.exists()
    data = write(load(path).model_dump_json(), "data.json")
    touched.unlink()
    assert load_written(data).name == "mine"
    assert not touched.exists()


def test_a_file_of_data_is_read_once_in_a_command_and_again_outside(write: Write):
    path = write(load(write()).model_dump_json(), "data.json")
    with allow_code():
        assert load_written(path) is load_written(path)
    assert load_written(path) is not load_written(path)  # a page that is served for days shows edits


def test_the_text_of_a_file_is_in_no_key_and_every_value_is(write: Write, tmp_path: Path):
    def digests(text: str) -> list[str]:
        with allow_code():
            resolved, _ = resolve(write(text), "own", str(tmp_path / "home"))
            return [str(resolved.run(resolved.recipe.phases[0]).digest), resolved.plan.components["notes"].train.key]

    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "a.txt").write_text("Some text.")
    source = MINE.replace('text("notes")', f"text({str(notes)!r})")
    before = digests(source)
    renamed = "# another comment\n" + source.replace("WARM_UP", "FIRST").replace("MODEL", "SHAPE")
    assert digests(renamed) == before
    assert digests(source.replace("peak=1e-3", "peak=2e-3").replace("40, 60, 1e-3", "40, 60, 2e-3"))[0] != before[0]
    assert digests(source.replace("vocab_size=4096", "vocab_size=2048"))[1] != before[1]
