"""What is asked of an evaluation."""

from trainer.base.frozen import Frozen


class Measured(Frozen):
    """Benchmarks by name, and bits per byte on so many held-out tokens of each component; None is all there are."""

    benchmarks: tuple[str, ...]
    held_out_tokens: int | None
