import ast
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
BELOW = {
    "trainer": set[str](),
    "validations": {"trainer"},
    "tasks": {"validations", "trainer"},
    "flows": {"tasks", "validations", "trainer"},
    "deployments": {"flows", "tasks", "validations", "trainer"},
}
GX_FILE = "validations/expectations/domain.py"
GX_MODULE = "phasewise.validations.expectations.domain"


class Import(NamedTuple):
    """One imported module. `lazy` ones are inside a function, or there for the type checker alone; `top` is the room, or the library."""

    module: str
    lazy: bool
    line: int

    @property
    def top(self) -> str:
        return self.module.removeprefix("phasewise.").partition(".")[0]


@cache
def imports_of(source: str, path: str) -> list[Import]:
    """Every module that a file imports, with `from a import b` as `a` and `a.b`, and relative names resolved."""
    package = ["phasewise", *path.removesuffix(".py").split("/")[:-1]]
    found: list[Import] = []

    def visit(node: ast.AST, *, lazy: bool) -> None:
        for child in ast.iter_child_nodes(node):
            names: list[str] = []
            inside = lazy
            match child:
                case ast.Import():
                    names = [alias.name for alias in child.names]
                case ast.ImportFrom():
                    base = package[: len(package) - child.level + 1] if child.level else []
                    module = ".".join([*base, child.module] if child.module else base)
                    names = [module, *(f"{module}.{alias.name}" for alias in child.names)]
                case ast.Call(args=[ast.Constant(value=str(name)), *_]):
                    names = [name] if ast.unparse(child.func).rpartition(".")[2] in ("import_module", "__import__") else []
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                    inside = True
                case ast.If():
                    inside = lazy or ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
                case _:
                    pass
            found.extend(Import(name, lazy, child.lineno) for name in names if isinstance(child, ast.stmt | ast.expr))
            visit(child, lazy=inside)

    visit(ast.parse(source), lazy=False)
    return found


def problems_of(source: str, path: str) -> list[str]:
    """What a file imports and must not; `path` is relative to the root."""
    package, name = path.partition("/")[0], path.rpartition("/")[2]
    problems: list[str] = []
    for found in imports_of(source, path):
        rules = {
            f"{package} is below {found.top}": found.top in BELOW and found.top != package and found.top not in BELOW[package],
            "the product imports neither tests nor experiments": found.top in ("tests", "experiments"),
            "prefect is for flows/, deployments/ and the task.py files of tasks/": found.top == "prefect"
            and package not in ("flows", "deployments")
            and (package, name) != ("tasks", "task.py"),
            "Dask is for tasks/": found.top in ("dask", "distributed") and package != "tasks",
            "Great Expectations is for validations/": found.top == "great_expectations" and package != "validations",
            "its import takes seconds: import it inside the function that needs it": not found.lazy
            and ((found.top == "great_expectations" and path != GX_FILE) or found.module == GX_MODULE),
            "JAX is heavy: import it inside the function that needs it": not found.lazy
            and found.top in ("jax", "optax", "orbax")
            and not path.startswith(("trainer/", "tasks/evaluation/")),
        }
        problems += [f"{path}:{found.line} imports {found.module}: {rule}" for rule, is_broken in rules.items() if is_broken]
    return problems


@cache
def sources() -> dict[str, str]:
    paths = sorted(path for package in BELOW for path in (ROOT / package).rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in paths}


def test_every_import_follows_the_arrows():
    found = [problem for path, source in sources().items() for problem in problems_of(source, path)]
    assert len(sources()) > 50
    assert not found, "\n".join(found)
    assert any(one.top == "great_expectations" and not one.lazy for one in imports_of((ROOT / GX_FILE).read_text(), GX_FILE))


@pytest.mark.parametrize(
    ("folder", "is_forbidden"),
    [
        ("trainer/base/", lambda name: name.startswith("phasewise.") and not name.startswith("phasewise.trainer.base.")),
        ("tasks/data/", lambda name: name.startswith("phasewise.tasks.evaluation")),
    ],
)
def test_the_base_rests_on_nothing_of_ours_and_data_know_nothing_of_evaluation(folder: str, is_forbidden: Callable[[str], bool]):
    files = {path: source for path, source in sources().items() if path.startswith(folder)}
    assert len(files) > 3
    assert [one for path, source in files.items() for one in imports_of(source, path) if is_forbidden(one.module)] == []


def test_every_folder_with_modules_is_a_package():
    folders = {(ROOT / path).parent for path in sources()}
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


@pytest.mark.parametrize(
    ("source", "refused", "allowed"),
    [
        ("import phasewise.flows", "trainer/a.py validations/a.py tasks/a.py", "flows/a.py deployments/a.py"),
        ("from phasewise.tasks import x", "trainer/a.py validations/a.py", "tasks/a.py flows/a.py deployments/a.py"),
        ("def f():\n    import phasewise.validations.x", "trainer/a.py", "tasks/a.py"),
        ("import_module('phasewise.deployments.x')", "flows/a.py", "deployments/a.py"),
        ("from ..tasks import x", "trainer/a.py", "flows/a.py"),
        ("from prefect import flow", "tasks/a.py trainer/a.py validations/a.py", "flows/a.py deployments/a.py tasks/a/task.py"),
        ("def f():\n    import prefect", "tasks/home.py trainer/task.py", "flows/a.py"),
        ("import dask.distributed", "flows/a.py trainer/a.py validations/a.py deployments/a.py", "tasks/data/cluster.py"),
        ("import great_expectations", "validations/a.py tasks/a.py", "validations/expectations/domain.py"),
        ("def f():\n    import great_expectations", "tasks/a.py flows/a.py", "validations/a.py"),
        ("from phasewise.validations.expectations import domain", "validations/a.py", ""),
        ("def f():\n    from phasewise.validations.expectations import domain", "", "validations/a.py"),
        ("import jax.numpy", "flows/a.py tasks/data/a.py validations/a.py deployments/a.py", "trainer/a.py tasks/evaluation/a.py"),
        ("try:\n    import optax\nexcept ImportError:\n    pass", "flows/a.py", "trainer/a.py"),
        ("class A:\n    import orbax.checkpoint as ocp", "tasks/training/a.py", "trainer/a.py"),
        ("if TYPE_CHECKING:\n    import jax", "", "flows/a.py"),
        ("import jaxtyping", "", "flows/a.py"),
        ("import tests.architecture", "flows/a.py", ""),
    ],
)  # fmt: skip
def test_the_rules_can_fail(source: str, refused: str, allowed: str):
    assert [path for path in refused.split() if not problems_of(source, path)] == []
    assert [path for path in allowed.split() if problems_of(source, path)] == []


@pytest.mark.parametrize(
    ("module", "without"),
    [
        ("phasewise.flows.cli.main, phasewise.flows.recipes", "jax prefect dask pandas numpy pydantic fsspec upath rich yaml"),
        ("phasewise.flows.cli.status, phasewise.flows.cli.run", "jax prefect dask pandas numba scipy great_expectations lm_eval"),
        ("phasewise.flows.show.describe, phasewise.trainer.model.params", "jax prefect dask pandas numba pyarrow"),
        ("phasewise.trainer.config", "jax optax orbax prefect dask numpy pandas"),
        ("phasewise.tasks.data.plan", "jax optax orbax prefect dask distributed great_expectations lm_eval numba"),
        ("phasewise.tasks.training.attempts", "jax optax orbax prefect dask distributed great_expectations lm_eval"),
    ],
)
def test_what_a_module_loads(module: str, without: str):
    """A command that trains nothing must not pay for what trains; a Dask worker and the launcher must not hold JAX."""
    program = f"import sys, {module}; print(*sorted(set('{without}'.split()) & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []
