"""Compare `library_values.yaml` of the published runs with the libraries: `python -m experiments.lab.library_values CLONES`.

CLONES has a clone of each library, called `owner+name`, or an unpacked release `name-version`. Missing libraries are skipped.
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
def source(root: Path, repository: str, commit: str, path: str) -> ast.Module | None:
    clone, released = root / repository.replace("/", "+"), root / f"{repository.rpartition('/')[2]}-{commit}" / path
    if released.is_file():
        return ast.parse(released.read_text(encoding="utf-8"))
    if not clone.is_dir():
        return None
    return ast.parse(
        subprocess.run(["git", "-C", str(clone), "show", f"{commit}:{path}"], capture_output=True, text=True, check=True).stdout
    )


def defaults_of(module: ast.Module, of: Any) -> dict[str, ast.expr | None]:
    """The fields of a class, of its bases in the file too, or the parameters of a function, with their defaults."""
    if isinstance(of, ast.ClassDef):
        classes = {node.name: node for node in ast.walk(module) if isinstance(node, ast.ClassDef)}
        bases = [classes[name] for base in of.bases if (name := ast.unparse(base)) in classes]
        found = {name: value for base in bases for name, value in defaults_of(module, base).items()}
        return found | {ast.unparse(line.target): line.value for line in of.body if isinstance(line, ast.AnnAssign)}
    positional = of.args.args[len(of.args.args) - len(of.args.defaults) :]
    named = [*zip(positional, of.args.defaults, strict=True), *zip(of.args.kwonlyargs, of.args.kw_defaults, strict=True)]
    return {argument.arg: default for argument, default in named}


def is_true(value: LibraryValue, module: ast.Module) -> bool:
    """Whether a file of a library agrees with the value in `library_values.yaml`."""
    owner, _, name = value.name.rpartition(".")
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    whole, owners = ([node for node in ast.walk(module) if isinstance(node, kinds) and node.name == one] for one in (value.name, owner))

    def calls(tree: ast.AST, of: str) -> list[ast.Call]:
        return [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == of]

    match value.evidence:
        case "exists":
            return bool(whole)
        case "absent":
            return bool(owners) and not any(name in defaults_of(module, of) for of in owners)
        case "argument":
            return any(keyword.arg == name for call in calls(module, owner) for keyword in call.keywords)
        case "literal":
            return value.value in [node.value for of in whole for node in ast.walk(of) if isinstance(node, ast.Constant)]
        case "never_calls":
            return bool(owners) and not any(calls(of, name) for of in owners)
        case "default":
            found = [default for of in owners if (default := defaults_of(module, of).get(name)) is not None]
            return bool(found) and ast.literal_eval(found[0]) == value.value


def main(root: Path) -> int:
    named = [(FACTS[recipe], f"{recipe}/{phase.name}") for recipe in FACTS for phase in load_record(recipe, "full").phases]
    found = {(one, *place) for file, target in named for one, *place in library_values(file.partition("/")[0]).of(target)}
    read = [(one, *place, source(root, *place, one.path)) for one, *place in sorted(found, key=str)]
    for value, repository, commit, module in read:
        if module and not is_true(value, module):
            print(f"{repository} {commit} {value.path}: not so: {value.in_words}")
    return int(any(module and not is_true(value, module) for value, *_, module in read))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
