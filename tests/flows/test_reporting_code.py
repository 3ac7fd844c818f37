"""A report is written again when the code changes that says something in it."""

import ast

from phasewise.flows.status.recipe_status import REPORTING
from phasewise.trainer.base.identity import HOUSE, NAME, files_of

MAKERS = ("flows/status/summary.py",)
READS_ALONE = {
    "flows/recipes/phase.py", "flows/recipes/recipe.py", "flows/status/phase_status.py", "flows/resolved.py",
    "tasks/evaluation/ngram_baselines.py", "trainer/base/decision.py", "trainer/base/run_folder.py", "trainer/base/storage.py",
    "trainer/config/__init__.py", "trainer/data/mixture.py", "trainer/metrics.py", "trainer/schedule.py",
    "trainer/model/params.py", "validations/evidence/gate.py",
    "validations/expectations/judging.py", "validations/outcomes.py", "validations/verdict.py",
}  # fmt: skip
"""What these import to read the home, or for its types. What these read is in the report's key itself."""


def imported(path: str) -> set[str]:
    """The files of our own that a file imports."""
    tree = ast.parse((HOUSE / path).read_text())
    names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    ours = {name.partition(".")[2].replace(".", "/") for name in names if name.partition(".")[0] == NAME}
    return {f"{name}.py" if (HOUSE / f"{name}.py").exists() else f"{name}/__init__.py" for name in ours}


def test_whatever_says_something_in_a_report_is_in_its_version():
    known = {path.relative_to(HOUSE).as_posix() for path in files_of(*REPORTING)}
    assert set(MAKERS) <= known
    assert {name for maker in MAKERS for name in imported(maker)} - known - READS_ALONE == set()
