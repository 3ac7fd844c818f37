"""The check of the files of a home that results depend on, and the sizes of its folders."""

import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.data.documents import documents_key, read_documents_manifest
from phasewise.tasks.data.near_copies import REMOVED_NAME
from phasewise.tasks.data.plan import ComponentPlan, DataPlan
from phasewise.tasks.data.tokenizer import DIGEST_NAME, DOCUMENT_TOKENS_NAME, read_document_tokens
from phasewise.tasks.data.tokenizer_training import TOKENIZER_NAME
from phasewise.tasks.evaluation.made_benchmarks import BenchmarkManifest
from phasewise.tasks.home import TRIAL, Home
from phasewise.tasks.report.placing import ORIGIN_NAME, export_name
from phasewise.tasks.training.pretrained import SOURCE_NAME
from phasewise.tasks.training.run_identity import read_run
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.identity import NotAsWritten, digest_of_file, read_sealed
from phasewise.trainer.base.run_folder import COMPILED_NAME, RESULT_NAME, SUPERSEDED, RunFolder
from phasewise.trainer.base.storage import has_no_end
from phasewise.trainer.checkpoints.files import DIGESTS_NAME, UNCOMMITTED, committed_files, saved_steps
from phasewise.trainer.data.manifest import MANIFEST_NAME, SPLITS, Manifest, find_manifest, read_manifest
from phasewise.trainer.process.compilation_cache import LIST_NAME
from phasewise.validations.evidence.leakage import TABLE_NAME

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


M = TypeVar("M")
PREPARE = "delete its folder and prepare the data again"
AGAIN = "the next run makes it again"
RESTORE = "restore it from a copy, or the next run resumes from an earlier checkpoint"
EXPORT = "delete its folder and export again"


class ChangedFile(NamedTuple):
    """A result file, as a path in the home, that is missing or was changed. Without a phase it belongs to the whole recipe."""

    path: str
    remedy: str
    phase: str | None = None


def changed_files(home: Home, plan: DataPlan, run_name: str, digests: KnownDigests, evidence: Iterable[Path]) -> list[ChangedFile]:
    """Return the changed files that a recipe's results depend on, in the order of the pipeline.

    Sealed files, such as the `evidence` of the verdicts, are always read. Large files are read if they look changed, or `digests` reads
    all.
    """
    inventory = _Inventory(home, digests)
    for component in plan.components.values():
        inventory.add_documents(component)
        inventory.add_listed(component.near_copies, MANIFEST_NAME, lambda fields: {REMOVED_NAME: fields["removed_digest"]}, PREPARE)
        for split in SPLITS:
            inventory.add_cache(component.cache(split).folder)
    tokenizer, digest_file = plan.tokenizer, plan.tokenizer.with_name(DIGEST_NAME)
    if tokenizer.parent.exists() and not digest_file.exists():
        inventory.add(digest_file, PREPARE)
    elif tokenizer.parent.exists() and not (tokenizer.exists() and digest_file.read_bytes() == digest_of_file(tokenizer).encode()):
        inventory.add(tokenizer, PREPARE)
        inventory.add(digest_file, PREPARE)
    if tokenizer.exists():
        try:
            is_own = read_document_tokens(tokenizer) == plan.around
        except DataError:
            is_own = False
        if not is_own:
            inventory.add(tokenizer.with_name(DOCUMENT_TOKENS_NAME), PREPARE)
    inventory.add_listed(
        plan.benchmarks,
        MANIFEST_NAME,
        lambda fields: {name: digest for one in BenchmarkManifest.model_validate(fields).benchmarks for name, digest in one.files.items()},
        PREPARE,
    )
    for path in dict.fromkeys(evidence):
        if path.name == TABLE_NAME:
            remedy = "delete its folder: the next run makes it again"
            inventory.add_listed(path.parent, TABLE_NAME, lambda fields: fields.get("files", {}), remedy)
        else:
            inventory.add_sealed(path, AGAIN, lambda fields, path=path: str(fields.get("key")).startswith(path.parent.name))
    for path in sorted((home.root / "preflight").glob("*.json")):
        inventory.add_sealed(path, AGAIN, lambda fields, path=path: str(fields.get("key", path.stem)).startswith(path.stem))
    for folder in sorted(path for path in (home.runs / run_name).glob("*") if path.is_dir() and path.name != COMPILED_NAME):
        inventory.phase = folder.name
        inventory.add_run(RunFolder(folder))
        inventory.add_sealed(folder / SOURCE_NAME, AGAIN)
    inventory.phase = None
    if (programs := home.runs / run_name / COMPILED_NAME / LIST_NAME).exists():
        inventory.add_listed(programs.parent, LIST_NAME, dict[str, str], AGAIN)
    for path in sorted((home.work / "verdicts" / run_name).glob("*/*.json")):
        inventory.phase = path.parent.name
        inventory.add_verdict(path)
    inventory.phase = None
    for path in sorted((home.root / "exports" / run_name).glob("*")):
        inventory.add_listed(
            path,
            ORIGIN_NAME,
            lambda fields: fields.get("files", {}),
            EXPORT,
            is_own=lambda fields, name=path.name: (
                "phase" not in fields or name.startswith(export_name(fields["phase"], fields["weights"], fields["dtype"]))
            ),
        )
    return inventory.found


@dataclass
class _Inventory:
    """Collect changed files. Each `add_…` method but `add` checks a file or folder, if it exists."""

    _home: Home
    _digests: KnownDigests
    phase: str | None = None
    found: list[ChangedFile] = field(default_factory=list)

    def add(self, path: Path, remedy: str) -> None:
        root = self._home.work if path.is_relative_to(self._home.work) else self._home.root
        name = path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
        self.found.append(ChangedFile(name, remedy, self.phase))

    def add_sealed(self, path: Path, remedy: str, is_own: Callable[[dict[str, Any]], bool] = lambda _fields: True) -> dict[str, Any] | None:
        """Return the fields of a sealed file, if they are unchanged and belong to this path."""
        try:
            fields = read_sealed(path)
            if is_own(fields):
                return fields
        except FileNotFoundError:
            return None
        except NotAsWritten:
            pass
        self.add(path, remedy)
        return None

    def add_listed(
        self,
        folder: Path,
        seal: str,
        files_of: Callable[[dict[str, Any]], Mapping[str, str]],
        remedy: str,
        *,
        is_own: Callable[[dict[str, Any]], bool] = lambda _fields: True,
    ) -> None:
        """Check a folder with a sealed list of its files. An empty folder is unfinished, and not changed."""
        if not folder.exists():
            return
        if not (folder / seal).exists():
            if any(folder.iterdir()):
                self.add(folder / seal, remedy)
            return
        fields = self.add_sealed(folder / seal, remedy, is_own)
        if fields is not None:
            self.add_changed(folder, files_of(fields), folder / seal, remedy)

    def add_changed(self, folder: Path, files: Mapping[str, str], seal: Path, remedy: str) -> None:
        with suppress(FileNotFoundError):  # its process deleted the folder meanwhile
            for name in self._digests.changed(folder, files, seal):
                self.add(folder / name, remedy)

    def add_documents(self, component: ComponentPlan) -> None:
        """Check the documents of a component with the records of its bundles."""
        source = component.source
        expected = (documents_key(source, component.listing), source.described().get("deduplicate", "exact"))
        folder = component.documents.folder
        manifest = self._read_data(folder, read_documents_manifest, "bundle-*.json")
        if manifest is not None:
            if (manifest.key, manifest.source.get("deduplicate", "exact")) != expected:
                self.add(folder / MANIFEST_NAME, PREPARE)
            self.add_changed(folder, manifest.files, folder / MANIFEST_NAME, PREPARE)

    def add_cache(self, folder: Path) -> None:
        """Check a token cache with the records of its shards."""
        manifest = self._read_data(folder, read_manifest, "shard-*.json")
        if manifest is not None:
            if not folder.name.endswith(manifest.key[:16]) and folder.is_relative_to(self._home.root):
                self.add(folder / MANIFEST_NAME, PREPARE)
            for shard in manifest.shards:
                self.add_changed(folder, shard.files, folder / MANIFEST_NAME, PREPARE)

    def _read_data(self, folder: Path, read: Callable[[Path], M], records: str) -> M | None:
        if not folder.exists():
            return None
        try:
            manifest = read(folder)
        except DataError:
            self.add(folder / MANIFEST_NAME, PREPARE)
            return None
        for path in sorted(folder.glob(records)):
            self.add_sealed(path, PREPARE)
        return manifest

    def add_run(self, run: RunFolder) -> None:
        """Check a run's sealed files and its checkpoints."""
        result = self.add_sealed(run.result, AGAIN) or {}
        digest, weights = result.get("run_digest"), result.get("params_digest")
        written = read_run(run.path)
        if result and (written is None or digest != written.digest):
            self.add(run.run_file, AGAIN)
            self.add(run.result, AGAIN)  # one of the two is of another run
        for path in (run.conditions, run.passed_over, run.question, run.question.with_suffix(".decision.json")):
            self.add_sealed(path, AGAIN)
        self.add_sealed(run.forecast, "restore it from a copy")
        self.add_sealed(run.caches, AGAIN, lambda fields: digest in (None, fields.get("run_digest")))
        self.add_sealed(run.evaluation, AGAIN, lambda fields: weights in (None, fields.get("params_digest")))
        for path in sorted(run.path.glob("evaluations/*/*.json")):
            self.add_sealed(path, AGAIN)
        for path in (run.checkpoint(step) for step in saved_steps(run.checkpoints)):
            files = committed_files(path)
            if isinstance(files, str):
                if files != UNCOMMITTED or any(path.iterdir()):
                    self.add(path / DIGESTS_NAME, RESTORE)
                continue
            cut = [name for name, (size, _) in files.items() if not (path / name).is_file() or (path / name).stat().st_size != size]
            if any(not (path / name).exists() for name in cut):
                self.add(path / DIGESTS_NAME, RESTORE)
            for name in cut:
                self.add(path / name, RESTORE)
            rest = {name: digest for name, (_, digest) in files.items() if name not in cut}
            self.add_changed(path, rest, path / DIGESTS_NAME, RESTORE)

    def add_verdict(self, path: Path) -> None:
        """Check a verdict with its tables, or the decision of a person. A verdict on training also covers the metrics."""
        subject = f"/{path.parent.name.partition(TRIAL)[0]} {'training' if path.stem == 'health' else path.stem}"
        fields = self.add_sealed(path, AGAIN, lambda fields: str(fields.get("subject", subject)).endswith(subject))
        if not fields:
            return
        tables: dict[str, str] = fields.get("tables", {})
        self.add_changed(path.with_suffix(""), {f"{name}.parquet": digest for name, digest in tables.items()}, path, AGAIN)
        metrics = RunFolder(self._home.runs / path.parents[1].name / path.parent.name).metrics
        if path.stem == "health" and metrics.with_name(RESULT_NAME).exists():
            self.add_changed(metrics.parent, {metrics.name: next(iter(fields["judged"].values()))}, path, RESTORE)
