"""A phase whose slice changes on the way: it is trained leg by leg, each on its slice by its own plan, all on the same batches."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from phasewise.tasks.training.local import LocalLauncher
from phasewise.tasks.training.machine import mesh_words
from phasewise.tasks.training.protocol import Launcher
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.config import RunConfig


class Planned(Frozen):
    """Which run goes on on which slice.

    Attributes:
        run: with the execution that was planned for the slice. All legs but the last have an `until_step`.
    """

    run: RunConfig
    slice_name: str


@dataclass(frozen=True)
class Leg:
    """The updates of a phase that are made on one slice.

    Attributes:
        run: as in `Planned`.
        slice_name: empty where nobody said.
    """

    run: RunConfig
    launcher: Launcher = field(default_factory=LocalLauncher)
    slice_name: str = ""

    @property
    def words(self) -> str:
        """For people: `cpu-2: 2 devices (fsdp 2)`."""
        return f"{self.slice_name or self.launcher.kind}: {mesh_words(self.run.execution)}"


def leg_at(legs: Sequence[Leg], step: int) -> Leg:
    """The leg that makes the update after `step` of them."""
    return next((leg for leg in legs if step < leg.run.last_step), legs[-1])
