"""The keys of kept evidence on leakage: items, indexes and scans. The scan itself is not imported, because Numba is slow to import."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from phasewise.tasks.data.plan import DataPlan
from phasewise.tasks.evaluation.settings import OwnBenchmark, own_text_key, real_benchmarks
from phasewise.tasks.home import Home
from phasewise.trainer.base.identity import NotAsWritten, code_digest, content_digest, digest_of_json, read_sealed
from phasewise.trainer.base.storage import user_cache
from phasewise.trainer.data.manifest import read_manifest
from phasewise.validations.evidence.leakage import TABLE_NAME
from phasewise.validations.limits import OWN_TEXT, LeakageLimits

ITEMS_VERSION = "items-3"
MIN_HELD_OUT_WORDS = 13


@cache
def leakage_version() -> str:
    """Return a digest of the code of items, index and scan."""
    return code_digest("validations/evidence/leakage/*.py")


def folder_digest(path: Path) -> str:
    """Return a digest of the names and contents of a file or folder, and of the code that reads them."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    contents = [[str(file.relative_to(path)) if path.is_dir() else file.name, content_digest(file)[1]] for file in files]
    return digest_of_json({"reader": leakage_version(), "place": path.name, "files": contents})


def index_store(home: Home | None) -> Path:
    """Return the folder of this machine's indexes: in a local home, or else in the user's cache folder."""
    if home is not None and home.is_local:
        return home.root / "evidence" / "indexes"
    return user_cache() / "indexes"


def index_folder(key: str, store: Path) -> Path:
    """Return the folder of the index with this key."""
    return store / digest_of_json({"items": key, "index": leakage_version()})[:16]


def items_key(plan: DataPlan, components: Iterable[str], own: Sequence[OwnBenchmark] = ()) -> str:
    """Return a digest of everything that decides the items of a phase with these components: benchmarks, held-out documents, code."""
    real = real_benchmarks()
    held_out = {name: read_manifest(plan.components[name].held_out.folder).digest for name in {*plan.benchmark_components, *components}}
    benchmarks: dict[str, Any] = {"made": plan.benchmarks.name, "real": folder_digest(real) if real else None}
    if own:
        from phasewise.tasks.evaluation.gate_benchmarks import gate_key  # a third of a second

        benchmarks["own"] = [own_text_key(url) if label == OWN_TEXT else gate_key([label], url) for label, url in own]
    return digest_of_json({"version": ITEMS_VERSION, "min_words": MIN_HELD_OUT_WORDS, "held_out": held_out, **benchmarks})


def scan_key(manifest_digest: str, items_digest: str, limits: LeakageLimits) -> str:
    """Return a digest of everything that decides the result of a scan."""
    rule = limits.model_dump(mode="json", exclude={"max_items", "max_held_out_percent"})
    return digest_of_json({"cache": manifest_digest, "items": items_digest, "rule": rule, "scanner": leakage_version()})


def kept_evidence(
    plan: DataPlan, components: Iterable[str], limits: LeakageLimits, home: Home, *, own: Sequence[OwnBenchmark] = ()
) -> Iterator[Path]:
    """Yield the sealed files of a phase's items, index and scans, if they exist."""
    components = sorted(components)
    key = items_key(plan, components, own)
    yield home.keyed("evidence", key, "items") / "items.json"
    table = index_folder(key, index_store(home)) / TABLE_NAME
    yield table
    with suppress(FileNotFoundError, NotAsWritten, KeyError):
        items_digest = str(read_sealed(table)["items"])
        for name in components:
            manifest = read_manifest(plan.components[name].train.folder)
            yield home.keyed("evidence", scan_key(manifest.digest, items_digest, limits), "leakage") / "scan.json"
