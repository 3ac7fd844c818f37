import importlib.util
from pathlib import Path

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


def digest(folder: Path, code: str) -> str:
    path = folder / f"m{len(list(folder.iterdir()))}.py"
    path.write_text(code)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    return code_digest(importlib.util.module_from_spec(spec))


MOVED = """
import re
from phasewise.tasks.data.filters import fold
from phasewise.tasks.made_up import DataError, ConfigError
def read(text): return fold(text) or DataError
"""
IMPORT = "from phasewise.tasks.data.filters import fold"
ERRORS = "from phasewise.tasks.made_up import DataError, ConfigError"

SAME = [
    (CODE, '"""Module."""', '"""Another."""'), (CODE, '"""Module."""\n', ""), (CODE, '"""What it is."""', '"""What it was."""'),
    (CODE, '    """Class."""\n', ""), (CODE, '"""Function."""', '"""Does."""'), (CODE, "# a comment", "# another"),
    (CODE, "LIMIT: int = 3", "LIMIT : int=(3)  # three"),
    (CODE, "x=None, *more", "\n            x = None,\n            *more,\n        "),
    (MOVED, IMPORT, "from phasewise.tasks.text.folding import fold"),
    (MOVED, ERRORS, "from phasewise.tasks.up import ConfigError\nfrom phasewise.trainer import DataError"),
    (MOVED, f"{IMPORT}\n{ERRORS}", f"{ERRORS}\nfrom phasewise.trainer.normalize import fold"),
]  # fmt: skip
OTHER = [
    (CODE, "LIMIT: int = 3", "LIMIT: int = 4"), (CODE, "LIMIT: int = 3", "LIMIT: int = 3.0"), (CODE, "LIMIT: int", "LIMIT: float"),
    (CODE, "import re", "import os"), (CODE, "x=None", "x=False"), (CODE, "*more", "**more"), (CODE, "def f", "def g"),
    (CODE, "x!r", "x!s"), (CODE, ":>{", ":<{"), (CODE, "if x else None", "if x else 'None'"),
    (MOVED, "import fold", "import unfold as fold"), (MOVED, IMPORT, "from unicodedata import normalize as fold"),
    (MOVED, "import re", "import tasks"),
]  # fmt: skip


def test_code_and_what_it_imports_decide_and_comments_docstrings_layout_and_where_our_files_lie_do_not(tmp_path: Path):
    assert digest(tmp_path, CODE) == "d3b85c7e", "it is the same in every version of Python"
    for code, old, new in SAME + OTHER:
        assert old in code
        is_same = digest(tmp_path, code.replace(old, new)) == digest(tmp_path, code)
        assert is_same == ((code, old, new) in SAME), (old, new)


def test_modules_count_in_any_order_and_a_file_that_moved_is_not_left_out():
    assert len({code_digest(), code_digest(filters), code_digest(reading), code_digest(filters, reading)}) == 4
    assert code_digest(filters, reading) == code_digest(reading, filters)
    assert code_digest("trainer/base/identit*.py") == code_digest(code_digest_module)
    with pytest.raises(AssertionError, match="names no file"):
        code_digest("trainer/no_such_*.py")
