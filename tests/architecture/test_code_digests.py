"""Lists of files that go into a code digest name files that exist: a moved file can't leave a list in silence."""

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

from phasewise.trainer.base.identity import files_of

ROOT = Path(__file__).parents[2]
PACKAGES = ("trainer", "validations", "tasks", "flows")
FOLDERS = (ROOT, ROOT / "trainer", ROOT / "validations/evidence")  # the lists name their files below one of these folders
SOURCE = re.compile(r"[\w*]+(?:/[\w*]+)*\.py")
IN_THEIR_FOLDER = {"sandbox.py", "sandbox_child.py"}  # programs that a module starts from its own folder


def missing_sources(code: str) -> list[str]:
    constants = [node.value for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    names = [name for name in constants if SOURCE.fullmatch(name) and name not in IN_THEIR_FOLDER]
    return [name for name in names if not any(any(folder.glob(name)) for folder in FOLDERS)]


def test_named_source_files_exist():
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    missing = [f"{path.relative_to(ROOT)}: {name}" for path in paths for name in missing_sources(path.read_text(encoding="utf-8"))]
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize("place", [
    "tasks.preflight.launcher.DECIDING", "tasks.evaluation.phase_evaluation.MEASURING", "tasks.evaluation.suite.MEASURING",
    "tasks.evaluation.ngram_baselines.MEASURING", "tasks.data.near_copies.WORDS_CODE", "tasks.data.reading.READER_CODE",
    "tasks.data.caches.ENCODER_CODE", "tasks.data.conversation_text.COMPOSER_CODE",
])  # fmt: skip
def test_files_of_computed_lists_exist(place: str):
    module, _, name = place.rpartition(".")
    assert files_of(*getattr(import_module(f"phasewise.{module}"), name))


def test_a_missing_source_file_is_found():
    assert missing_sources('CODE = ("tasks/data/gone.py", "step.py", "trainer/**/*.py")') == ["tasks/data/gone.py"]
