"""Export the pages as files with relative links, for a disk or any web server."""

import shutil
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from phasewise.flows.site import pages
from phasewise.flows.site.address import DOCS, EVIDENCE, REPORT, STATIC, Links
from phasewise.flows.site.shelf import Set
from phasewise.flows.site.site import Site
from phasewise.flows.site.tables import Asked
from phasewise.tasks.report.html import static_files
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.storage import write_json

MARKER = "-/site.json"
"""File that marks an exported site."""


class Written(NamedTuple):
    """Folder, number of pages and recipes of an export."""

    folder: Path
    pages: int
    recipes: tuple[str, ...]


def write_site(site: Site, folder: Path) -> Written:
    """Write all pages of the home. The new folder replaces an earlier export in one step.

    Raises:
        ConfigError: the folder has other files, or the home is empty.
    """
    folder = folder.expanduser().absolute()
    check_place(folder)
    sets = [found for found in site.shelf.sets() if found.in_home]
    if not sets:
        raise ConfigError(
            f"the home {site.shelf.home.root} has no run and no verdict to show: train a phase first, or choose another home."
        )
    site.checker.now(sets)
    site.reads_within = float("inf")
    site.written = datetime.now(UTC).isoformat(timespec="seconds")
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial, before = (folder.with_name(f".{folder.name}.{uuid.uuid4().hex}") for _ in range(2))
    count = 0
    try:
        for path, content in _files(site, sets):
            count += path.name == "index.html" and path.parts[0] != "-"
            (partial / path).parent.mkdir(parents=True, exist_ok=True)
            (partial / path).write_bytes(content)
        write_json(partial / MARKER, {"made_by": "phasewise report --site", "written": site.written})
        check_place(folder)
        if folder.exists():
            folder.rename(before)
        partial.rename(folder)
        shutil.rmtree(before, ignore_errors=True)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Written(folder, count, tuple(found.path for found in sets))


def check_place(folder: Path) -> None:
    """Raise a ConfigError if the target is a file, or a folder with other files."""
    if folder.is_dir() and (not any(folder.iterdir()) or (folder / MARKER).is_file()):
        return
    if folder.exists() or folder.is_symlink():
        raise ConfigError(
            f"{folder}: expected a new or empty folder, or a site of `phasewise report --site`, found other files. Name another folder."
        )


def _files(site: Site, sets: list[Set]) -> Iterator[tuple[Path, bytes]]:
    def page(path: str, html: str) -> tuple[Path, bytes]:
        return Path(path) / "index.html", html.encode()

    def at(path: str) -> Links:
        return Links(path, is_static=True)

    yield page("", pages.home_page(site, at("")))
    yield page("search", pages.search_page(site, at("search"), ""))
    for name, content in static_files().items():
        yield Path(STATIC) / name, content
    for found in sets:
        yield page(found.path, pages.recipe_page(site, at(found.path), found))
        report = site.shelf.home.report(found.run_name)
        if (report / "report.html").is_file():
            yield Path(REPORT) / found.run_name / "report.html", (report / "report.html").read_bytes()
        yield from _copied(report / "data-docs", Path(DOCS) / found.run_name)
        names = set(site.shelf.phase_names(found))
        for files in site.shelf.phases(found):
            path = str(files.address)
            yield page(path, pages.phase_page(site, at(path), found, files))
            for gate in files.verdicts:
                yield page(f"{path}/{gate}", pages.verdict_page(site, at(f"{path}/{gate}"), found, files, gate, Asked()))
                yield from _copied(files.evidence(gate) / "report", Path(EVIDENCE) / found.run_name / files.address.phase / gate)
            if files.parent in names and (comparison := pages.exported_comparison(files)):
                path, left, right = comparison
                yield page(path, pages.compare_page(site, at(path), left, right))


def _copied(source: Path, target: Path) -> Iterator[tuple[Path, bytes]]:
    for path in sorted(source.rglob("*")):
        if path.suffix in (".html", ".css") and path.is_file():
            yield target / path.relative_to(source), path.read_bytes()
