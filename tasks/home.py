"""Where everything lives: the layout under `PHASEWISE_HOME`, in one place."""

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fsspec.exceptions import FSTimeoutError

from phasewise.tasks.holder import Holder, holding
from phasewise.tasks.locks import held_once
from phasewise.tasks.store.publisher import WORKED_ON, Kept, keeping
from phasewise.trainer.base.errors import ConfigError, StorageError
from phasewise.trainer.base.identity import digest_of_bytes, digest_of_json
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.storage import as_path, file_system_of, warn_undeleted

DEFAULT_HOME = "./.phasewise"
SCRATCH_VARIABLE = "PHASEWISE_SCRATCH"
"""Where the working folders of homes on stores are on this machine; the user's cache folder if it is not set."""
PROBE = f".probe-{uuid.uuid4().hex}"
"""Of this process: where the store forbids deletion, one of them stays, however often the home is made ready."""
PROBE_SECONDS = 30.0
"""How long a store may take to answer the question whether it can be written."""


@dataclass(frozen=True)
class Home:
    """The folders under one root, on this machine or on Google Cloud Storage. `run_name` is recipe and scale: `marin-8b-proxy`.

    Attributes:
        reads_only: it was opened to look; nothing is made in it.
        trials: phases that `--set` changes, each with the name of its folder; the others have folders of their own name.
    """

    root: Path
    reads_only: bool = field(default=False, compare=False)
    trials: tuple[tuple[str, str], ...] = ()

    @classmethod
    def at(cls, url: str | None, *, reads_only: bool = False) -> "Home":
        """The home at `url`, at `PHASEWISE_HOME`, or at `./.phasewise`. Nothing is made, and it need not be there.

        Raises:
            ConfigError: it is neither a local folder nor a gs:// URL, or it is only read and cannot be.
        """
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
                _look_at_folder(root)
            return cls(root, reads_only)
        if reads_only:
            _look_at_store(root, *store)
        return cls(root, reads_only)

    @classmethod
    def open(cls, url: str | None, *, reads_only: bool = False) -> "Home":
        """The home as `at` gives it, made ready unless it is only read.

        Raises:
            ConfigError: as `at` and `make_ready`.
        """
        home = cls.at(url, reads_only=reads_only)
        if not reads_only:
            home.make_ready()
        return home

    def make_ready(self) -> None:
        """Make the home if it is not there, and write to it once.

        Raises:
            ConfigError: nothing can be written there.
        """
        store = file_system_of(self.root)
        if store is None:
            probe = self.root / f".probe-{uuid.uuid4().hex}"
            try:
                self.root.mkdir(parents=True, exist_ok=True)
                probe.touch()
                probe.unlink()
            except OSError as error:
                raise _unwritable(self.root, error.strerror) from None
        else:
            _probe_store(self.root, *store)

    @contextmanager
    def held(self, what: str, *, on_wait: Callable[[Holder], None] | None = None) -> Iterator[None]:
        """Hold the home for one run. The lock goes with the process, however it ends; see `tasks.holder`, and `tasks.locks` for stores.

        Args:
            what: what this process does, for those who find the home held.
            on_wait: called once for each holder that is waited for; None does not wait. On a store nobody is waited for.

        Raises:
            ConfigError: another process holds it.
        """
        place = self.root / "lock"
        with holding(place, what, on_wait=on_wait) if self.is_local else held_once(place):
            yield

    @contextmanager
    def kept(self, run_name: str) -> Iterator[None]:
        """Keep the work on a recipe on the store while it goes on here: nothing to do for a home on this machine.

        Raises:
            TakenOver, StorageError: as `tasks.store.keeping.keeping`.
        """
        if self.is_local:
            yield
            return
        with keeping(Kept(self.work, self.root, run_name)):
            yield

    def look(self, run_name: str, *, weights_of: str | None = None) -> None:
        """Have what is committed of a recipe's work here, to look at it. Nothing to do for a home on this machine.

        Args:
            weights_of: the phase whose checkpoints are brought, too; None is no phase.

        Raises:
            StorageError: something that is committed is missing.
        """
        if not self.is_local:
            Kept(self.work, self.root, run_name).look(weights_of=weights_of)

    def look_at_all(self) -> None:
        """The same of every recipe that has anything here.

        Raises:
            StorageError: the store does not answer, or something that is committed is missing.
        """
        if not self.is_local:
            for name in self._run_names():
                self.look(name)

    def add(self, run_name: str, write: Callable[[], Path]) -> Path:
        """Write one file of a recipe's work: on a store it is committed at once, beside what is there, and no weights are brought.

        Args:
            write: writes it where this home says, and gives the place.

        Raises:
            ConfigError: another process works in the home on a store.
            TakenOver, StorageError: as `tasks.store.publisher.Kept.add`.
        """
        if self.is_local:
            return write()
        with self.held("a decision"):
            return Kept(self.work, self.root, run_name).add(write)

    def _run_names(self) -> list[str]:
        store = file_system_of(self.root)
        assert store is not None
        file_system, name = store
        found: set[str] = set()
        try:
            for kind in WORKED_ON:
                with suppress(FileNotFoundError):
                    found |= {str(one).rstrip("/").rpartition("/")[2] for one in file_system.ls(f"{name}/{kind}", detail=False)}
        except Exception as error:  # stores and credentials have error types of their own
            raise StorageError(f"the home {self.root} cannot be read: {error}") from error
        return sorted(found)

    def lock(self, name: str) -> Path:
        """The place of a lock, for `tasks.locks`."""
        return self.root / "locks" / name

    @property
    def is_local(self) -> bool:
        """Whether the home is a folder of this machine."""
        return file_system_of(self.root) is None

    @property
    def work(self) -> Path:
        """Where files that change are: on this machine, wherever the home is. Runs, verdicts and reports are here; see `tasks.store`."""
        if self.is_local:
            return self.root
        return self._on_this_machine / ("looked-at" if self.reads_only else "work")

    @property
    def on_host(self) -> Path:
        """Where a host that trains for a home on a store has its part of the work. The launcher may work on the same machine."""
        return self._on_this_machine / "host"

    @property
    def _on_this_machine(self) -> Path:
        caches = Path(os.environ.get(SCRATCH_VARIABLE) or os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
        return caches / "phasewise" / digest_of_bytes(str(self.root).encode())[:16]

    @property
    def digests(self) -> Path:
        """What commands know of the content of files, for `tasks.data.digests`."""
        return self.root / "digests.json"

    @property
    def sources(self) -> Path:
        """Stand-in sources, a folder a component."""
        return self.root / "sources"

    @property
    def prefect(self) -> Path:
        """The database and settings of the embedded Prefect server: on this machine, wherever the home is."""
        return (self.root if self.is_local else self._on_this_machine) / "prefect"

    @property
    def server_lock(self) -> Path:
        """Who has the embedded Prefect server of this home, for `tasks.holder`."""
        return self.prefect / "server.lock"

    def presence(self, flow_run_id: str) -> Path:
        """A file that the process holds which runs a flow run, for `tasks.holder`."""
        return self.prefect / "running" / f"{flow_run_id}.lock"

    def documents(self, component: str, key: str) -> Path:
        """A component's documents, as Parquet."""
        return self.root / "documents" / component / key[:16]

    def tokenizer(self, key: str) -> Path:
        """A trained tokenizer's folder."""
        return self.root / "tokenizers" / key[:16]

    def tokens(self, component: str, split: str, key: str) -> Path:
        """A token cache's folder."""
        return self.root / "tokens" / component / f"{split}-{key[:16]}"

    def benchmarks(self, key: str) -> Path:
        """The benchmarks made from held-out documents."""
        return self.root / "benchmarks" / key[:16]

    def evidence(self, kind: str, key: str) -> Path:
        """Evidence that is worth keeping, by what it was measured on."""
        return self.root / "evidence" / kind / key[:16]

    def preflight(self, key: str) -> Path:
        """The result of compiling a step for a slice."""
        return self.root / "preflight" / f"{key[:16]}.json"

    @property
    def runs(self) -> Path:
        """The runs of all recipes, a folder each, with a folder a phase."""
        return self.work / "runs"

    def run(self, run_name: str, phase: str) -> Path:
        """A phase's run: metrics, checkpoints, result, evaluation."""
        return self.runs / run_name / self.folder_of(phase)

    def folder_of(self, phase: str) -> str:
        """The name of the folder of a phase: its own, or that of the trial."""
        return dict(self.trials).get(phase, phase)

    def question(self, run_name: str, phase: str) -> Path:
        """What a phase's training asks a person, where its recovery is `ask`; in the form of a verdict."""
        return RunFolder(self.run(run_name, phase)).question

    def exported(self, run_name: str, name: str) -> Path:
        """A folder of weights that a flow wrote: in the home, also where that is on a store."""
        return self.root / "exports" / run_name / name

    @property
    def exporting(self) -> Path:
        """Where such a folder is made, on this machine."""
        return (self.root if self.is_local else self._on_this_machine) / "exports" / ".making"

    def verdict(self, run_name: str, phase: str, gate: str) -> Path:
        """The verdict file of a phase's data or gate."""
        return self.work / "verdicts" / run_name / self.folder_of(phase) / f"{gate}.json"

    def report(self, run_name: str) -> Path:
        """The folder of a run's report and Data Docs; of a trial it is below that."""
        folder = self.work / "reports" / run_name
        return folder / f"trial-{digest_of_json(self.trials)[:8]}" if self.trials else folder


def _probe_store(root: Path, file_system: Any, name: str) -> None:
    probe = f"{name}/{PROBE}"
    try:
        file_system.pipe_file(probe, b"", timeout=PROBE_SECONDS)
        try:
            file_system.rm_file(probe, timeout=PROBE_SECONDS)
        except FSTimeoutError:
            raise
        except Exception as error:  # as below
            file_system.pipe_file(probe, b"replaced", timeout=PROBE_SECONDS)  # this it must allow
            warn_undeleted(root, error)
    except FileNotFoundError:
        raise _unwritable(root, "there is no such bucket") from None
    except FSTimeoutError:
        raise _unwritable(root, f"the store did not answer within {PROBE_SECONDS:g} seconds") from None
    except Exception as error:  # stores and credentials have error types of their own
        raise _unwritable(root, str(error)) from None


def _look_at_folder(root: Path) -> None:
    try:
        os.listdir(root)
    except FileNotFoundError:
        return  # nothing is there
    except OSError as error:
        raise _unreadable(root, error.strerror) from None


def _look_at_store(root: Path, file_system: Any, name: str) -> None:
    try:
        file_system.ls(name, timeout=PROBE_SECONDS)
    except FileNotFoundError:
        return  # nothing is there
    except FSTimeoutError:
        raise _unreadable(root, f"the store did not answer within {PROBE_SECONDS:g} seconds") from None
    except Exception as error:  # stores and credentials have error types of their own
        raise _unreadable(root, str(error)) from None


def _unwritable(root: Path, reason: str | None) -> ConfigError:
    return ConfigError(f"the home {root} cannot be written: {reason}. Choose another with --home or PHASEWISE_HOME.")


def _unreadable(root: Path, reason: str | None) -> ConfigError:
    return ConfigError(f"the home {root} cannot be read: {reason}. Choose another with --home or PHASEWISE_HOME.")
