"""Seeded faults of one line in product code, and the share that the tests catch.

    python -m experiments.mutations [--count 60] [--seed 0] [--minutes 5] [--workers 2] [--record FOLDER] OUT.jsonl

A record of the suite under coverage lists the tests that execute each line, in their own process or in child processes. A run without a
record first makes it, which takes as long as `make test` twice. Each fault changes a copy of the working tree with its own environment.
Of the tests that execute the line, those that execute least besides run first. A fault counts as caught if a test fails, cannot be
collected, or crashes. Code 124 means that the time ended before all tests had run: repeat the fault with more minutes. The report lists
the faults that no test caught: some of them change nothing.
"""

import ast
import difflib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import click
import coverage
import pytest

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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """As a plugin of pytest: lines that this process executes from now on belong to this test."""
    if measured := coverage.Coverage.current():
        measured.switch_context(item.nodeid)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """As a plugin of pytest: tests run in the order of the command, unless a record is made."""
    named = list(items)
    yield
    if coverage.Coverage.current() is None:
        items[:] = named


def house_in(folder: Path) -> Path:
    """Copy the working tree, with an environment of hard links whose commands and whose `phasewise` are those of the copy."""
    shutil.copytree(ROOT, folder, symlinks=True, ignore=shutil.ignore_patterns(".venv", ".git", ".phasewise", "__pycache__"))
    shutil.copytree(ROOT / ".venv", folder / ".venv", symlinks=True, copy_function=os.link)
    for pattern in ("pyvenv.cfg", "bin/*", "lib/*/site-packages/__editable__*"):
        for file in (path for path in (folder / ".venv").glob(pattern) if path.is_file() and not path.is_symlink()):
            content, mode = file.read_bytes(), file.stat().st_mode
            if str(ROOT).encode() in content:
                file.unlink()  # the link, before the content changes
                file.write_bytes(content.replace(str(ROOT).encode(), str(folder).encode()))
                file.chmod(mode)
    return folder


def run_pytest(house: Path, *arguments: str, minutes: float | None = None, environment: dict[str, str] | None = None) -> tuple[int, str]:
    """The exit code of pytest in a copy, 124 if the time ended, and its output."""
    command = [str(house / ".venv/bin/python"), "-m", "pytest", "-p", "experiments.mutations", *arguments]
    started = subprocess.Popen(
        command,
        cwd=house,
        env=os.environ | (environment or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = started.communicate(timeout=minutes and 60 * minutes)
    except subprocess.TimeoutExpired:
        os.killpg(started.pid, signal.SIGKILL)
        return 124, started.communicate()[0]
    return started.returncode, output


def make_record(record: Path) -> None:
    """Run the suite in a copy under coverage, and keep the lines of each test, the tests that failed, and the sources."""
    house, settings = house_in(record / "house"), record / "coverage.ini"
    folders = "".join(f"\n    {house / package}" for package in PACKAGES)
    options = ["parallel = true", f"data_file = {record / 'lines'}", "context = ${PYTEST_CURRENT_TEST-}", "patch = _exit", "sigterm = true"]
    quiet = "no-data-collected, module-not-measured, module-not-imported, couldnt-parse, trace-changed, already-imported"
    settings.write_text("\n".join(["[run]", f"source = {folders}", *options, f"disable_warnings = {quiet}"]), encoding="utf-8")
    environment = {"COVERAGE_PROCESS_START": str(settings)}
    alone = [str(path) for path in (house / "tests").rglob("test_*.py") if "pytest.mark.alone" in path.read_text(encoding="utf-8")]
    at_once = ("--numprocesses", "3", "--dist", "loadfile", "--no-loadscope-reorder")
    outputs = [
        run_pytest(house, "--timeout", "600", "-rfE", *arguments, environment=environment)[1]
        for arguments in (("-m", "not alone and not long", *at_once), ("-m", "alone and not long", *alone))
    ]
    (record / "failed.txt").write_text("\n".join(test for output in outputs for test in failed(output)), encoding="utf-8")
    measured = coverage.Coverage(config_file=str(settings))
    measured.combine()
    measured.save()
    shutil.rmtree(house / ".venv")


def failed(output: str) -> list[str]:
    return re.findall(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", output, re.MULTILINE)


class Record:
    """Which tests execute which line."""

    def __init__(self, record: Path):
        self.house = (record / "house").resolve()
        data = coverage.CoverageData(str(record / "lines"))
        data.read()
        failed_before = {"", *(record / "failed.txt").read_text(encoding="utf-8").splitlines()}
        self.tests: dict[str, dict[int, set[str]]] = {}
        self.breadth = Counter[str]()
        for path in data.measured_files():
            by_line = {
                line: {re.sub(r" \((setup|call|teardown)\)$", "", context) for context in contexts} - failed_before
                for line, contexts in data.contexts_by_lineno(path).items()
            }
            self.tests[Path(path).relative_to(self.house).as_posix()] = by_line
            self.breadth.update(test for tests in by_line.values() for test in tests)

    def line_of(self, fault: Fault) -> int:
        """The line of a fault when the record was made, or 0 if it has changed since then."""
        texts = ((root / fault.path).read_text(encoding="utf-8").splitlines() for root in (self.house, ROOT))
        blocks = difflib.SequenceMatcher(None, *texts, autojunk=False).get_matching_blocks()
        return next((then + fault.line - now for then, now, size in blocks if now < fault.line <= now + size), 0)

    def tests_of(self, fault: Fault) -> list[str]:
        """Tests that execute the line of a fault, file by file, the most specific first, then those of its room that execute its file.

        Compiled functions and shared fixtures run once, in a test that need not be the test that checks them. If no test executes the
        line in Python, all tests that execute the file run. A file of tests that has changed since the record runs completely.
        """
        lines = self.tests.get(fault.path, {})
        of_file, of_line = set[str]().union(*lines.values()), lines.get(self.line_of(fault), set[str]())
        room = f"tests/{Path(fault.path).parent.as_posix()}/"
        if not of_file:  # a program that starts without the environment's packages
            return sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / room).rglob("test_*.py"))
        files = defaultdict[str, dict[str, None]](dict)
        for test in sorted(of_file, key=lambda test: (test not in of_line, not test.startswith(room), self.breadth[test], test)):
            if test in of_line or not of_line or test.startswith(room):
                files[test.partition("::")[0]][test] = None
        for file in sorted({test.partition("::")[0] for test in of_file}):
            if not (ROOT / file).exists():
                files.pop(file, None)
            elif (ROOT / file).read_bytes() != (self.house / file).read_bytes():
                files[file] = {file: None}
        return [test for tests in files.values() for test in tests]


def outcome(fault: Fault, tests: list[str], house: Path, minutes: float) -> dict[str, object]:
    """Run the tests on a copy of the tree that has the fault."""
    file = house / fault.path
    source = (ROOT / fault.path).read_text(encoding="utf-8")
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt") as names:
        names.write("\n".join(tests))
        names.flush()
        try:
            file.write_text(source[: fault.start] + fault.text + source[fault.end :], encoding="utf-8")
            code, output = (
                run_pytest(house, "-x", "-q", "-rfE", "-m", "not long", "-p", "no:cacheprovider", f"@{names.name}", minutes=minutes)
                if tests
                else (5, "")
            )
        finally:
            file.write_text(source, encoding="utf-8")
    return {
        "path": fault.path,
        "line": fault.line,
        "was": source[fault.start : fault.end],
        "now": fault.text,
        "caught": code in (1, 2) or code < 0 or (code == 4 and bool(failed(output))),  # 4: a module of tests cannot be imported
        "code": code,
        "by": failed(output),
        "tests": len(tests),
    }


@click.command()
@click.option("--count", default=60, help="Number of faults.")
@click.option("--seed", default=0, help="Seed of the sample.")
@click.option("--minutes", default=5.0, help="Time for the tests of a fault.")
@click.option("--workers", default=2, help="Faults at the same time.")
@click.option("--record", default=ROOT / ".phasewise/mutations", type=click.Path(path_type=Path), help="Folder of the record of coverage.")
@click.argument("out", type=click.Path(path_type=Path))
def main(count: int, seed: int, minutes: float, workers: int, record: Path, out: Path) -> None:
    """Append one JSON object per fault to OUT, and print the share that was caught. A second run continues."""
    if not (record / "lines").exists():
        make_record(record)
    recorded = Record(record)
    done = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()] if out.exists() else []
    caught = sum(bool(result["caught"]) for result in done)
    houses = SimpleQueue[Path]()

    def run(fault: Fault) -> dict[str, object]:
        house = houses.get()
        try:
            return outcome(fault, recorded.tests_of(fault), house, minutes)
        finally:
            houses.put(house)

    with tempfile.TemporaryDirectory(dir=record) as folder, ThreadPoolExecutor(workers) as pool, out.open("a", encoding="utf-8") as file:
        for worker in range(workers):
            houses.put(house_in(Path(folder) / str(worker)))
        for result in pool.map(run, seeded(count, seed)[len(done) :]):
            caught += bool(result["caught"])
            file.write(json.dumps(result) + "\n")
            file.flush()
            click.echo(f"{result['path']}:{result['line']} {'caught' if result['caught'] else 'not caught'} ({result['code']})")
    click.echo(f"{caught} of {count} caught ({100 * caught / count:.0f} %)")


if __name__ == "__main__":
    main()
