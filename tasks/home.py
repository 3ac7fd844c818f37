"""Where everything lives: the layout under `PHASEWISE_HOME`, in one place."""

import fcntl
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trainer.errors import ConfigError

DEFAULT_HOME = "./.phasewise"


@dataclass(frozen=True)
class Home:
    """The folders under one root. `run_name` is recipe and scale: `marin-8b-proxy`."""

    root: Path

    @classmethod
    def open(cls, url: str | None) -> "Home":
        """The home at `url`, at `PHASEWISE_HOME`, or at `./.phasewise`, made if need be.

        Raises:
            ConfigError: it is not a local folder, or nothing can be written there.
        """
        text = url or os.environ.get("PHASEWISE_HOME") or DEFAULT_HOME
        if "://" in text and not text.startswith("file://"):
            raise ConfigError(f"the home must be a local folder, found {text}: object stores are not supported as a home yet.")
        root = Path(text.removeprefix("file://")).expanduser().resolve()
        probe = root / f".probe-{uuid.uuid4().hex}"
        try:
            root.mkdir(parents=True, exist_ok=True)
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise ConfigError(
                f"the home {root} cannot be written: {error.strerror}. Choose another with --home or PHASEWISE_HOME."
            ) from None
        return cls(root)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the home for one run. The lock goes with the process, however it ends.

        Raises:
            ConfigError: another process holds it.
        """
        with open(self.root / "lock", "a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(f"another run is at work in {self.root}: wait for it, or choose another home with --home.") from None
            yield

    @property
    def sources(self) -> Path:
        """Stand-in sources, a folder a component."""
        return self.root / "sources"

    @property
    def prefect(self) -> Path:
        """The database and settings of the embedded Prefect server."""
        return self.root / "prefect"

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

    def run(self, run_name: str, phase: str) -> Path:
        """A phase's run: metrics, checkpoints, result, evaluation."""
        return self.root / "runs" / run_name / phase

    def verdict(self, run_name: str, phase: str, gate: str) -> Path:
        """The verdict file of a phase's data or gate."""
        return self.root / "verdicts" / run_name / phase / f"{gate}.json"

    def report(self, run_name: str) -> Path:
        """The folder of a run's report and Data Docs."""
        return self.root / "reports" / run_name
