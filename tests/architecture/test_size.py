"""A newcomer reads any file in one sitting, and no file knows the machine that it was written on."""

import ast
import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("trainer", "validations", "tasks", "flows", "deployments")
MAX_FILE_LINES, MAX_FUNCTION_LINES = 350, 60
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:root|home|Users|work)/\w+")


def long_functions(source: str) -> list[str]:
    """Names of the functions that are too long."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [node.name for node in functions if (node.end_lineno or 0) - node.lineno + 1 > MAX_FUNCTION_LINES]


def tracked_files() -> list[Path]:
    """What would be committed; where there is no git, everything that is not hidden."""
    if (ROOT / ".git").exists() and shutil.which("git"):
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
        return [ROOT / name for name in names if name and (ROOT / name).is_file()]
    return [path for path in ROOT.rglob("*") if path.is_file() and not any(part.startswith(".") for part in path.relative_to(ROOT).parts)]


def test_files_and_functions_are_short():
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    assert len(files) > 50
    found = [f"{path.relative_to(ROOT)}: {lines} lines" for path in files if (lines := path.read_text().count("\n")) > MAX_FILE_LINES]
    found += [f"{path.relative_to(ROOT)}: {name} is too long" for path in files for name in long_functions(path.read_text())]
    assert not found, "\n".join(found)


def test_a_long_function_is_found_wherever_it_is():
    body = "        x = 1\n" * MAX_FUNCTION_LINES
    assert long_functions(f"class A:\n    async def f():\n{body}") == ["f"]
    assert long_functions(f"class A:\n    def f():\n{body.removesuffix('        x = 1' + chr(10))}") == []


def test_no_file_knows_a_machine_path():
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in tracked_files()
        for match in MACHINE_PATH.finditer(path.read_bytes().decode(errors="ignore"))
    ]
    assert not found, "\n".join(found)


def test_machine_paths_are_recognised():
    for place in ("root", "home", "Users", "work"):
        assert MACHINE_PATH.search(f'folder = "/{place}/somebody/x"')
    for harmless in ("tests/work/x.py", "https://example.org/home/page", "the rest of /home"):
        assert not MACHINE_PATH.search(harmless), harmless
