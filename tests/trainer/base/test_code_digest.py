"""A digest of code that changes with the code and with nothing else."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from phasewise.tasks.data import filters, reading
from phasewise.trainer.base import identity as code_digest_module
from phasewise.trainer.base.identity import code_digest

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
    assert digest(CODE) == "d3b85c7e"


def test_modules_count_in_any_order():
    assert len({code_digest(), code_digest(filters), code_digest(reading), code_digest(filters, reading)}) == 4
    assert code_digest(filters, reading) == code_digest(reading, filters)


MOVED = """
import re
from phasewise.tasks.data.filters import fold
from phasewise.tasks.made_up import DataError, ConfigError
def read(text): return fold(text) or DataError
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("from phasewise.tasks.data.filters import fold", "from phasewise.tasks.text.folding import fold"),
        (
            "from phasewise.tasks.made_up import DataError, ConfigError",
            "from phasewise.tasks.up import ConfigError\nfrom phasewise.trainer import DataError",
        ),
        ("from phasewise.tasks.data.filters import fold\nfrom phasewise.tasks.made_up import DataError, ConfigError",
         "from phasewise.tasks.made_up import DataError, ConfigError\nfrom phasewise.trainer.normalize import fold"),
    ],
)  # fmt: skip
def test_a_file_of_ours_may_move(digest, old: str, new: str):  # pyright: ignore[reportMissingParameterType]
    assert old in MOVED
    assert digest(MOVED.replace(old, new)) == digest(MOVED)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("import fold", "import unfold as fold"),
        ("from phasewise.tasks.data.filters import fold", "from unicodedata import normalize as fold"),
        ("import re", "import tasks"),
    ],
)
def test_what_is_imported_counts(digest, old: str, new: str):  # pyright: ignore[reportMissingParameterType]
    assert digest(MOVED.replace(old, new)) != digest(MOVED)


def test_a_file_that_is_not_where_it_was_is_not_left_out():
    assert code_digest("trainer/base/identit*.py") == code_digest(code_digest_module)
    with pytest.raises(AssertionError, match="names no file"):
        code_digest("trainer/no_such_*.py")
