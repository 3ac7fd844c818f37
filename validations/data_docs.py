"""Great Expectations' Data Docs of a run, built by one process from the evidence of its verdicts.

The context with its stores lives in a temporary folder: processes that share one tear its files. Only the pages are kept.
"""

import re
import shutil
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from validations.data_docs_pages import cut_from_network, write_index
from validations.evidence.tables import read_tables
from validations.expectations.judging import Library, build_suite, load_library
from validations.expectations.suites import SUITES
from validations.verdict import Verdict


def build_data_docs(folder: str | Path, verdicts: Sequence[Verdict]) -> Path:
    """Judge the evidence of every verdict once more and write the pages, in place of those that the folder holds.

    Of several verdicts on one subject by one suite, the last counts.

    Returns:
        The path of the index page.
    """
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    latest = {_name(verdict): verdict for verdict in verdicts}
    library = load_library()
    with tempfile.TemporaryDirectory() as context_folder:
        context = library.gx.get_context(mode="file", project_root_dir=context_folder)
        context.variables.progress_bars = {"globally": False}
        source = context.data_sources.add_pandas("evidence")
        slugs = {name: _run_suites(library, context, source, verdict) for name, verdict in latest.items()}
        context.build_data_docs()
        pages = Path(context.get_docs_sites_urls()[0]["site_url"].removeprefix("file://")).parent
        links = {name: {table: _page_of(pages, slug) for table, slug in tables.items()} for name, tables in slugs.items()}
        cut_from_network(pages)
        write_index(pages, list(latest.values()), links)
        _replace(folder, pages)
    return folder / "index.html"


def _name(verdict: Verdict) -> str:
    return f"{verdict.subject} {verdict.suite}"


def _run_suites(library: Library, context: Any, source: Any, verdict: Verdict) -> dict[str, str]:
    """Judge the evidence of one verdict. Gives table → the name of its suite, which names its page's folder."""
    suite = SUITES[verdict.suite]
    tables = read_tables(verdict.evidence, suite.tables)
    checks = suite.checks(verdict.thresholds, tables)
    slugs = {table: re.sub(r"[^\w.-]+", "-", f"{_name(verdict)} {table}") for table in dict.fromkeys(check.table for check in checks)}
    for table, slug in slugs.items():
        expectations = context.suites.add(build_suite(library, slug, table, checks))
        rows = source.add_dataframe_asset(slug).add_batch_definition_whole_dataframe("all rows")
        validation = context.validation_definitions.add(library.gx.ValidationDefinition(name=slug, data=rows, suite=expectations))
        validation.run(batch_parameters={"dataframe": tables[table]}, result_format="SUMMARY")
    return slugs


def _page_of(pages: Path, slug: str) -> str:
    """The page of a suite's validation, relative to the index."""
    (page,) = (pages / "validations" / slug).rglob("*.html")
    return page.relative_to(pages).as_posix()


def _replace(folder: Path, pages: Path) -> None:
    """Put the pages in the folder's place; who reads meanwhile finds the old ones or the new ones, or for a moment none."""
    fresh, old = (folder.with_name(f".{folder.name}.{uuid.uuid4().hex}") for _ in range(2))
    shutil.copytree(pages, fresh)
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
