"""One module says what the files of a run are called. Who writes such a name elsewhere builds a second layout."""

import ast
from pathlib import Path

from phasewise.trainer.base import run_folder

ROOT = Path(__file__).parents[2]
PACKAGES = ("trainer", "validations", "tasks", "flows", "deployments")
OWNER = ROOT / "trainer" / "base" / "run_folder.py"
NAMES = {value for name, value in vars(run_folder).items() if name.endswith("_NAME")}
WORDS = {run_folder.CHECKPOINTS_NAME, run_folder.HEARTBEAT_NAME, run_folder.LOCK_NAME}
"""These are words of other things, too: only as a part of a path they are a run's."""
NOT_OF_A_RUN = {
    "tasks/preflight/launcher.py": {"result.json"},  # of the compiler's process, in a temporary folder
    "tasks/home.py": {"lock"},  # of the home
}


def names_in(source: str) -> set[str]:
    nodes = list(ast.walk(ast.parse(source)))
    found = {node.value for node in nodes if isinstance(node, ast.Constant) and node.value in NAMES - WORDS}
    texts = [node for node in nodes if isinstance(node, ast.JoinedStr)]
    pieces = [str(node.value) for text in texts for node in text.values if isinstance(node, ast.Constant)]
    found |= {name for name in NAMES for piece in pieces if piece.startswith(f"/{name}")}
    divided = [node.right for node in nodes if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)]
    found |= {node.value for node in divided if isinstance(node, ast.Constant) and node.value in NAMES}
    return {str(name) for name in found}


def test_only_the_run_folder_knows_its_names():
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if path != OWNER]
    found = {str(path.relative_to(ROOT)): names_in(path.read_text()) for path in paths}
    elsewhere = {path: names - NOT_OF_A_RUN.get(path, set()) for path, names in found.items()}
    assert {path: names for path, names in elsewhere.items() if names} == {}
    assert all(found[path] == names for path, names in NOT_OF_A_RUN.items())  # an exception that is gone is taken out


def test_a_name_is_found_however_it_is_written():
    written = (
        'path = folder / "result.json"',
        'name = "run.json"',
        'f"{folder}/metrics.jsonl"',
        'folder / "checkpoints"',
        'f"{a}/checkpoints/{b}"',
    )
    others = ('"the checkpoints"', 'part = "checkpoints"', 'folder / "data.json"')
    assert [bool(names_in(source)) for source in (*written, *others)] == [True] * 5 + [False] * 3
