import ast
import json
from pathlib import Path
from typing import Any

import pytest

from phasewise.flows.recipes import NAMES, load_record
from phasewise.flows.recipes.phase import Phase
from phasewise.flows.recipes.python_file import allow_code
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.recipes.starter import inspect_folder
from phasewise.trainer.config import Muon
from tests.flows.commands import Run, assert_refused


def written(path: str) -> Recipe:
    with allow_code():
        return load_record(path, "own")


def write(folder: Path, **files: str) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)


@pytest.mark.parametrize("origin", [None, *NAMES])
def test_what_is_written_is_a_short_recipe(phasewise: Run, tmp_path: Path, origin: str | None):
    write(tmp_path / "text", a_txt="Some words.\n\n" * 2000, b_md="# More\n\n" * 900)
    done = phasewise("new", "my_recipe.py", *(["--from", origin] if origin else []))
    assert (done.exit_code, done.stderr) == (0, "")
    assert "phasewise run my_recipe.py" in done.stdout
    source = (tmp_path / "my_recipe.py").read_text().replace(str(tmp_path), "")
    assert len(source.splitlines()) <= 60
    assert max(map(len, source.splitlines())) <= 140
    ast.parse(source)
    recipe = written("my_recipe.py")
    assert (recipe.name, recipe.scale, sorted(recipe.sources)) == ("my-recipe", "own", ["all", "best"])
    assert recipe.sources["all"].include == ("*.md", "*.txt")
    shown = phasewise("show", "my_recipe.py", "--json")
    assert shown.exit_code == 0
    assert json.loads(shown.stdout)["scale"] == "own"


@pytest.mark.parametrize("origin", NAMES)
def test_the_main_line_of_a_recipe_keeps_its_steps_and_rates(phasewise: Run, origin: str):
    assert phasewise("new", "mine.py", "--from", origin).exit_code == 0

    def kept(phase: Phase) -> list[Any]:
        last, model = phase.stop_step - 1, phase.model
        exact = (phase.name, phase.start_step, phase.stop_step, phase.learning_rate, phase.batch.at(last), phase.stability.z_loss.at(last))
        shape = (model.qk_norm, model.experts, model.seq_len, phase.optimizer.kind, phase.order.buffer_documents)
        return [*exact, *shape, getattr(phase.optimizer, "adam_learning_rate_scale", None)]

    def rounded(phase: Phase) -> tuple[Any, ...]:
        return phase.stability.ema_decay.at(phase.stop_step - 1), phase.gates.health.max_violation

    for mine, proxy in zip(written("mine.py").main_line, load_record(origin, "proxy").main_line, strict=True):
        assert kept(mine) == kept(proxy)
        assert rounded(mine) == pytest.approx(rounded(proxy))
        if isinstance(proxy.optimizer, Muon):
            values = {name: getattr(proxy.model, name) for name in ("initializer_std", "embedding_scale")}
            assert {name: getattr(mine.model, name) for name in values} == pytest.approx(values, rel=1e-12)
            assert mine.model.but(**values) == proxy.model


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere/mine.py"], "there is no folder nowhere"), (["mine.yaml"], "a new recipe is a .py file"),
        (["mine.json"], "Name the recipe with --from"), (["mine.py", "--from", "marin-9b"], "no recipe is called 'marin-9b'"),
        (["kept.py"], "exists already and is not overwritten"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_refused(phasewise: Run, tmp_path: Path, arguments: list[str], said: str):
    (tmp_path / "kept.py").write_text("mine")
    assert_refused(phasewise("new", *arguments), 2, said)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_without_text_the_run_is_refused_before_work_starts(phasewise: Run, tmp_path: Path):
    done = phasewise("new", "mine.py")
    assert "There is no text in text yet" in done.stdout
    for make in (lambda: None, (tmp_path / "text").mkdir):
        make()
        refused = phasewise("run", "mine.py", "--home", tmp_path / "home")
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert len(refused.stderr.splitlines()) == 1
        assert str(tmp_path / "text") in refused.stderr
        assert not (tmp_path / "home").exists()


def test_a_recipe_as_data_is_the_same_recipe(phasewise: Run):
    assert phasewise("new", "mine.py").exit_code == 0
    assert phasewise("new", "mine.json", "--from", "mine.py").exit_code == 0
    assert written("mine.json") == written("mine.py")
    assert phasewise("new", "other.json", "--from", "marin-32b").exit_code == 0
    assert json.loads(Path("other.json").read_text())["name"] == "other"
    assert phasewise("show", "other.json").exit_code == 0


def test_json_lines_are_read_by_their_longest_field_and_the_rest_is_named(phasewise: Run, tmp_path: Path):
    lines = "".join(json.dumps({"id": f"x{number}", "body": "word " * (number + 1)}) + "\n" for number in range(100))
    write(tmp_path / "text", a_jsonl=lines, b_txt="few words", c_bin="\0\1")
    (tmp_path / "text" / "gone.txt").symlink_to("nowhere")
    found = inspect_folder(tmp_path / "text")
    assert (found.include, found.text_key, found.left_out, found.documents) == (("*.jsonl",), "body", (".txt",), 100)
    assert found.median_characters == 252
    done = phasewise("new", "mine.py")
    assert "It reads *.jsonl; files that end in .txt are left out." in done.stdout
    assert "It reads the field body of each line, and not id. If a line is a conversation, give its layout" in done.stdout
    best = written("mine.py").sources["best"]
    assert (best.format, best.text_key, best.filters[0].model_dump()["min"]) == ("jsonl", "body", 252)


def test_a_folder_of_any_name_is_written_as_it_is(phasewise: Run, tmp_path: Path):
    folder = tmp_path / 'my "text" {x} \\n ü'
    write(folder, a_txt="Some words.\n\n" * 300)
    assert phasewise("new", "Mein Text.py", "--text", folder).exit_code == 0
    recipe = written("Mein Text.py")
    assert (recipe.name, recipe.sources["all"].url) == ("mein-text", str(folder))
