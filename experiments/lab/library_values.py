"""Compare `library_values.yaml` of the published runs with the libraries themselves.

    python -m experiments.lab.library_values CLONES

CLONES has a clone of each library, called `owner+name`, or a released package unpacked as `name-version`. A library that is not there is
passed over. Exit 1 if a library does not have what is written down of it.
"""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from phasewise.flows.recipes import load_record
from phasewise.flows.recipes.facts import FACTS, LibraryValue, library_values


@cache
def source(root: Path, repository: str, commit: str, path: str) -> ast.Module:
    released = root / f"{repository.rpartition('/')[2]}-{commit}"
    if released.is_dir():
        return ast.parse((released / path).read_text(encoding="utf-8"))
    clone = root / repository.replace("/", "+")
    clone = clone / "repo" if (clone / "repo").is_dir() else clone
    shown = subprocess.run(["git", "-C", str(clone), "show", f"{commit}:{path}"], capture_output=True, text=True, check=True)
    return ast.parse(shown.stdout)


def definitions(module: ast.Module, name: str) -> list[Any]:
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(module) if isinstance(node, kinds) and node.name == name]


def fields_of(module: ast.Module, name: str) -> dict[str, ast.expr | None]:
    found: dict[str, ast.expr | None] = {}
    for node in definitions(module, name):
        assert isinstance(node, ast.ClassDef)
        for base in node.bases:
            found |= fields_of(module, ast.unparse(base))
        found |= {ast.unparse(line.target): line.value for line in node.body if isinstance(line, ast.AnnAssign)}
    return found


def parameters_of(node: ast.FunctionDef) -> dict[str, ast.expr | None]:
    positional = node.args.args[len(node.args.args) - len(node.args.defaults) :]
    named = [*zip(positional, node.args.defaults, strict=True), *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)]
    return {argument.arg: default for argument, default in named}


def calls(tree: ast.AST, name: str) -> list[ast.Call]:
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [call for call in found if ast.unparse(call.func).rpartition(".")[2] == name]


def is_true(value: LibraryValue, module: ast.Module) -> bool:
    owner, _, name = value.name.rpartition(".")
    match value.evidence:
        case "exists":
            return bool(definitions(module, value.name))
        case "absent":
            return bool(definitions(module, owner)) and name not in fields_of(module, owner)
        case "argument":
            return any(keyword.arg == name for call in calls(module, owner) for keyword in call.keywords)
        case "literal":
            numbers = (node.value for of in definitions(module, value.name) for node in ast.walk(of) if isinstance(node, ast.Constant))
            return value.value in numbers
        case "never_calls":
            return bool(definitions(module, owner)) and not any(calls(of, name) for of in definitions(module, owner))
        case "default":
            defaults = [
                fields_of(module, owner) if isinstance(of, ast.ClassDef) else parameters_of(of) for of in definitions(module, owner)
            ]
            found = [ast.literal_eval(one[name]) for one in defaults if one.get(name) is not None]  # pyright: ignore[reportArgumentType]
            return bool(found) and found[0] == value.value and type(found[0] == value.value) is bool


def main(root: Path) -> int:
    checked = failed = 0
    done: set[tuple[str, str, str, str]] = set()
    for recipe, file in FACTS.items():
        for phase in load_record(recipe, "full").phases:
            for value, repository, commit in library_values(file.partition("/")[0]).of(f"{recipe}/{phase.name}"):
                key = (repository, commit, value.path, value.name)
                names = (repository.replace("/", "+"), f"{repository.rpartition('/')[2]}-*")
                if key in done or not any(True for name in names for _ in root.glob(name)):
                    continue
                done.add(key)
                checked += 1
                if not is_true(value, source(root, repository, commit, value.path)):
                    failed += 1
                    print(f"{repository} {commit} {value.path}: not so: {value.in_words}")
    print(f"{checked} values compared, {failed} otherwise")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
