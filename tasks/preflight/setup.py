"""One slice with one batch, and the steps of a phase that use them: what has one compiled step."""

from trainer.base.frozen import Frozen
from trainer.preflight.spec import StepShape


class Setup(Frozen):
    """Attributes:
    stretches: start and stop step of each, where the phase comes back to the same slice and batch.
    """

    phase: str
    slice: str
    stretches: tuple[tuple[int, int], ...]
    step: StepShape

    @property
    def steps(self) -> int:
        """Updates of all stretches."""
        return sum(stop - start for start, stop in self.stretches)

    @property
    def words(self) -> str:
        """For people."""
        return f"{self.phase}, {self.step.batch_sequences:,} sequences on {self.slice}"
