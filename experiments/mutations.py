"""Seeded faults of one line in product code, and the share that the tests catch.

    python -m experiments.mutations [--count 60] [--seed 0] [--files 12] [--minutes 5] [--workers 2] OUT.jsonl

Each fault changes a copy of the working tree and runs the test files closest to the module by imports. A fault counts as
caught if a test fails, cannot be collected, crashes, or exceeds the time. The report lists the faults that no test caught: some of
them change nothing.
"""

import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import click

ROOT = Path(__file__).parents[1]
PACKAGES = ("flows", "tasks", "trainer", "validations", "deployments")
COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
ARITHMETIC: dict[type[ast.operator], str] = {ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.FloorDiv: "*", ast.Div: "*", ast.Mod: "//"}


class Fault(NamedTuple):
    """A replacement of the text between two offsets of a file."""

    path: str
    line: int
    start: int
    end: int
    text: str


def faults_of(path: Path) -> Iterator[Fault]:
    """Every fault that the rules allow in a file."""
    source = path.read_text(encoding="utf-8")
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def offset(line: int, column: int) -> int:
        return starts[line - 1] + len(source[starts[line - 1] :].encode()[:column].decode())

    def fault(node: ast.expr, text: str) -> Fault:
        end = offset(node.end_lineno or node.lineno, node.end_col_offset or 0)
        return Fault(path.relative_to(ROOT).as_posix(), node.lineno, offset(node.lineno, node.col_offset), end, text)

    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in (inner for statement in function.body for inner in ast.walk(statement)):
            match node:
                case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in COMPARISONS:
                    yield fault(node, f"({ast.unparse(left)} {COMPARISONS[type(operator)]} {ast.unparse(right)})")
                case ast.BoolOp(op=ast.And() | ast.Or(), values=[first, second]):
                    yield fault(node, f"({ast.unparse(first)} {'or' if isinstance(node.op, ast.And) else 'and'} {ast.unparse(second)})")
                case ast.BinOp(left=left, op=operator, right=right) if type(operator) in ARITHMETIC:
                    if not any(_is_text(side) for side in (left, right)):
                        yield fault(node, f"({ast.unparse(left)} {ARITHMETIC[type(operator)]} {ast.unparse(right)})")
                case ast.UnaryOp(op=ast.Not(), operand=operand):
                    yield fault(node, f"({ast.unparse(operand)})")
                case ast.Constant(value=bool() as value):
                    yield fault(node, str(not value))
                case ast.Constant(value=int() as value):
                    yield fault(node, str(value + 1))
                case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                    yield fault(value, "None")
                case _:
                    pass


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def seeded(count: int, seed: int) -> list[Fault]:
    """Faults in all packages, in proportion to their places."""
    places = [fault for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")) for fault in faults_of(path)]
    return random.Random(seed).sample(places, count)


def imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                parts = name.removeprefix("phasewise.").split(".")
                for file in (Path(*parts).with_suffix(".py"), Path(*parts, "__init__.py")):
                    if (ROOT / file).is_file():
                        found.add(file.as_posix())
    return found


def closest_tests(target: str, importers: dict[str, set[str]], most: int) -> list[str]:
    seen, frontier, tests = {target}, {target}, list[str]()
    while frontier and len(tests) < most:
        frontier = {importer for file in frontier for importer in importers[file]} - seen
        seen |= frontier
        mirrored = f"tests/{Path(target).parent.as_posix()}"
        tests += sorted(
            (file for file in frontier if Path(file).name.startswith("test_")), key=lambda file: (not file.startswith(mirrored), file)
        )
    return tests[:most]


def outcome(fault: Fault, tests: list[str], minutes: float) -> dict[str, object]:
    """Run the tests on a copy of the tree that has the fault."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "tree"
        shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(".venv", ".git", ".phasewise", "__pycache__"))
        file = copy / fault.path
        source = file.read_text(encoding="utf-8")
        file.write_text(source[: fault.start] + fault.text + source[fault.end :], encoding="utf-8")
        # The copy's package goes before the installed one.
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not alone and not long", *tests]
        environment = {**os.environ, "PYTHONPATH": str(copy)}
        try:
            code = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=60 * minutes).returncode
        except subprocess.TimeoutExpired:
            code = 124
    was = source[fault.start : fault.end]
    return {
        "path": fault.path,
        "line": fault.line,
        "was": was,
        "now": fault.text,
        "caught": code in (1, 2, 124) or code < 0,
        "code": code,
        "tests": tests,
    }


@click.command()
@click.option("--count", default=60, help="Number of faults.")
@click.option("--seed", default=0, help="Seed of the sample.")
@click.option("--files", default=12, help="Test files for each fault, at most.")
@click.option("--minutes", default=5.0, help="Time for the tests of a fault.")
@click.option("--workers", default=2, help="Faults at the same time.")
@click.argument("out", type=click.Path(path_type=Path))
def main(count: int, seed: int, files: int, minutes: float, workers: int, out: Path) -> None:
    """Append one JSON object per fault to OUT, and print the share that was caught. A second run continues."""
    importers: dict[str, set[str]] = defaultdict(set)
    for folder in (*PACKAGES, "tests", "experiments"):
        for path in (ROOT / folder).rglob("*.py"):
            for imported in imports_of(path):
                importers[imported].add(path.relative_to(ROOT).as_posix())
    done = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()] if out.exists() else []
    caught = sum(bool(result["caught"]) for result in done)
    faults = seeded(count, seed)[len(done) :]
    with ThreadPoolExecutor(workers) as pool, out.open("a", encoding="utf-8") as file:
        run = partial(outcome, minutes=minutes)
        for result in pool.map(run, faults, [closest_tests(fault.path, importers, files) for fault in faults]):
            caught += bool(result["caught"])
            file.write(json.dumps(result) + "\n")
            file.flush()
            click.echo(f"{result['path']}:{result['line']} {'caught' if result['caught'] else 'not caught'} ({result['code']})")
    click.echo(f"{caught} of {count} caught ({100 * caught / count:.0f} %)")


if __name__ == "__main__":
    main()
