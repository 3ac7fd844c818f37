"""The layout of the folders under `PHASEWISE_HOME`."""

import os
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from fsspec.exceptions import FSTimeoutError

from phasewise.tasks.locks import Holder, holding
from phasewise.tasks.store.publisher import WORKED_ON, Kept, keeping
from phasewise.trainer.base.errors import ConfigError, StorageError
from phasewise.trainer.base.identity import digest_of_bytes, digest_of_json
from phasewise.trainer.base.storage import as_path, file_system_of, warn_undeleted

DEFAULT_HOME = "./.phasewise"
TRIAL = "-trial-"  # between the name of a phase and the digest of its settings, in the folder names of a trial
SCRATCH_VARIABLE = "PHASEWISE_SCRATCH"
"""The folder on this machine for the working folders of homes on stores; by default the user's cache folder."""
PROBE = f".probe-{uuid.uuid4().hex}"  # one name per process: if the store forbids deletion, at most one probe per process remains
PROBE_SECONDS = 30.0


@dataclass(frozen=True)
class Home:
    """The folders under one root, on this machine or on Google Cloud Storage. `run_name` is recipe and scale: `marin-8b-proxy`.

    `trials`: phases that `--set` changes → their folder names. Other phases have folders with the phase's name.
    """

    root: Path
    reads_only: bool = field(default=False, compare=False)  # the home was opened for reading, and no folder is created
    trials: tuple[tuple[str, str], ...] = ()

    @classmethod
    def at(cls, url: str | None, *, reads_only: bool = False) -> "Home":
        """Return the home at `url`, at `PHASEWISE_HOME`, or at `./.phasewise`. A missing home is valid, an unreadable one is not."""
        text = os.environ.get("PHASEWISE_HOME", DEFAULT_HOME) if url is None else url
        if not text.strip() or "\0" in text:
            named = "PHASEWISE_HOME" if url is None else "--home"
            raise ConfigError(f"{named}: expected a folder or a gs:// URL, found {text!r}. Name one, or leave it unset.")
        if "://" in text and not text.startswith(("file://", "gs://", "gcs://")):
            raise ConfigError(f"the home must be a local folder or a gs:// URL, found {text}.")
        root = as_path(text)
        store = file_system_of(root)
        if store is None:
            root = root.expanduser().resolve()
        if reads_only:
            try:
                if store is None:
                    os.listdir(root)
                else:
                    cast(Any, store[0]).ls(store[1], timeout=PROBE_SECONDS)
            except FileNotFoundError:
                pass
            except Exception as error:  # stores and credentials have different error types
                raise _refusal(root, "read", error) from None
        return cls(root, reads_only)

    @classmethod
    def open(cls, url: str | None) -> "Home":
        """Return the home of `at`, made ready for writing."""
        home = cls.at(url)
        home.make_ready()
        return home

    def make_ready(self) -> None:
        """Create the home if it is missing, and write a probe, or raise `ConfigError`."""
        store = file_system_of(self.root)
        try:
            if store is None:
                probe = self.root / f".probe-{uuid.uuid4().hex}"
                self.root.mkdir(parents=True, exist_ok=True)
                probe.touch()
                probe.unlink()
                return
            file_system, name = cast("tuple[Any, str]", store)
            file_system.pipe_file(f"{name}/{PROBE}", b"", timeout=PROBE_SECONDS)
            try:
                file_system.rm_file(f"{name}/{PROBE}", timeout=PROBE_SECONDS)
            except FSTimeoutError:
                raise
            except Exception as error:  # deletion may be forbidden, replacement must be allowed
                file_system.pipe_file(f"{name}/{PROBE}", b"replaced", timeout=PROBE_SECONDS)
                warn_undeleted(self.root, error)
        except Exception as error:  # stores and credentials have different error types
            raise _refusal(self.root, "written", error) from None

    def held(
        self, what: str, *, queues: tuple[str, ...] = (), on_wait: Callable[[Holder], None] | None = None
    ) -> AbstractContextManager[None]:
        """Hold the home for one run, with the arguments of `tasks.locks.holding`. On a store the call does not wait (`tasks.locks`)."""
        return holding(self.run_lock, what, queues=queues, on_wait=on_wait)

    def kept(self, run_name: str) -> AbstractContextManager[None]:
        """Commit the work on a recipe to the store within the context (`tasks.store.publisher.keeping`). A local home needs no commits."""
        return nullcontext() if self.is_local else keeping(Kept(self.work, self.root, run_name))

    def look(self, run_name: str, *, weights_of: str | None = None) -> None:
        """Download the committed files of a recipe, and the checkpoints of one phase. A local home needs no download."""
        if not self.is_local:
            below = f"runs/{run_name}/{weights_of}/" if weights_of else None
            Kept(self.work, self.root, run_name).look(weights_below=below)

    def look_at_all(self) -> None:
        """Download the committed files of every recipe, or raise `StorageError`."""
        store = file_system_of(self.root)
        if store is None:
            return
        file_system, name = store
        run_names: set[str] = set()
        try:
            for kind in WORKED_ON:
                with suppress(FileNotFoundError):
                    run_names |= {str(one).rstrip("/").rpartition("/")[2] for one in file_system.ls(f"{name}/{kind}", detail=False)}
        except Exception as error:  # stores and credentials have different error types
            raise StorageError(f"the home {self.root} cannot be read: {error}") from error
        for run_name in sorted(run_names):
            self.look(run_name)

    def add(self, run_name: str, write: Callable[[], Path]) -> Path:
        """Commit the file that `write` writes below `work` and returns. A store is held for it, and no weights are downloaded."""
        if self.is_local:
            return write()
        with self.held("a decision"):
            return Kept(self.work, self.root, run_name).add(write)

    def lock(self, name: str) -> Path:
        """Return a lock for `tasks.locks`."""
        return self.root / "locks" / name

    @property
    def is_local(self) -> bool:
        """Whether the home is a folder on this machine."""
        return file_system_of(self.root) is None

    @property
    def work(self) -> Path:
        """The folder of mutable files (runs, verdicts, reports): always on this machine (`tasks.store`)."""
        if self.is_local:
            return self.root
        return self._on_this_machine / ("looked-at" if self.reads_only else "work")

    @property
    def on_host(self) -> Path:
        """The working folder of a training host. It differs from `work`, as the launcher may use the same machine."""
        return self._on_this_machine / "host"

    @property
    def _on_this_machine(self) -> Path:
        caches = Path(os.environ.get(SCRATCH_VARIABLE) or os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
        return caches / "phasewise" / digest_of_bytes(str(self.root).encode())[:16]

    @property
    def run_lock(self) -> Path:
        """The lock of `held`."""
        return self.root / "lock"

    @property
    def digests(self) -> Path:
        """The known digests of files, for `tasks.data.digests`."""
        return self.root / "digests.json"

    @property
    def sources(self) -> Path:
        """Proxy data sets, one folder per component."""
        return self.root / "sources"

    @property
    def prefect(self) -> Path:
        """The database and settings of the embedded Prefect server, always on this machine."""
        return (self.root if self.is_local else self._on_this_machine) / "prefect"

    @property
    def server_lock(self) -> Path:
        """The lock of the embedded Prefect server, for `tasks.locks`."""
        return self.prefect / "server.lock"

    def presence(self, flow_run_id: str) -> Path:
        """Return the lock of the process that executes a flow run, for `tasks.locks`."""
        return self.prefect / "running" / f"{flow_run_id}.lock"

    def keyed(self, kind: str, key: str, *names: str) -> Path:
        """Return the folder of content with this key: `documents` of a component, `tokenizers`, `benchmarks`, reusable `evidence`."""
        return self.root.joinpath(kind, *names, key[:16])

    def tokens(self, component: str, split: str, key: str) -> Path:
        """Return the folder of a token cache."""
        return self.root / "tokens" / component / f"{split}-{key[:16]}"

    @property
    def runs(self) -> Path:
        """The runs, one folder per recipe and phase."""
        return self.work / "runs"

    def run(self, run_name: str, phase: str) -> Path:
        """Return the folder of a phase's run, or of its trial: metrics, checkpoints, result, evaluation."""
        return self.runs / run_name / dict(self.trials).get(phase, phase)

    @property
    def exporting(self) -> Path:
        """The folder of unfinished exports, on this machine."""
        return (self.root if self.is_local else self._on_this_machine) / "exports" / ".making"

    def stage(self, run_name: str, phase: str) -> Path:
        """Return the stage of a phase's process, for `tasks.phase_state`. It is never uploaded with results."""
        return self.root / "stages" / run_name / f"{self.run(run_name, phase).name}.json"

    def stage_log(self, run_name: str, phase: str) -> Path:
        """Return the log of all stages of a phase, which is uploaded with results."""
        return self.work / "stages" / run_name / f"{self.run(run_name, phase).name}.jsonl"

    def verdict(self, run_name: str, phase: str, gate: str) -> Path:
        """Return the verdict file of a gate."""
        return self.work / "verdicts" / run_name / self.run(run_name, phase).name / f"{gate}.json"

    def experiment(self, run_name: str, name: str) -> Path:
        """Return the folder of an experiment's result and page."""
        return self.work / "experiments" / run_name / name

    def report(self, run_name: str) -> Path:
        """Return the folder of a run's report and Data Docs. A trial has a folder below it."""
        folder = self.work / "reports" / run_name
        return folder / f"trial-{digest_of_json(self.trials)[:8]}" if self.trials else folder


def _refusal(root: Path, action: str, error: Exception) -> ConfigError:
    if isinstance(error, FSTimeoutError):
        reason = f"the store did not answer within {PROBE_SECONDS:g} seconds"
    elif file_system_of(root) is None:
        reason = error.strerror if isinstance(error, OSError) else str(error)
    else:
        reason = "there is no such bucket" if isinstance(error, FileNotFoundError) else str(error)
    return ConfigError(f"the home {root} cannot be {action}: {reason}. Choose another with --home or PHASEWISE_HOME.")
