"""A digest of code that changes with the code and with nothing else."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from tasks.data import normalize, reading
from trainer.code_digest import code_digest

CODE = '''
"""Module."""
import re
LIMIT: int = 3
"""What it is."""
class A:
    """Class."""
    def f(self, x=None, *more):
        """Function."""
        # a comment
        return f"{x!r:>{LIMIT}}" if x else None
'''


@pytest.fixture
def digest(tmp_path: Path):
    def digest(code: str) -> str:
        return code_digest(module(tmp_path, code))

    return digest


def module(folder: Path, code: str) -> ModuleType:
    path = folder / f"m{len(list(folder.iterdir()))}.py"
    path.write_text(code)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    return importlib.util.module_from_spec(spec)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""Module."""', '"""Another."""'),
        ('"""Module."""\n', ""),
        ('"""What it is."""', '"""What it was."""'),
        ('    """Class."""\n', ""),
        ('"""Function."""', '"""Does."""'),
        ("# a comment", "# another"),
        ("LIMIT: int = 3", "LIMIT : int=(3)  # three"),
        ("x=None, *more", "\n            x = None,\n            *more,\n        "),
    ],
)
def test_comments_docstrings_and_layout_change_nothing(digest, old: str, new: str):  # pyright: ignore[reportMissingParameterType]
    assert old in CODE
    assert digest(CODE.replace(old, new)) == digest(CODE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LIMIT: int = 3", "LIMIT: int = 4"),
        ("LIMIT: int = 3", "LIMIT: int = 3.0"),
        ("LIMIT: int", "LIMIT: float"),
        ("import re", "import os"),
        ("x=None", "x=False"),
        ("*more", "**more"),
        ("def f", "def g"),
        ("x!r", "x!s"),
        (":>{", ":<{"),
        ("if x else None", "if x else 'None'"),
    ],
)
def test_code_changes_it(digest, old: str, new: str):  # pyright: ignore[reportMissingParameterType]
    assert old in CODE
    assert digest(CODE.replace(old, new)) != digest(CODE)


def test_it_is_the_same_in_every_version_of_python(digest):  # pyright: ignore[reportMissingParameterType]
    assert digest(CODE) == "8bcbd195"


def test_modules_count_in_their_order():
    assert len({code_digest(), code_digest(normalize), code_digest(normalize, reading), code_digest(reading, normalize)}) == 4
