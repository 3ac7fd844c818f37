"""Print a page: `python -m tests.architecture.house_table > docs/measurements/house.md`. It counts what is tracked."""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

from tests.architecture.test_size import PACKAGES, ROOT, tracked_files

LONG_FILE_LINES, LONG_FUNCTION_LINES = 300, 40
ABOVE = """# The house in numbers

Printed by `python -m tests.architecture.house_table > docs/measurements/house.md`. A long file has more than 300 lines, a long function
more than 40; the tests refuse 350 and 60. Lines are shared where two statements begin on one.
"""


def page() -> str:
    """Tables of sizes a package, and of the class names that two modules define."""
    files = {package: [path for path in tracked_files() if _is_of(path, package)] for package in (*PACKAGES, "tests")}
    rows = [
        "| package | folders | files | most files in a folder | lines | long files | long functions | shared lines |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rows += [_row(package, paths) for package, paths in files.items()]
    shared = _shared_classes(path for package in PACKAGES for path in files[package])
    named = [f"| `{name}` | {', '.join(f'`{place}`' for place in places)} |" for name, places in sorted(shared.items())]
    twice = ", ".join(_words_with_two_meanings()) or "none"
    below = ["## Class names in two modules", "", "| class | modules |", "|---|---|", *named]
    return "\n".join([ABOVE, *rows, "", f"Words with two entries in the glossary: {twice}.", "", *below])


def _words_with_two_meanings() -> list[str]:
    """Words of the glossary that have two entries."""
    entries = re.findall(r"^\| \*\*(.+?)\*\*", (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE)
    return sorted(word for word, count in Counter(entries).items() if count > 1)


def _is_of(path: Path, package: str) -> bool:
    return path.suffix == ".py" and path.relative_to(ROOT).parts[0] == package


def _row(package: str, paths: list[Path]) -> str:
    folders = Counter(path.parent for path in paths)
    lines = [path.read_text(encoding="utf-8").count("\n") for path in paths]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in paths]
    long_files = sum(count > LONG_FILE_LINES for count in lines)
    long_functions = sum(_length(node) > LONG_FUNCTION_LINES for tree in trees for node in ast.walk(tree) if _is_function(node))
    shared = sum(_shared_lines(tree) for tree in trees)
    figures = (len(folders), len(paths), max(folders.values()), sum(lines), long_files, long_functions, shared)
    return f"| {package} | {' | '.join(f'{figure:,}' for figure in figures)} |"


def _is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def _length(node: ast.AST) -> int:
    return (getattr(node, "end_lineno", 0) or 0) - getattr(node, "lineno", 0) + 1


def _shared_lines(tree: ast.Module) -> int:
    """Lines on which two statements begin."""
    begins = Counter(node.lineno for node in ast.walk(tree) if isinstance(node, ast.stmt))
    return sum(count > 1 for count in begins.values())


def _shared_classes(paths: Iterable[Path]) -> dict[str, list[str]]:
    """Public class name → the modules that define it, where there are several."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(path.relative_to(ROOT).as_posix())
    return {name: places for name, places in found.items() if len(places) > 1}


if __name__ == "__main__":
    print(page())
