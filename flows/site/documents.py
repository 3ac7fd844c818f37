"""Training text of a component: its documents, the counts of the filters, and the test items that the scan found. Advice for refusals.

The server sorts, filters and paginates evidence tables, which may be too large for a browser.
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

from phasewise.flows.recipes import NAMES
from phasewise.flows.recipes.catalogue import CATALOGUE
from phasewise.flows.site.shelf import Files, Gate, PhaseFiles, Set, known
from phasewise.flows.site.site import Site
from phasewise.tasks.data.findings import QUARANTINE_NAME
from phasewise.trainer.base.errors import PhasewiseError
from phasewise.trainer.base.storage import as_path, parse_json
from phasewise.validations.expectations.suites import SUITES
from phasewise.validations.failures import Failure
from phasewise.validations.reevaluate import cells_of, numeric_columns
from phasewise.validations.verdict import Verdict

PAGE_ROWS = 100
MAX_COLUMNS, MAX_CELL = 7, 48  # more columns, and columns with longer cells, are folded: a table fits 1,100 pixels
MAX_FILTER = 200


class Asked(NamedTuple):
    """A request for one table of a verdict. The default shows the first rows of each table.

    Attributes:
        sort: a column, with a leading `-` for descending order.
        text: only rows with all of its words, ignoring case.
        page: starts at 1.
    """

    table: str = ""
    sort: str = ""
    text: str = ""
    page: int = 1


def asked_of(query: Mapping[str, str]) -> Asked:
    """Parse a query. Invalid parts have no effect."""
    page = query.get("page", "1")
    return Asked(query.get("table", ""), query.get("sort", ""), query.get("q", ""), int(page) if page.isdecimal() and len(page) < 7 else 1)


class EvidenceTable(NamedTuple):
    """A table and its shown rows.

    Attributes:
        sort: a column, with a leading `-` for descending order. Empty is the order of the file with failing rows first.
        matching: number of rows after the filter.
        first: index of the first shown row among them.
    """

    name: str
    columns: tuple[str, ...] = ()
    is_numeric: tuple[bool, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    total: int = 0
    matching: int = 0
    first: int = 0
    sort: str = ""
    text: str = ""
    page: int = 1
    pages: int = 1
    problem: str = ""

    @property
    def shown(self) -> list[int]:
        """The columns outside the folded part, of all columns: short cells, and values that differ before others."""
        every = range(len(self.columns))
        long = {at for at in every if any(len(row[at]) > MAX_CELL for row in self.rows)}
        same = {at for at in every if len({row[at] for row in self.rows}) == 1 and len(self.rows) > 1}
        ranked = sorted(every, key=lambda at: (self.columns[at] != self.sort.removeprefix("-"), at in long, at in same, at))
        return sorted(ranked[:MAX_COLUMNS]) if len(self.columns) > MAX_COLUMNS or len(long) > 1 else list(every)


def tables_of(files: Files, verdict: Verdict, folder: Path, asked: Asked) -> list[EvidenceTable]:
    """Return the evidence of a verdict in the order of its suite, tables with failures first.

    The default order of a table is the column that a failing check measures, or that orders its details.
    """
    suite = SUITES.get(verdict.suite)
    others = sorted(path.stem for path in folder.glob("*.parquet"))
    names = list(dict.fromkeys([*(suite.tables if suite else ()), *(check.table for check in verdict.checks), *others]))
    frames: dict[str, Any] = {name: files.read("parquet", folder / f"{name}.parquet", read_table) for name in names}
    wrong = {(check.table, check.asks) for check in verdict.checks if check.kind in ("failed", "warned")}
    telling: dict[str, str] = {}
    try:
        known = {name: frames[name] for name in suite.tables if frames[name] is not None} if suite else {}
        checks = suite.checks(verdict.thresholds, known) if suite else ()
    except Exception:  # fields that an older verdict lacks: its tables keep the order of their files
        checks = ()
    for check in checks:
        if (check.table, check.asks) in wrong:
            if "column" in check.arguments:
                telling.setdefault(check.table, str(check.arguments["column"]))
            if check.details:
                telling.setdefault(check.details.table, check.details.order_by)
    shown = [_shown(name, frames[name], asked if asked.table == name else Asked(), telling.get(name)) for name in names]
    first = {check.table for check in verdict.checks if check.kind in ("failed", "warned", "broken")}
    return sorted(shown, key=lambda table: (table.name not in first, not table.total))


def read_table(path: Path) -> Any:
    """Read an evidence table, or return None if it is damaged."""
    import pandas as pd  # the first page does not need it

    try:
        return pd.read_parquet(path)
    except ValueError:
        return None


def _shown(name: str, frame: Any, asked: Asked, telling: str | None) -> EvidenceTable:
    if frame is None:
        return EvidenceTable(name, problem="This table is missing or cannot be read.")
    total, columns, numeric = len(frame), tuple(map(str, frame.columns)), numeric_columns(frame)
    words = asked.text[:MAX_FILTER].casefold().split()
    if words and total:
        cells = frame.astype(str).agg(" ".join, axis=1).str.casefold()
        for word in words:
            if len(cells):
                cells = cells[cells.str.contains(word, regex=False)]
        frame = frame.loc[cells.index]
    sort = asked.sort if asked.sort.removeprefix("-") in columns else ""
    if not sort and "passes" in columns:
        frame = frame.sort_values("passes", kind="stable")
    elif sort or telling in columns:
        by, is_falling = (sort.removeprefix("-"), sort.startswith("-")) if sort else (str(telling), True)
        try:
            frame = frame.sort_values(by, ascending=not is_falling, kind="stable")
        except TypeError:  # cells of several types
            frame = frame.sort_values(by, ascending=not is_falling, kind="stable", key=lambda column: column.astype(str))
    pages = max(1, ceil(len(frame) / PAGE_ROWS))
    page = min(max(1, asked.page), pages)
    first = (page - 1) * PAGE_ROWS
    rows = tuple(cells_of(frame.iloc[first : first + PAGE_ROWS]))
    return EvidenceTable(name, columns, numeric, rows, total, len(frame), first, sort, asked.text, page, pages)


DOCUMENTS_PER_PAGE, MAX_CHARACTERS, CONTEXT_BYTES = 20, 2_000, 240
MAX_PAIRS, MAX_SAMPLES = 5, 50
MAX_ITEMS_BYTES = 2**26  # larger files of test items are not read: a page shows only the text of the document
FIELDS: dict[str, str] = {
    **dict.fromkeys(("caches", "leakage", "leaked_items"), "sources.{component}.exclude"),
    "differences": "sources.{component}",
    **{name: name for name in ("mixture", "order", "packing")},
    "shifts": "order",
    "hand_off": "start.declares",
    "asked": "evaluation.benchmarks",
}
"""Evidence table → the field of the recipe, or of its phase, that decides it. Limits of the gates decide the other tables."""


class Pair(NamedTuple):
    """A test item beside the text that contains it. `text` is the part before, the matching part, and the part after."""

    benchmark: str
    item: str
    part: str
    score: str
    asked: str
    place: str
    number: int
    text: tuple[str, str, str]


class Advice(NamedTuple):
    """The source, the field of the recipe and the commands that mend a refusal."""

    source: str
    field: str
    commands: tuple[str, ...]


class Document(NamedTuple):
    """A document as it trains. `rest`: the text after the first characters."""

    number: int
    id: str
    file: str
    tokens: int
    text: str
    rest: str
    hits: tuple[Pair, ...]


def text_page(site: Site, found: Set, files: PhaseFiles, component: str, page: int) -> dict[str, Any]:
    """Return a page of the documents that a phase draws from a component, with the counts of the filters and the findings of the scan."""
    folder = _cache_of(site, files, component)
    manifest = known(site.shelf.files.json(folder / "manifest.json")) if folder else {}
    leakage = [row for row in _rows(site, files, "leakage", component) if row["items_hit"]]
    text: dict[str, Any] = {
        "source": source_of(found, component),
        "scanned": [(row["benchmark"], f"{row['items_hit']:,} of {row.get('items', 0):,} items found") for row in leakage],
        "documents": manifest.get("documents", 0),
        "tokens": manifest.get("tokens", 0),
        "left_out": {reason: number for reason, number in known(manifest.get("left_out")).items() if number},
        "samples": [],
        "shown": [],
        "pages": max(1, -(-manifest.get("documents", 0) // DOCUMENTS_PER_PAGE)),
        "problem": "" if manifest else "The token cache of this component is not in the home, or cannot be read.",
    }
    text["page"] = min(max(1, page), text["pages"])
    if not folder or not manifest:
        return text
    for path in (site.shelf.home.root / "documents" / component).glob(f"*/{QUARANTINE_NAME}"):
        read = known(site.shelf.files.json(path.with_name("manifest.json")))
        if (read.get("sources"), read.get("source")) == (manifest["sources"], manifest["source"]):
            with path.open("rb") as lines:
                text["samples"] = [parse_json(line) for line in islice(lines, MAX_SAMPLES)]
    first = (text["page"] - 1) * DOCUMENTS_PER_PAGE
    try:
        numbers = range(first, first + DOCUMENTS_PER_PAGE)
        pairs = pairs_of(site, files, component, numbers=numbers)
        for number, name, file, size, content in _documents(site, folder, manifest, numbers):
            hits = tuple(pair for pair in pairs if pair.number == number)
            text["shown"].append(Document(number, name, file, size, content[:MAX_CHARACTERS], content[MAX_CHARACTERS:], hits))
    except (PhasewiseError, OSError, ValueError) as error:
        text["problem"] = str(error)
    return text


def pairs_of(site: Site, files: PhaseFiles, component: str, *, numbers: Sequence[int] | None = None) -> list[Pair]:
    """Return the clearest test items in a component beside their documents, or all of the documents with these numbers."""
    rows = [row for row in _rows(site, files, "leaked_items", component) if numbers is None or row.get("document") in numbers]
    rows = sorted(rows, key=lambda row: -row["score"])[: None if numbers is not None else MAX_PAIRS]
    folder = _cache_of(site, files, component) if rows else None
    manifest = known(site.shelf.files.json(folder / "manifest.json")) if folder else {}
    pairs: list[Pair] = []
    for row in rows:
        number, text = row.get("document"), ("", str(row["excerpt"]), "")
        try:
            if folder and manifest and isinstance(number, int):
                [(*_, whole)] = _documents(site, folder, manifest, range(number, number + 1))
                content, start, end = whole.encode(), int(row["start"]), int(row["end"])
                if " ".join(content[start:end].decode(errors="replace").split())[:40] == text[1][:40]:
                    around = slice(max(0, start - CONTEXT_BYTES), start), slice(start, end), slice(end, end + CONTEXT_BYTES)
                    before, match, after = (content[part].decode(errors="ignore") for part in around)
                    text = before, match, after
        except (PhasewiseError, OSError, ValueError):
            pass  # the excerpt of the evidence remains
        asked = _item(site, str(row["benchmark"]), str(row["item"]))
        place = f"{component}, file {row.get('files', '')}" + (f", document {number:,}" if isinstance(number, int) else "")
        score, part = f"{row['score']:.2f}", str(row.get("part", ""))
        pairs.append(
            Pair(str(row["benchmark"]), str(row["item"]), part, score, asked, place, number if isinstance(number, int) else -1, text)
        )
    return pairs


def advice_of(found: Set, files: PhaseFiles, gate: Gate, failure: Failure) -> Advice:
    """Return source, recipe field and commands for a failure."""
    phase, words = files.address.phase, f"{failure.worst.what} {failure.worst.where}"
    component = next((name for name in sorted(files.components, key=len, reverse=True) if f"component {name}" in words), "")
    field = FIELDS.get(failure.table, f"gates.{gate}")
    field = field.format(component=component or "COMPONENT") if field.startswith("sources") else f"phases.{phase}.{field}"
    target = f"{found.target}/{phase}" + (f" --scale {found.scale}" if found.scale != "own" else "")
    commands = [f"phasewise new my_{found.name.replace('-', '_')}.py --from {found.name}"] if found.name in NAMES else []
    commands += [f"phasewise data prepare {target}"] if gate == "data" else []
    return Advice(source_of(found, component) if component else "", field, (*commands, f"phasewise run {target}"))


def source_of(found: Set, component: str) -> str:
    """Return the name of a component with the text that it is read from."""
    own, entry = (found.recipe.sources.get(component) if found.recipe else None), CATALOGUE.get(component)
    if own is None and entry and entry.stand_in and found.scale == "proxy":
        return f"{component}: its proxy data set, sources/{component} of the home"
    source = own or (entry.source if entry else None)
    if source is None:
        return component
    excluded = f", without {', '.join(source.exclude)}" if source.exclude else ""
    return f"{component}: {source.url}{'@' + source.revision if source.revision else ''}, files {', '.join(source.include)}{excluded}"


def _rows(site: Site, files: PhaseFiles, table: str, component: str) -> list[dict[str, Any]]:
    frame = site.shelf.files.read("parquet", files.evidence("data") / f"{table}.parquet", read_table)
    if frame is None or isinstance(frame, str) or "component" not in frame:
        return []
    return frame[frame["component"] == component].to_dict("records")


def _cache_of(site: Site, files: PhaseFiles, component: str) -> Path | None:
    """Return the judged cache, else the cache of the run. A copied home has it at its own place."""
    given = [str(row["folder"]) for row in _rows(site, files, "caches", component) if "folder" in row]
    given += [str(known(files.run.get("caches")).get(component, ""))]
    for place in filter(None, given):
        for folder in (as_path(place), site.shelf.home.root / "tokens" / component / Path(place).name):
            if (folder / "manifest.json").is_file():
                return folder
    return None


def _documents(site: Site, folder: Path, manifest: Mapping[str, Any], numbers: range) -> list[tuple[int, str, str, int, str]]:
    """Return number, id, file, tokens and text of the documents with these numbers."""
    import numpy as np  # the first page needs none of these
    import pyarrow.parquet as pq
    from tokenizers import Tokenizer

    from phasewise.tasks.validation.scan_pieces import find_tokenizer
    from phasewise.trainer.data.manifest import read_manifest

    path = find_tokenizer(folder, read_manifest(folder), [site.shelf.home.root])
    tokenizer = site.shelf.files.read("tokenizer", path, lambda found: Tokenizer.from_file(str(found)))
    if not isinstance(tokenizer, Tokenizer):
        raise ValueError(f"{path} cannot be read")
    first, dtype, shown = 0, np.dtype(manifest["dtype"]), list[tuple[int, str, str, int, str]]()
    for shard in manifest["shards"]:
        chosen = range(max(numbers.start, first), min(numbers.stop, first + shard["documents"]))
        if len(chosen):
            index = pq.read_table(folder / f"{shard['name']}.parquet", columns=["id", "source_file", "offset", "length"])
            for number, row in zip(chosen, index.slice(chosen.start - first, len(chosen)).to_pylist(), strict=True):
                place = folder / f"{shard['name']}.bin"
                ids = np.fromfile(place, dtype, count=row["length"], offset=row["offset"] * dtype.itemsize)
                shown.append((number, row["id"], row["source_file"], row["length"], tokenizer.decode(ids.tolist())))
        first += shard["documents"]
    return shown


def _item(site: Site, benchmark: str, name: str) -> str:
    """Return the text of a test item, or an empty string if the home does not keep it."""
    for path in sorted((site.shelf.home.root / "evidence" / "items").glob("*/items.json")):
        kept = known(site.shelf.files.json(path)) if path.stat().st_size < MAX_ITEMS_BYTES else {}
        for one in kept.get("items", ()):
            if (one["benchmark"], one["id"]) == (benchmark, name):
                parts = (one["passage"], one["question"], *one["choices"], one["answer"], *one["solutions"])
                return "\n".join(part for part in parts if part)
    return ""
