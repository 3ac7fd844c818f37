"""Export the pages as files with relative links, for a disk or any web server."""

import shutil
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from phasewise.flows.site import pages
from phasewise.flows.site.documents import Asked
from phasewise.flows.site.shelf import COMPARISON, DOCS, EVIDENCE, EXPERIMENT, REPORT, STATIC, Links, Set
from phasewise.flows.site.site import Site, check
from phasewise.flows.site.training import training_of
from phasewise.tasks.report.html import static_files
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.storage import write_json

MARKER = "-/site.json"  # file that marks an exported site


def write_site(site: Site, folder: Path) -> dict[str, Any]:
    """Write all pages of the home, and return the content of `phasewise report --json`. The new folder replaces an earlier export."""
    folder = folder.expanduser().absolute()
    check_place(folder)
    sets = [found for found in site.shelf.sets() if found.in_home]
    if not sets:
        raise ConfigError(
            f"the home {site.shelf.home.root} has no run and no verdict to show: train a phase first, or choose another home."
        )
    site.checked.update({found.run_name: check(site.shelf, found) for found in sets if found.recipe is not None})
    site.reads_within = float("inf")
    site.written = datetime.now(UTC).isoformat(timespec="seconds")
    folder.parent.mkdir(parents=True, exist_ok=True)
    target, before = (folder.with_name(f".{folder.name}.{uuid.uuid4().hex}") for _ in range(2))
    count = 0
    try:
        for path, content in _files(site, sets):
            file = target / path
            if isinstance(content, str):
                file, content, count = file / "index.html", content.encode(), count + 1
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        write_json(target / MARKER, {"made_by": "phasewise report --site", "written": site.written})
        check_place(folder)
        if folder.exists():
            folder.rename(before)
        target.rename(folder)
        shutil.rmtree(before, ignore_errors=True)
    finally:
        shutil.rmtree(target, ignore_errors=True)
    return {"folder": str(folder), "pages": count, "recipes": [found.path for found in sets], "problems": site.shelf.problems}


def check_place(folder: Path) -> None:
    """Raise a ConfigError if the target is a file, or a folder with other files."""
    if folder.is_dir() and (not any(folder.iterdir()) or (folder / MARKER).is_file()):
        return
    if folder.exists() or folder.is_symlink():
        raise ConfigError(
            f"{folder}: expected a new or empty folder, or a site of `phasewise report --site`, found other files. Name another folder."
        )


def _files(site: Site, sets: list[Set]) -> Iterator[tuple[str, str | bytes]]:
    """Yield the HTML of each page with the page's path, and the bytes of other files."""
    links = partial(Links, is_static=True)
    yield "", pages.home_page(site, links(""))
    yield "search", pages.search_page(site, links("search"), "")
    for name, content in static_files().items():
        yield f"{STATIC}/{name}", content
    for found in sets:
        yield found.path, pages.recipe_page(site, links(found.path), found)
        report = site.shelf.home.report(found.run_name)
        if (report / "report.html").is_file():
            yield f"{REPORT}/{found.run_name}/report.html", (report / "report.html").read_bytes()
        for page in sorted(site.shelf.home.experiment(found.run_name, "").glob("*/report.html")):
            yield f"{EXPERIMENT}/{found.run_name}/{page.parent.name}/{page.name}", page.read_bytes()
        copied = {f"{DOCS}/{found.run_name}": report / "data-docs"}
        names = set(site.shelf.phase_names(found))
        for files in site.shelf.phases(found):
            path = str(files.address)
            yield path, pages.phase_page(site, links(path), found, files)
            for step, _ in training.spikes if (training := training_of(site, files, site.state(found, files))) else ():
                yield f"{path}/step/{step}", pages.step_page(site, links(f"{path}/step/{step}"), found, files, step)
            for gate in files.verdicts:
                yield f"{path}/{gate}", pages.verdict_page(site, links(f"{path}/{gate}"), found, files, gate, Asked())
                copied[f"{EVIDENCE}/{found.run_name}/{files.address.phase}/{gate}"] = files.evidence(gate) / "report"
            if files.parent in names:
                left = str(files.address._replace(phase=files.parent))
                comparison = COMPARISON.format(left, path)
                yield comparison, pages.compare_page(site, links(comparison), [left, path])
        for target, source in copied.items():
            for file in sorted(source.rglob("*")):
                if file.suffix in (".html", ".css") and file.is_file():
                    yield f"{target}/{file.relative_to(source).as_posix()}", file.read_bytes()
