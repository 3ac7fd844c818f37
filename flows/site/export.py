"""The pages as files: the same addresses, links relative to each page, so that they work from a disk and below any prefix."""

import shutil
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from phasewise.flows.site import pages
from phasewise.flows.site.address import DOCS, EVIDENCE, REPORT, STATIC, Links, PhaseAddress, compared_path
from phasewise.flows.site.shelf import PhaseFiles, Set
from phasewise.flows.site.site import Site
from phasewise.flows.site.tables import Asked
from phasewise.tasks.report.html import static_files
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.storage import write_json

MARKER = "-/site.json"
"""The file by which a folder is known to be a site of ours."""
COPIED = (".html", ".css")


class Written(NamedTuple):
    """What was written."""

    folder: Path
    pages: int
    recipes: tuple[str, ...]


def write_site(site: Site, folder: Path) -> Written:
    """Write every page of what the home has. The folder appears whole, in place of an earlier site of ours.

    Raises:
        ConfigError: something else is there, or the home has nothing to show.
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
    partial = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    try:
        count = _write(site, sets, partial)
        _put_in_place(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Written(folder, count, tuple(found.path for found in sets))


def check_place(folder: Path) -> None:
    """Refuse a folder that holds something else.

    Raises:
        ConfigError: it does, or it is a file.
    """
    if folder.is_dir() and (not any(folder.iterdir()) or (folder / MARKER).is_file()):
        return
    if folder.exists() or folder.is_symlink():
        raise ConfigError(
            f"{folder} must be new, empty, or a site written by `phasewise report --site`; something else is there. Name another folder."
        )


def _write(site: Site, sets: list[Set], root: Path) -> int:
    count = 0
    for path, html in _pages(site, sets):
        _put(root / path / "index.html", html.encode())
        count += 1
    for name, content in static_files().items():
        _put(root / STATIC / name, content)
    for found in sets:
        _copy_reports(site, found, root)
    write_json(root / MARKER, {"made_by": "phasewise report --site", "written": site.written})
    return count


def _pages(site: Site, sets: list[Set]) -> Iterator[tuple[str, str]]:
    """Path and content of each page."""

    def at(path: str) -> Links:
        return Links(path, is_static=True)

    yield "", pages.home_page(site, at(""))
    yield "search", pages.search_page(site, at("search"), "")
    for found in sets:
        yield found.path, pages.recipe_page(site, at(found.path), found)
        names = set(site.shelf.phase_names(found))
        for files in site.shelf.phases(found):
            path = str(files.address)
            yield path, pages.phase_page(site, at(path), found, files)
            for gate in files.verdicts:
                yield f"{path}/{gate}", pages.verdict_page(site, at(f"{path}/{gate}"), found, files, gate, Asked())
            if files.parent in names:
                yield _compared(site, found, files)


def _compared(site: Site, found: Set, files: PhaseFiles) -> tuple[str, str]:
    """The comparison with its parent."""
    pair = str(PhaseAddress(found.name, found.scale, files.parent or "")), str(files.address)
    path = compared_path(*pair)
    return path, pages.compare_page(site, Links(path, is_static=True), *pair)


def _copy_reports(site: Site, found: Set, root: Path) -> None:
    """The report of the recipe, and the pages with Great Expectations' words on its verdicts."""
    report = site.shelf.home.report(found.run_name)
    if (report / "report.html").is_file():
        _put(root / REPORT / found.run_name / "report.html", (report / "report.html").read_bytes())
    _copy_pages(report / "data-docs", root / DOCS / found.run_name)
    for files in site.shelf.phases(found):
        for gate in files.verdicts:
            own = site.shelf.home.verdict(found.run_name, files.address.phase, gate).with_suffix("") / "report"
            _copy_pages(own, root / EVIDENCE / found.run_name / files.address.phase / gate)


def _copy_pages(source: Path, target: Path) -> None:
    for path in sorted(source.rglob("*")):
        if path.suffix in COPIED and path.is_file():
            _put(target / path.relative_to(source), path.read_bytes())


def _put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _put_in_place(partial: Path, folder: Path) -> None:
    """Give the finished folder its name. What was there before goes only when the new one is in its place."""
    check_place(folder)
    before = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    if folder.exists():
        folder.rename(before)
    partial.rename(folder)
    shutil.rmtree(before, ignore_errors=True)
