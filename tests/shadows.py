"""A folder with a file of the name of every module that a program may import. Each fails: nothing may import from the current folder."""

import sys
from importlib.metadata import packages_distributions
from pathlib import Path

OURS = ("deployments", "experiments", "flows", "tasks", "tests", "trainer", "validations")


def write_shadows(folder: Path) -> Path:
    """The folder, with `numbers.py`, `numpy.py`, `tasks.py`, `flows/__init__.py` and some hundred others."""
    folder.mkdir(parents=True, exist_ok=True)
    installed = {name for name in packages_distributions() if name.isidentifier()}
    for name in {*sys.stdlib_module_names, *installed, *OURS} - {"__main__"}:
        line = f"raise SystemExit('{name} was imported from the current folder')\n"
        if name in ("flows", "jax"):
            (folder / name).mkdir(exist_ok=True)
            (folder / name / "__init__.py").write_text(line)
        else:
            (folder / f"{name}.py").write_text(line)
    return folder
