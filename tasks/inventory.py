"""The files of a home: how a change of each kind is found, and which kinds nothing rests on."""

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.data.documents import read_documents_manifest
from phasewise.tasks.data.plan import ComponentPlan, DataPlan
from phasewise.tasks.data.tokenizer import DIGEST_NAME, tokenizer_digest
from phasewise.tasks.evaluation.made_benchmarks import BenchmarkManifest
from phasewise.tasks.home import Home
from phasewise.tasks.report.placing import ORIGIN_NAME, export_name
from phasewise.tasks.training.run_identity import read_run
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.identity import NotAsWritten, read_sealed
from phasewise.trainer.base.run_folder import COMPILED_NAME, RESULT_NAME, RunFolder
from phasewise.trainer.checkpoints.files import DIGESTS_NAME, UNCOMMITTED, committed_files, saved_steps
from phasewise.trainer.data.manifest import MANIFEST_NAME, SPLITS, read_manifest
from phasewise.trainer.process.compilation_cache import LIST_NAME
from phasewise.validations.evidence.leakage.index import TABLE_NAME

PREPARE = "delete its folder and prepare the data again"
AGAIN = "the next run makes it again"
RESTORE = "restore it from a copy, or the next run resumes from an earlier checkpoint"
EXPORT = "delete its folder and export again"

HARMLESS: Mapping[str, str] = {
    "digests.json": "a cache of digests: a changed one is not believed, and --full does not read it",
    "documents/*/*/quarantine.jsonl": "samples for people of what could not be read; the counts are in the manifest",
    "sources/*": "input: its content is its identity, and what was made of other content is made again",
    "runs/*/*/events.jsonl": "a log for people: nothing is decided by it",
    "runs/*/*/spent.jsonl": "a log of times, and no decision rests on it",
    "runs/*/*/life.json": "the times of a trainer that is at work",
    "runs/*/*/*.log": "a log for people",
    "runs/*/*/heartbeat": "the sign of life of a trainer that is at work",
    "runs/*/*/token.json": "numbers the trainers of a folder: the next one takes its own, and only the trainer at work compares it",
    "runs/*/*/tensorboard/*": "a copy of the metrics for people",
    "runs/*/*/wandb/*": "a copy of the metrics for people",
    "runs/*/*/roll-call/*": "the signs of life of hosts that are at work",
    "prefect/*": "Prefect's rows are a view: nothing here reads them as results",
    "lock": "a lock",
    "locks/*": "a lock",
    "*/lock": "a lock",
    "*.lock": "a lock",
    "*/lock.*": "a lock",
}
"""Pattern of paths in a home → why no check of a result reads such a file, or why a change does no harm."""


class ChangedFile(NamedTuple):
    """A file that is missing or is not as it was written.

    Attributes:
        path: in the home.
        remedy: what to do.
        phase: the phase whose run or verdict it belongs to; None is the recipe as a whole.
    """

    path: str
    remedy: str
    phase: str | None = None


def why_harmless(path: str) -> str | None:
    """Why a change of a file does no harm, by its path in the home; None if it is checked."""
    return next((why for pattern, why in HARMLESS.items() if fnmatch(path, pattern)), None)


def changed_files(home: Home, plan: DataPlan, run_name: str, digests: KnownDigests, evidence: Iterable[Path]) -> list[ChangedFile]:
    """Every file that a recipe's results rest on and that is not as it was written, in the order in which the files are made.

    Sealed files are read; of large files those that look changed, or all where `digests` reads all.

    Args:
        evidence: the sealed files of the evidence that the verdicts rest on, as far as they are kept.
    """
    inventory = _Inventory(home, digests)
    for component in plan.components.values():
        inventory.add_documents(component)
        for split in SPLITS:
            inventory.add_cache(component.cache(split).folder)
    inventory.add_tokenizer(plan.tokenizer)
    inventory.add_listed(plan.benchmarks, MANIFEST_NAME, _benchmark_files, PREPARE)
    for path in dict.fromkeys(evidence):
        if path.name == TABLE_NAME:
            inventory.add_listed(path.parent, TABLE_NAME, _listed("files"), "delete its folder: the next run makes it again")
        else:
            inventory.add_sealed(path, AGAIN, lambda fields, path=path: str(fields.get("key")).startswith(path.parent.name))
    for path in sorted((home.root / "preflight").glob("*.json")):
        inventory.add_sealed(path, AGAIN, lambda fields, path=path: str(fields.get("key", path.stem)).startswith(path.stem))
    for folder in sorted(path for path in (home.runs / run_name).glob("*") if path.is_dir() and path.name != COMPILED_NAME):
        inventory.add_run(folder)
    if (programs := home.runs / run_name / COMPILED_NAME / LIST_NAME).exists():
        inventory.add_listed(programs.parent, LIST_NAME, dict[str, str], AGAIN)
    for path in sorted((home.work / "verdicts" / run_name).glob("*/*.json")):
        inventory.add_verdict(path)
    for path in sorted((home.root / "exports" / run_name).glob("*")):
        inventory.add_listed(path, ORIGIN_NAME, _listed("files"), EXPORT, is_own=_names(path))
    return inventory.found


class _Inventory:
    """Collects changed files."""

    def __init__(self, home: Home, digests: KnownDigests) -> None:
        self.found: list[ChangedFile] = []
        self._home, self._digests = home, digests
        self._phase: str | None = None

    def add(self, path: Path, remedy: str) -> None:
        root = self._home.work if path.is_relative_to(self._home.work) else self._home.root
        self.found.append(ChangedFile(path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path), remedy, self._phase))

    def add_sealed(self, path: Path, remedy: str, is_own: Callable[[dict[str, Any]], bool] = lambda _fields: True) -> dict[str, Any] | None:
        """A sealed file, if it is there; its fields, if they are as they were written."""
        try:
            fields = read_sealed(path, may_lack_seal=True)
        except FileNotFoundError:
            return None
        except NotAsWritten:
            self.add(path, remedy)
            return None
        if not is_own(fields):
            self.add(path, remedy)
            return None
        return fields

    def add_listed(
        self,
        folder: Path,
        seal: str,
        files_of: Callable[[dict[str, Any]], Mapping[str, str]],
        remedy: str,
        *,
        is_own: Callable[[dict[str, Any]], bool] = lambda _fields: True,
    ) -> None:
        """A folder with a sealed list of its files. One without a list is not finished, unless it is not empty."""
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
        for name in self._digests.changed(folder, files, seal):
            self.add(folder / name, remedy)

    def add_documents(self, component: ComponentPlan) -> None:
        folder = component.documents.folder
        if not folder.exists():
            return
        try:
            manifest = read_documents_manifest(folder)
        except DataError:
            self.add(folder / MANIFEST_NAME, PREPARE)
            return
        if manifest.key != component.documents.key:
            self.add(folder / MANIFEST_NAME, PREPARE)
        self.add_changed(folder, manifest.files, folder / MANIFEST_NAME, PREPARE)
        self._add_records(folder, "bundle-*.json")

    def add_cache(self, folder: Path) -> None:
        if not folder.exists():
            return
        try:
            manifest = read_manifest(folder)
        except DataError:
            self.add(folder / MANIFEST_NAME, PREPARE)
            return
        if not folder.name.endswith(manifest.key[:16]) and folder.is_relative_to(self._home.root):
            self.add(folder / MANIFEST_NAME, PREPARE)
        for shard in manifest.shards:
            self.add_changed(folder, shard.files, folder / MANIFEST_NAME, PREPARE)
        self._add_records(folder, "shard-*.json")

    def _add_records(self, folder: Path, pattern: str) -> None:
        for path in sorted(folder.glob(pattern)):
            self.add_sealed(path, PREPARE)

    def add_tokenizer(self, path: Path) -> None:
        seal = path.with_name(DIGEST_NAME)
        if path.parent.exists() and not seal.exists():
            self.add(seal, PREPARE)
        elif path.parent.exists() and not (path.exists() and seal.read_bytes() == tokenizer_digest(path).encode()):
            self.add(path, PREPARE)
            self.add(seal, PREPARE)

    def add_run(self, folder: Path) -> None:
        """A run's sealed files, its checkpoints and its metrics."""
        self._phase = folder.name
        run = RunFolder(folder)
        result = self.add_sealed(run.result, AGAIN) or {}
        digest, weights = result.get("run_digest"), result.get("params_digest")
        written = read_run(folder)
        if result and (written is None or digest not in (written.digest, written.digest_with_places)):
            self.add(run.run_file, AGAIN)
            self.add(run.result, AGAIN)  # one of the two is of another run
        for path in (run.conditions, run.passed_over, run.question, run.question.with_suffix(".decision.json")):
            self.add_sealed(path, AGAIN)
        self.add_sealed(run.caches, AGAIN, lambda fields: digest in (None, fields.get("run_digest")))
        self.add_sealed(run.evaluation, AGAIN, lambda fields: weights in (None, fields.get("params_digest")))
        for path in sorted(folder.glob("evaluations/*/*.json")):
            self.add_sealed(path, AGAIN)
        for step in saved_steps(run.checkpoints):
            self._add_checkpoint(run.checkpoint(step))
        self._phase = None

    def _add_checkpoint(self, path: Path) -> None:
        files = committed_files(path)
        if isinstance(files, str):
            if files != UNCOMMITTED or any(path.iterdir()):
                self.add(path / DIGESTS_NAME, RESTORE)
            return
        cut = [name for name, (size, _) in files.items() if not (path / name).is_file() or (path / name).stat().st_size != size]
        for name in [*([DIGESTS_NAME] if any(not (path / name).exists() for name in cut) else ()), *cut]:
            self.add(path / name, RESTORE)
        rest = {name: digest for name, (_, digest) in files.items() if name not in cut}
        self.add_changed(path, rest, path / DIGESTS_NAME, RESTORE)

    def add_verdict(self, path: Path) -> None:
        """A verdict with its tables, or what people decided of one."""
        self._phase = path.parent.name
        what = f"/{path.parent.name} {({'health': 'training'}).get(path.stem, path.stem)}"
        fields = self.add_sealed(path, AGAIN, lambda fields: str(fields.get("subject", what)).endswith(what))
        if fields:
            tables: dict[str, str] = fields.get("tables", {})
            self.add_changed(path.with_suffix(""), {f"{name}.parquet": digest for name, digest in tables.items()}, path, AGAIN)
        metrics = RunFolder(self._home.run(path.parents[1].name, path.parent.name)).metrics
        if fields and path.stem == "health" and metrics.with_name(RESULT_NAME).exists():
            self.add_changed(metrics.parent, {metrics.name: next(iter(fields["judged"].values()))}, path, RESTORE)
        self._phase = None


def _names(folder: Path) -> Callable[[dict[str, Any]], bool]:
    """Whether the weights that an export names are those in its folder's name."""
    return lambda fields: "phase" not in fields or folder.name.startswith(export_name(fields["phase"], fields["weights"], fields["dtype"]))


def _listed(field: str) -> Callable[[dict[str, Any]], Mapping[str, str]]:
    return lambda fields: fields.get(field, {})


def _benchmark_files(fields: dict[str, Any]) -> Mapping[str, str]:
    return {name: digest for benchmark in BenchmarkManifest.model_validate(fields).benchmarks for name, digest in benchmark.files.items()}
