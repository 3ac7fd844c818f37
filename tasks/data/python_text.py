"""Text that every Python installation carries, seen in different ways: each view turns one file into documents."""

import ast
import importlib.metadata
import inspect
import re
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

View = Literal["code", "docstrings", "comments", "questions", "doctests", "text", "topics"]
Named = tuple[str, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, str]
MIN_WORDS, MAX_CHARACTERS = 25, 2500
PROJECT, DIST_INFO = "phasewise", ".dist-info"


def roots() -> dict[str, Path]:
    """Where the files are: `stdlib` is the standard library, `site` the installed packages."""
    paths = sysconfig.get_paths()
    return {"stdlib": Path(paths["stdlib"]), "site": Path(paths["purelib"])}


@cache
def required_packages() -> frozenset[str]:
    """Names of what Phasewise itself needs, with all that that needs, and pip. Whatever else is installed, these packages are there.

    Empty where Phasewise is not installed: then nothing is known of what it needs.
    """
    found: set[tuple[str, str]] = set()
    ahead = [(PROJECT, "")]
    while ahead:
        name, extra = ahead.pop()
        if (name, extra) in found:
            continue
        found.add((name, extra))
        for needed in map(Requirement, _requirements(name)):
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                ahead += [(canonicalize_name(needed.name), one) for one in ("", *needed.extras)]
    names = {name for name, _ in found}
    return frozenset({*names, "pip"} if len(names) > 1 else ())


def _requirements(package: str) -> list[str]:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.requires(package) or []
    return []


def package_of(dist_info: str) -> str:
    """The package whose metadata lie in a folder `NAME-VERSION.dist-info`."""
    return canonicalize_name(dist_info.removesuffix(DIST_INFO).rpartition("-")[0])


def documents_in(view: View, path: Path, name: str) -> Iterator[str]:
    """The documents that a view finds in a file; `name` is its dotted module name. A file that does not read gives none."""
    try:
        text = path.read_text(encoding="utf-8")
        with warnings.catch_warnings(action="ignore"):  # old escapes in other people's files
            found = list(VIEWS[view](text, name))
    except (SyntaxError, UnicodeDecodeError, ValueError):
        return
    for document in found:
        yield from (piece for piece in pieces(document) if len(piece.split()) >= MIN_WORDS)


def pieces(text: str) -> Iterator[str]:
    """A long text cut at blank lines into pieces of at most `MAX_CHARACTERS` (a single paragraph may be longer)."""
    piece = ""
    for paragraph in re.split(r"\n\s*\n", text):
        if piece and len(piece) + len(paragraph) > MAX_CHARACTERS:
            yield piece
            piece = ""
        piece = f"{piece}\n\n{paragraph}" if piece else paragraph
    if piece.strip():
        yield piece


def code(text: str, _name: str) -> Iterator[str]:
    """The source itself."""
    yield text


def plain_text(text: str, _name: str) -> Iterator[str]:
    """The text itself; of package METADATA the description, which is its README."""
    if text.startswith("Metadata-Version:"):
        text = text.partition("\n\n")[2]
    yield text


def docstrings(text: str, name: str) -> Iterator[str]:
    """What modules, classes and functions say of themselves."""
    for _, _, docstring in documented(text, name):
        yield docstring


def comments(text: str, _name: str) -> Iterator[str]:
    """Blocks of at least three comment lines, as prose."""
    for block in re.findall(r"(?m)(?:^[ \t]*#(?!!).*\n){3,}", text):
        yield "\n".join(line.strip().lstrip("#").strip() for line in block.splitlines())


def questions(text: str, name: str) -> Iterator[str]:
    """A docstring as question and answer."""
    for dotted, node, docstring in documented(text, name):
        if isinstance(node, ast.Module):
            continue
        summary, _, rest = docstring.partition("\n\n")
        kind = "class" if isinstance(node, ast.ClassDef) else "function"
        yield f"Question: What is the {kind} {dotted} for?\n\nAnswer: {' '.join(summary.split())}\n\n{rest}".strip()


def doctests(text: str, name: str) -> Iterator[str]:
    """The examples of a docstring as exercises with their results."""
    for dotted, _, docstring in documented(text, name):
        examples = re.findall(r"(?m)^>>> .*(?:\n(?!>>>|\s*$).*)*", docstring)
        steps = "\n\n".join(f"Problem: what does Python answer?\n{example}" for example in examples)
        if steps:
            yield f"Exercises on {dotted}\n\n{steps}"


def topics(text: str, _name: str) -> Iterator[str]:
    """The chapters of the language reference in `pydoc_data/topics.py`."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            yield from (str(ast.literal_eval(value)) for value in node.value.values)


def documented(text: str, name: str) -> Iterator[Named]:
    """Every module, class and function that has a docstring: dotted name, node, cleaned docstring."""
    stack: list[tuple[str, ast.AST]] = [(name, ast.parse(text))]
    while stack:
        dotted, node = stack.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node, clean=False)
            if docstring:
                yield dotted, node, inspect.cleandoc(docstring)
            named = [child for child in node.body if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)]
            stack.extend((f"{dotted}.{child.name}", child) for child in reversed(named))


VIEWS: dict[View, Callable[[str, str], Iterator[str]]] = {
    "code": code,
    "docstrings": docstrings,
    "comments": comments,
    "questions": questions,
    "doctests": doctests,
    "text": plain_text,
    "topics": topics,
}


def installed() -> dict[str, str]:
    """The installed distributions and their versions, for the record that is kept beside the stand-ins."""
    return {distribution.name: distribution.version for distribution in importlib.metadata.distributions()}
