"""`phasewise doctor`: packages, devices, disk and settings of this machine, and `phasewise bench accelerator`."""

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from rich.console import Console
from rich.table import Table

from phasewise.flows.cli.terminal import print_table, print_words, shown_on_terminal
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import ConfigError, refused_by_system
from phasewise.trainer.base.identity import write_sealed
from phasewise.trainer.base.storage import READERS
from phasewise.trainer.process.environment import check_usual

BREAKS = {
    "fastapi": "the server of Prefect 3.8 does not start with it",
    "sqlalchemy": "the scheduler of Prefect 3.8 ends at every insert with it, and no schedule fires",
}
"""Package → the known fault of versions outside the supported range."""
EXTRAS = ("tensorboard", "wandb", "mlflow", "s3", "azure", "card", "gke", "tpu-vm", "tpu")
MIN_FREE_GIB = 10
BENCH_MODELS: dict[str, tuple[str, Any]] = {
    **{scale: ("marin-8b", scale) for scale in ("130m", "370m", "1b")},
    "sparse": ("trinity-nano", "130m"),
}


def examine(home: str | None) -> dict[str, Any]:
    """Examine this machine, in the shape of `--json`. `problems` has a sentence with a remedy for each problem."""
    problems: list[str] = []
    packages: dict[str, str | None] = {}
    missing: dict[str, list[str]] = {}  # of each extra
    for line in requires("phasewise") or ():
        requirement = Requirement(line)
        extra = next((name for name in EXTRAS if requirement.marker and requirement.marker.evaluate({"extra": name})), None)
        if requirement.marker and not requirement.marker.evaluate({"extra": extra or ""}):
            continue  # for another machine
        found = installed(requirement.name)
        if extra is None or found is not None:
            packages[requirement.name] = found
        if extra is not None:
            missing.setdefault(extra, [])
            if found is None:
                missing[extra].append(requirement.name)
        elif found is None:
            problems.append(f"{requirement.name} is not installed: pip install '{requirement.name}{requirement.specifier}'.")
        if found is not None and not requirement.specifier.contains(found, prereleases=True):
            why = f" ({BREAKS[requirement.name]})" if requirement.name in BREAKS else ""
            problems.append(
                f"{requirement.name} must be {requirement.specifier}, found {found}{why}: "
                f"pip install '{requirement.name}{requirement.specifier}'."
            )
    devices: list[dict[str, Any]] = []
    try:
        import jax

        devices = [{"kind": one.device_kind, "platform": one.platform, "number": one.id} for one in jax.local_devices()]
    except Exception as error:  # drivers raise errors of all kinds
        reason = " ".join(str(error).split()).partition(". ")[0]
        problems.append(f"JAX finds no device: {reason}. Set JAX_PLATFORMS=cpu to train on the CPU, or install the package of your device.")
    place: dict[str, Any] = {"url": None, "free_gib": None}
    try:
        opened = Home.at(home, reads_only=True)
        place["url"] = str(opened.root)
        disk = next(folder for folder in (opened.work, *opened.work.parents) if folder.exists())
        place["free_gib"] = round(shutil.disk_usage(disk).free / 2**30, 1)
        if place["free_gib"] < MIN_FREE_GIB:
            problems.append(f"{disk} has {place['free_gib']:g} GiB of free space: make room, or name another --home.")
    except ConfigError as error:
        problems.append(str(error))
    try:
        check_usual(os.environ)
    except ConfigError as error:
        problems.append(str(error))
    memory_gib = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    return {
        "phasewise": version("phasewise"),
        "python": platform.python_version(),
        "machine": {"system": platform.platform(), "cpus": os.cpu_count(), "memory_gib": memory_gib},
        "packages": dict(sorted(packages.items())),
        "extras": missing,
        "readers": {f"{protocol}://": installed(package) is not None for protocol, (package, _) in READERS.items()},
        "devices": devices,
        "home": place,
        "problems": problems,
    }


def installed(package: str) -> str | None:
    """The version of a package. None if it is not installed."""
    with suppress(PackageNotFoundError):
        return version(package)
    return None


def print_examination(found: Mapping[str, Any]) -> None:
    """Print one line for each part of the machine, then the problems."""
    console = Console(highlight=False)
    machine, home = found["machine"], found["home"]
    kinds = [f"{one['kind']} ({one['platform']})" for one in found["devices"]]
    rows = {
        "phasewise": f"{found['phasewise']}, Python {found['python']} at {sys.prefix}",
        "machine": f"{machine['cpus']} CPUs, {machine['memory_gib']:g} GiB of memory, {machine['system']}",
        "devices": ", ".join(f"{kinds.count(kind)} × {kind}" for kind in dict.fromkeys(kinds)) or "none",
        "home": f"{home['url']}, {home['free_gib']} GiB of free space",
        "packages": ", ".join(f"{name} {found['packages'].get(name)}" for name in ("prefect", "jax", "orbax-checkpoint", "lm-eval")),
        "extras": "; ".join(
            f"{name} {'lacks ' + ', '.join(absent) if absent else 'is installed'}" for name, absent in found["extras"].items()
        ),
        "sources": ", ".join(place for place, is_readable in found["readers"].items() if is_readable) + " and folders are readable",
    }
    width = max(map(len, rows))
    for name, text in rows.items():
        console.print(f"{name:{width}}  {text}", soft_wrap=True, markup=False)
    console.print()
    for problem in found["problems"]:
        console.print(f"✗ {problem}", soft_wrap=True, markup=False)
    if not found["problems"]:
        console.print("✓ nothing is wrong", markup=False)


def bench_accelerator(home: str | None, *, out: str | None, minutes: float, only: str | None) -> dict[str, Any]:
    """Measure the accelerator, and write the page to a new file. The page has the shape of `--json`."""
    from phasewise.flows.recipes import load_recipe
    from phasewise.tasks.accelerator_bench import SECTIONS, Bench
    from phasewise.tasks.preflight.plan import step_shape

    names, now = only.split(",") if only else list(SECTIONS), datetime.now(UTC)
    if unknown := set(names) - set(SECTIONS):
        raise ConfigError(f"--only: expected some of {','.join(SECTIONS)}, found {', '.join(sorted(unknown))}. Separate them by commas.")
    path = Path(out).absolute() if out else Home.open(home).work / "bench" / f"accelerator-{now:%Y%m%d-%H%M%S}.json"
    with refused_by_system(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() or not os.access(path.parent, os.W_OK):
        raise ConfigError(f"{path} exists, or its folder cannot be written: name a new file by --out.")
    models = {name: step_shape(load_recipe(recipe, scale).phases[0], 1) for name, (recipe, scale) in BENCH_MODELS.items()}
    with shown_on_terminal(), tempfile.TemporaryDirectory(prefix="phasewise-bench-") as folder:
        page = Bench(Path(folder), models, minutes).measure(names)
    page = {"phasewise": version("phasewise"), "time": now.isoformat(timespec="seconds"), "minutes": minutes, **page}
    write_sealed(path, page)
    return page | {"file": str(path)}


def print_page(page: Mapping[str, Any]) -> None:
    """Print each section: its state, its fields, and a table of its rows. Few rows are columns."""
    console = Console(highlight=False, soft_wrap=True)
    for name, section in page["sections"].items():
        rows = section.get("rows") or [{"": ""}]
        names = list(dict.fromkeys(field for row in rows for field in row))
        cells = [[field.replace("_", " "), *(in_page(field, row.get(field)) for row in rows)] for field in names]
        fields = {field: value for field, value in section.items() if field not in ("passes", "seconds", "rows") and value}
        table = Table(box=None, show_header=False, padding=(0, 2))
        for line in cells if len(rows) < len(names) else zip(*cells, strict=True):
            table.add_row(*line)
        lines = [f"  {field.replace('_', ' ')}: {in_page(field, value)}" for field, value in fields.items()]
        print_words(console, "\n".join(["", f"{'✓' if section['passes'] else '✗'} {name}, {section['seconds']:g} s", *lines]))
        print_table(console, table)
    print_words(console, f"\n{page['file']}")


def in_page(field: str, value: Any) -> str:
    """Return a value of the page as text: memory in GiB, numbers with three digits."""
    value = value / 2**30 if field.endswith("bytes") and value else value
    text = f"{value:.3g}" if isinstance(value, float) else "" if value in (None, [], {}) else str(value)
    return f"{text} GiB" if field.endswith("bytes") else text
