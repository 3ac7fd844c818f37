"""A version that changes when code changes, and not when it is laid out or commented anew."""

import ast
import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from trainer.storage import digest_of_bytes

DIGITS = 8
NOT_CODE = {"kind", "type_comment", "type_ignores"}


def code_digest(*modules: ModuleType) -> str:
    """8 hexadecimal digits over the modules' syntax trees, in the order given, without docstrings, comments and layout.

    The walk is our own: `ast.dump` prints fields that one version of Python has and another has not.
    """
    return digest_of_code(*(ast.parse(inspect.getsource(module)) for module in modules))


def digest_of_code(*trees: ast.Module) -> str:
    """The same over syntax trees."""
    words = [word for tree in trees for word in _walk(tree)]
    return digest_of_bytes("\n".join(words).encode())[:DIGITS]


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
