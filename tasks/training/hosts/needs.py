"""Brings to a host what its trainer needs of a phase's work: the run and its verdict, rows, and the newest checkpoint whole.

Of older checkpoints the lists of their files come alone: the trainer counts them when it decides which it keeps.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phasewise.tasks.home import Home
from phasewise.tasks.store.fetching import ARRIVING, bring_checkpoint, bring_here, content_of
from phasewise.tasks.store.head import Files, Head
from phasewise.tasks.store.publisher import Kept
from phasewise.tasks.store.snapshot import is_list_of_checkpoint
from phasewise.trainer.base.errors import ConfigError, StorageError
from phasewise.trainer.base.identity import read_sealed, write_sealed
from phasewise.trainer.base.run_folder import RunFolder
from phasewise.trainer.base.storage import file_system_of, write_atomically
from phasewise.trainer.checkpoints.files import DIGESTS_NAME, remove_checkpoint
from phasewise.trainer.config import RunConfig

LOG = ".log"


@dataclass(frozen=True)
class Work:
    """A phase's work on this host.

    Attributes:
        kept: where it is here, and on the store.
        launchers_root: root of the working folder on the launcher's machine, which the places in `run.json` are below.
    """

    kept: Kept
    phase: str
    launchers_root: str

    @classmethod
    def of(cls, home: str, run_name: str, phase: str, launchers_root: str) -> "Work":
        """In the folder that hosts have for this home."""
        found = Home.at(home)
        return cls(Kept(found.on_host, found.root, run_name), phase, launchers_root)

    @property
    def folder(self) -> str:
        """The run's, below the home."""
        return f"runs/{self.kept.run_name}/{self.phase}"

    @property
    def run(self) -> RunFolder:
        """The run's, on this host."""
        return RunFolder(self.kept.work / self.folder)

    def bring(self, head: Head) -> RunConfig:
        """Have it here as the head says it is, without what hosts said, and give the run with the places that it has here.

        Raises:
            StorageError: something that is committed is missing or damaged.
            ConfigError: the run needs a folder that this host does not see.
        """
        folders = (self.folder, f"verdicts/{self.kept.run_name}/{self.phase}")
        below = tuple(f"{one}/" for one in folders)
        files = {name: pieces for name, pieces in head.files.items() if name.startswith(below) and not name.endswith(LOG)}
        bring_here(self.kept.work, folders, files, self.kept.objects, weights_below=None)
        run = self._with_places_of_here()
        if not self._bring_own_checkpoint(files):
            self._bring_parents(run, head.files)
        write_sealed(self.run.run_file, run.model_dump(mode="json"))
        return run

    def _bring_own_checkpoint(self, files: Files) -> bool:
        """The newest that is whole on the store, and the lists of those before it; whether there is one."""
        named = sorted((name for name in files if is_list_of_checkpoint(name)), key=lambda name: -int(name.split("/")[-2]))
        is_here = False
        for name in named:
            listed = self.kept.work / name
            if is_here:
                write_atomically(listed, content_of(self.kept.work / ARRIVING, files[name], self.kept.objects))
                continue
            try:
                bring_checkpoint(listed, tuple(files[name]), self.kept.objects)
                is_here = True
            except StorageError as damage:
                remove_checkpoint(listed.parent)
                print(f"checkpoint {listed.parent} is left out: {damage}", flush=True)
        return is_here

    def _bring_parents(self, run: RunConfig, files: Files) -> None:
        """The checkpoints that the phase starts from."""
        places = [] if run.start is None else [run.start.checkpoint, *(graft.checkpoint for graft in run.start.graft)]
        for place in dict.fromkeys(places):
            listed = Path(place) / DIGESTS_NAME
            name = os.path.relpath(listed, self.kept.work)
            if name not in files:
                raise StorageError(f"{run.phase} starts from {name}, and the head of {self.kept.store} does not name it. Start it again.")
            bring_checkpoint(listed, tuple(files[name]), self.kept.objects)

    def _with_places_of_here(self) -> RunConfig:
        said = read_sealed(self.run.run_file)
        run = RunConfig.model_validate(_moved(said, self.launchers_root, str(self.kept.work)))
        if run.digest != RunConfig.model_validate(said).digest:
            raise ConfigError(f"{self.run.run_file} is another run where its places are others: name its caches by their digests.")
        unseen = [place for place in _caches_of(run) if file_system_of(place) is None and not Path(place).exists()]
        if unseen:
            raise ConfigError(f"{run.phase} reads {unseen[0]}, which this host does not see: keep the caches in the home on the store.")
        return run


def _caches_of(run: RunConfig) -> list[str]:
    held_out = run.evaluation.caches if run.evaluation else {}
    return [*run.caches.values(), *held_out.values()]


def _moved(said: Any, before: str, now: str) -> Any:
    """The same with another root in each place that is below `before`."""
    if isinstance(said, Mapping):
        return {name: _moved(one, before, now) for name, one in said.items()}
    if isinstance(said, list):
        return [_moved(one, before, now) for one in said]
    if isinstance(said, str) and (said == before or said.startswith(f"{before}/")):
        return now + said.removeprefix(before)
    return said
