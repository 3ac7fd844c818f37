"""A version that changes when code changes, and not when it is laid out, commented, moved or renamed.

One mechanism for all that is kept: caches, indexes, evidence, verdicts, evaluations, compiled plans, reports.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from phasewise.trainer.base.identity import digest_of_bytes, digest_of_json

DIGITS = 8
NOT_CODE = {"kind", "type_comment", "type_ignores"}
HOUSE = Path(__file__).parents[2]
ROOMS = ("deployments", "flows", "tasks", "trainer", "validations")
NAME = "phasewise"


def code_digest(*code: ModuleType | str) -> str:
    """8 hexadecimal digits over what the code does: over the syntax trees of its files, in any order.

    Docstrings, comments and layout do not count. Where our own files are does not, either: an import from one of our rooms counts by what
    it calls what it imports, and not by the module's name.

    Args:
        code: modules, or globs of files below the folder that the rooms are in, such as `tasks/report/*.py`. Files are not imported.

    Raises:
        AssertionError: a glob finds nothing: a file that was moved would be left out of the version.
    """
    return digest_of_json(sorted(digest_of_source(path) for path in files_of(*code)))[:DIGITS]


def files_of(*code: ModuleType | str) -> set[Path]:
    """The files of modules and of globs below the folder that the rooms are in."""
    found: set[Path] = set()
    for one in code:
        paths = list(HOUSE.glob(one)) if isinstance(one, str) else [Path(str(one.__file__))]
        assert paths, f"{one} names no file"
        found.update(paths)
    return found


@cache
def digest_of_source(path: Path) -> str:
    """Digest of what a file's code does."""
    return digest_of_tree(ast.parse(path.read_bytes()))


def digest_of_tree(tree: ast.Module) -> str:
    """Digest of a syntax tree.

    The walk is our own: `ast.dump` prints fields that one version of Python has and another has not.
    """
    return digest_of_bytes("\n".join([*_walk(tree), *_imported_from_ours(tree)]).encode())


def _walk(value: Any) -> Iterator[str]:
    """A tree as words: nodes and lists in brackets; a field that is not there is left out."""
    if isinstance(value, ast.AST):
        yield f"({type(value).__name__}"
        for name, field in _fields(value):
            yield f".{name}"
            yield from _walk(field)
        yield ")"
    elif isinstance(value, list):
        yield "["
        for each in value:
            if not _is_ours(each):
                yield from _walk(each)
        yield "]"
    else:
        yield f"{type(value).__name__} {value!r}"


def _fields(node: ast.AST) -> Iterator[tuple[str, Any]]:
    """The fields of a node by name, those of code alone."""
    for name, value in sorted(ast.iter_fields(node)):
        if name == "body" and isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            value = [statement for statement in value if not _is_text_alone(statement)]
        if isinstance(node, ast.JoinedStr):  # Python 3.12 ends some with an empty text
            value = [part for part in value if not (isinstance(part, ast.Constant) and part.value == "")]
        if name not in NOT_CODE and not (name != "value" and value is None) and value != []:
            yield name, value


def _is_text_alone(statement: ast.stmt) -> bool:
    """A docstring, of a module, class or function or below an attribute: a string that nothing uses."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and isinstance(statement.value.value, str)


def _is_ours(node: Any) -> bool:
    """Whether a statement imports from one of our rooms."""
    return isinstance(node, ast.ImportFrom) and node.level == 0 and str(node.module).split(".")[0] == NAME


def _imported_from_ours(tree: ast.Module) -> list[str]:
    """What is imported from our rooms, by name: sorted, for a file that is moved moves its line among the imports."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and _is_ours(node)]
    return sorted(f"{alias.name} as {alias.asname}" for node in imports for alias in node.names)
