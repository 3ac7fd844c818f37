"""Sizes of the folders of a home, and the folders that neither a result nor a recipe needs."""

import os
import re
import shutil
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from phasewise.tasks.data.documents import read_documents_manifest
from phasewise.tasks.data.plan import DataPlan
from phasewise.tasks.data.tokenizer_training import TOKENIZER_NAME
from phasewise.tasks.home import TRIAL, Home
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.identity import digest_of_file
from phasewise.trainer.base.run_folder import SUPERSEDED
from phasewise.trainer.base.storage import has_no_end
from phasewise.trainer.data.manifest import SPLITS, Manifest, find_manifest

KEY_LENGTH = 16
_KEY = re.compile(rf"[0-9a-f]{{{KEY_LENGTH},64}}")
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}")


class Removable(NamedTuple):
    """A file or folder that can be deleted, with its size and the reason."""

    path: Path
    size_bytes: int
    reason: str


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder. Raises DataError for a pipe or a device, whose reader would hang."""
    total = 0
    inner = (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
    for file in inner if path.is_dir() else (path,):
        with suppress(FileNotFoundError):  # a live process deletes files and folders meanwhile
            if has_no_end(file):
                raise DataError(f"{file}: expected a file, found a pipe, a socket or a device. Delete it and run the command again.")
            total += os.lstat(file).st_size
    return total


def find_removable(
    home: Home, plans: Collection[DataPlan], evidence: Collection[Path], *, knows_all: bool, with_trials: bool
) -> list[Removable]:
    """Return everything that may go from a home on this machine, in the order of their paths.

    Token caches and documents go if a plan has the same component from the same source under another key, and no run reads them.
    Tokenizers, benchmarks and evidence go if no plan and no run has their key, and `knows_all`: `plans` has every recipe with data.
    `evidence`: the current evidence of the plans.
    """
    runs = [path for path in sorted(home.runs.glob("*/*")) if path.is_dir()]
    archived = {path: "archived: the phase was trained again" for path in runs if SUPERSEDED in path.name}
    if with_trials:
        archived |= {path: "a trial" for path in runs if TRIAL in path.name}
    verdicts = {path: home.work / "verdicts" / path.parent.name / path.name for path in runs}
    named: set[str] = set()
    for path in [path for path in runs if path not in archived]:
        for file in (*path.rglob("*.json"), *verdicts[path].glob("*.json")):
            with suppress(FileNotFoundError):
                named |= {key[:KEY_LENGTH] for key in _KEY.findall(file.read_text(encoding="utf-8", errors="replace"))}
    for plan in plans:
        folders = [plan.tokenizer.parent, plan.benchmarks]
        folders += [one.folder for part in plan.components.values() for one in (part.documents, part.train, part.held_out)]
        named |= {folder.name.rpartition("-")[2] for folder in folders}
    named |= {path.parent.name for path in evidence}
    outdated = _outdated_data(home, plans, named)
    kept = [folder for folder in home.root.glob("tokens/*/*") if folder not in outdated]
    tokenizers = {manifest.tokenizer_digest for folder in kept if (manifest := find_manifest(folder))}
    reasons = archived | outdated
    reasons |= {verdicts[path]: reason for path, reason in archived.items() if verdicts[path].exists()}
    for folder in home.root.glob("tokenizers/*") if knows_all else ():
        file = folder / TOKENIZER_NAME
        if folder.name not in named and not (file.is_file() and digest_of_file(file) in tokenizers):
            reasons[folder] = "no recipe and no cache uses this tokenizer"
    for folder in (*home.root.glob("benchmarks/*"), *home.root.glob("evidence/*/*")) if knows_all else ():
        if folder.is_dir() and folder.name not in named:
            reasons[folder] = f"outdated {folder.relative_to(home.root).parts[0]}"
    temporary = [path for path in home.root.rglob(".*") if _TEMPORARY.fullmatch(path.name) and home.prefect not in path.parents]
    reasons |= dict.fromkeys((*home.exporting.glob("*"), *temporary), "unfinished")
    inside = {path for path in reasons if any(parent in reasons for parent in path.parents)}
    return [Removable(path, size_of(path), reason) for path, reason in sorted(reasons.items()) if path not in inside]


def remove(found: Iterable[Removable]) -> None:
    """Delete files and folders. A folder is renamed first, so that an interruption leaves no part of it under its name."""
    for path, _, _ in found:
        if path.is_dir():
            aside = path.with_name(f".{path.name}.{'0' * 32}")
            path.rename(aside)
            shutil.rmtree(aside)
        else:
            path.unlink(missing_ok=True)


def _outdated_data(home: Home, plans: Iterable[DataPlan], named: set[str]) -> dict[Path, str]:
    """Return folder → reason for token caches and documents of planned components under other keys that no run names."""
    planned = {(name, part.source.described().get("url")) for plan in plans for name, part in plan.components.items()}
    found: dict[Path, str] = {}
    needed: list[Manifest] = []
    for folder in home.root.glob("tokens/*/*"):
        split, _, key = folder.name.rpartition("-")
        manifest = find_manifest(folder) if split in SPLITS else None
        if manifest is None or key in named or (manifest.component, manifest.source.get("url")) not in planned:
            needed += [manifest] if manifest else []
        else:
            found[folder] = f"outdated token cache of {manifest.component}"
    of_needed = {(one.component, one.source.get("url"), one.sources) for one in needed}
    for folder in home.root.glob("documents/*/*"):
        name = folder.parent.name
        try:
            documents = read_documents_manifest(folder)
        except DataError:
            continue
        if folder.name in named or (name, documents.source.get("url")) not in planned:
            continue
        if (name, documents.source.get("url"), documents.sources) not in of_needed:
            found[folder] = f"outdated documents of {name}"
    return found
