"""The arrows of the house, read from the imports of its five packages: `docs/explanation/architecture.md` draws them."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BELOW = {
    "trainer": set[str](),
    "validations": {"trainer"},
    "tasks": {"validations", "trainer"},
    "flows": {"tasks", "validations", "trainer"},
    "deployments": {"flows", "tasks", "validations", "trainer"},
}
PACKAGES = tuple(BELOW)
NAME = "phasewise"
GX_FILE = "validations/expectations/domain.py"
GX_MODULE = "phasewise.validations.expectations.domain"
HEAVY = ("jax", "optax", "orbax")


@dataclass(frozen=True)
class Import:
    """One imported module. `lazy` ones are inside a function, or there for the type checker alone."""

    module: str
    lazy: bool
    line: int

    @property
    def top(self) -> str:
        """The room, of a module of ours; else the library."""
        return self.module.removeprefix(f"{NAME}.").partition(".")[0]


def imports_of(source: str, path: str) -> list[Import]:
    """Every module that a file imports, with `from a import b` as `a` and `a.b`, and relative names resolved."""
    package = [NAME, *path.removesuffix(".py").split("/")[:-1]]
    return [Import(name, lazy, node.lineno) for node, lazy in _statements(ast.parse(source), lazy=False) for name in _names(node, package)]


def _statements(node: ast.AST, *, lazy: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom | ast.Call, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom | ast.Call):
            yield child, lazy
        inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or _is_for_type_checkers(child)
        yield from _statements(child, lazy=lazy or inside)


def _is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def _names(node: ast.Import | ast.ImportFrom | ast.Call, package: list[str]) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.Call):
        called = ast.unparse(node.func).rpartition(".")[2]
        first = node.args[0] if node.args else None
        named = called in {"import_module", "__import__"} and isinstance(first, ast.Constant) and isinstance(first.value, str)
        return [str(first.value)] if named and isinstance(first, ast.Constant) else []
    base = package[: len(package) - node.level + 1] if node.level else []
    module = ".".join([*base, *([node.module] if node.module else [])])
    return [module, *(f"{module}.{alias.name}" for alias in node.names)]


def problems_of(source: str, path: str) -> list[str]:
    """What a file imports and must not; `path` is relative to the root."""
    return [
        f"{path}:{found.line} imports {found.module}: {rule}"
        for found in imports_of(source, path)
        for rule in (_breaks_an_arrow(found, path), _is_in_the_wrong_room(found, path), _is_too_early(found, path))
        if rule
    ]


def _breaks_an_arrow(found: Import, path: str) -> str | None:
    package = path.partition("/")[0]
    if found.top in BELOW and found.top != package and found.top not in BELOW[package]:
        return f"{package} is below {found.top}"
    return "the product imports neither tests nor experiments" if found.top in {"tests", "experiments"} else None


def _is_in_the_wrong_room(found: Import, path: str) -> str | None:
    package = path.partition("/")[0]
    name = path.rpartition("/")[2]
    if found.top == "prefect" and not (package in {"flows", "deployments"} or (package == "tasks" and name == "task.py")):
        return "prefect is for flows/, deployments/ and the task.py files of tasks/"
    if found.top in {"dask", "distributed"} and package != "tasks":
        return "Dask is for tasks/"
    if found.top == "great_expectations" and package != "validations":
        return "Great Expectations is for validations/"
    return None


def _is_too_early(found: Import, path: str) -> str | None:
    if found.lazy:
        return None
    if found.top == "great_expectations" and path != GX_FILE:
        return "its import takes seconds: import it inside the function that needs it"
    if found.module == GX_MODULE:
        return "it imports Great Expectations: import it inside the function that needs it"
    if found.top in HEAVY and not path.startswith(("trainer/", "tasks/evaluation/")):
        return "import it inside the function that needs it"
    return None


def sources() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def test_every_import_follows_the_arrows():
    found = [problem for path in sources() for problem in problems_of(path.read_text(), path.relative_to(ROOT).as_posix())]
    assert len(sources()) > 50
    assert not found, "\n".join(found)


def test_the_expectation_classes_are_the_one_module_that_needs_great_expectations_at_once():
    source = (ROOT / GX_FILE).read_text()
    assert any(found.top == "great_expectations" and not found.lazy for found in imports_of(source, GX_FILE))


def test_what_every_room_uses_rests_on_nothing_of_ours():
    files = sorted((ROOT / "trainer/base").glob("*.py"))
    used = {found.module for path in files for found in imports_of(path.read_text(), path.relative_to(ROOT).as_posix())}
    ours = {name for name in used if name.startswith(f"{NAME}.")}
    assert len(files) > 3
    assert {name for name in ours if not name.startswith("phasewise.trainer.base.")} == set()


def test_data_know_nothing_of_evaluation():
    files = sorted((ROOT / "tasks/data").rglob("*.py"))
    used = {found.module for path in files for found in imports_of(path.read_text(), path.relative_to(ROOT).as_posix())}
    assert [name for name in used if name.startswith("phasewise.tasks.evaluation")] == []


def test_every_folder_with_modules_is_a_package():
    folders = {path.parent for path in sources()}
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


@pytest.mark.parametrize(
    "path", ["trainer/loop.py", "validations/verdict.py", "tasks/data/plan.py", "flows/plan.py", "deployments/local.py"]
)
def test_nothing_imports_what_is_above_it(path: str):
    package = path.partition("/")[0]
    for other in PACKAGES:
        expected = other == package or other in BELOW[package]
        ours = f"{NAME}.{other}"
        for source in (f"import {ours}", f"from {ours} import x", f"def f():\n    import {ours}.x", f"import_module('{ours}.x')"):
            assert (not problems_of(source, path)) == expected, (path, source)


@pytest.mark.parametrize(
    ("source", "refused", "allowed"),
    [
        ("from prefect import flow", "tasks/a.py trainer/a.py validations/a.py", "flows/a.py deployments/a.py tasks/a/task.py"),
        ("def f():\n    import prefect", "tasks/home.py trainer/task.py", "flows/a.py"),
        ("import dask.distributed", "flows/a.py trainer/a.py validations/a.py deployments/a.py", "tasks/data/cluster.py"),
        ("from distributed import Client", "flows/a.py", "tasks/a.py"),
        ("import great_expectations", "validations/a.py tasks/a.py", "validations/expectations/domain.py"),
        ("def f():\n    import great_expectations", "tasks/a.py flows/a.py", "validations/a.py"),
        ("from phasewise.validations.expectations.domain import ExpectX", "validations/a.py", ""),
        ("from phasewise.validations.expectations import domain", "validations/a.py", ""),
        ("def f():\n    from phasewise.validations.expectations import domain", "", "validations/a.py"),
        ("import jax.numpy", "flows/a.py tasks/data/a.py validations/a.py deployments/a.py", "trainer/a.py tasks/evaluation/a.py"),
        ("try:\n    import optax\nexcept ImportError:\n    pass", "flows/a.py", "trainer/a.py"),
        ("class A:\n    import orbax.checkpoint as ocp", "tasks/training/a.py", "trainer/a.py"),
        ("def f():\n    import jax", "", "flows/a.py tasks/data/a.py"),
        ("if TYPE_CHECKING:\n    import jax", "", "flows/a.py"),
        ("import jaxtyping", "", "flows/a.py"),
        ("import tests.architecture", "flows/a.py", ""),
    ],
)  # fmt: skip
def test_the_rules_can_fail(source: str, refused: str, allowed: str):
    assert [path for path in refused.split() if not problems_of(source, path)] == []
    assert [path for path in allowed.split() if problems_of(source, path)] == []


def test_relative_imports_are_resolved():
    assert [found.module for found in imports_of("from . import x\nfrom ..data.cache import y", "trainer/model/a.py")] == [
        "phasewise.trainer.model",
        "phasewise.trainer.model.x",
        "phasewise.trainer.data.cache",
        "phasewise.trainer.data.cache.y",
    ]


@pytest.mark.parametrize(
    ("module", "without"),
    [
        ("phasewise.flows.cli.main", "jax optax orbax prefect dask distributed great_expectations lm_eval pandas"),
        ("phasewise.trainer.config", "jax optax orbax prefect dask numpy pandas"),
        ("phasewise.tasks.data.plan", "jax optax orbax prefect dask distributed great_expectations lm_eval"),
        ("phasewise.tasks.training.attempts", "jax optax orbax prefect dask distributed great_expectations lm_eval"),
        ("phasewise.flows.recipes", "jax optax orbax prefect dask distributed great_expectations lm_eval"),
    ],
)
def test_what_a_module_loads(module: str, without: str):
    """A command that trains nothing must not pay for what trains; a Dask worker and the launcher must not hold JAX."""
    program = f"import sys, {module}; print(*sorted(set('{without}'.split()) & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []
