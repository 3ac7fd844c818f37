"""Which benchmarks ask for needles. Importing this is cheap."""

NEEDLE_BENCHMARKS = ("niah", "niah_written")
"""A choice among the values of all keys, and the value as the model writes it."""


def is_needle(benchmark: str) -> bool:
    """Whether a benchmark asks for needles: `niah:4096`, `niah_written:4096`."""
    return benchmark.partition(":")[0] in NEEDLE_BENCHMARKS
