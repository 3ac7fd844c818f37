"""Whether XLA optimises what a file of tests compiles: a plugin of pytest.

A program of tests runs for milliseconds and takes seconds to compile. Files that train leave XLA's optimisations out: they have a fixture
`quick_compilation` of their own. Bits differ between the two ways, also those of freshly drawn weights. So what is compiled one way is
thrown away before a file that wants the other.
"""

import sys

import pytest

OPTION = "jax_disable_most_optimizations"


def compile_from_now_on(*, quickly: bool) -> None:
    """Everything that this process computes is compiled in this way."""
    import jax

    if jax.config.values[OPTION] != quickly:
        jax.config.update(OPTION, quickly)
        jax.clear_caches()


@pytest.fixture(scope="module", autouse=True)
def quick_compilation() -> None:
    """With all optimisations, where a file of tests, or its folder, says nothing else."""
    if "jax" in sys.modules:
        compile_from_now_on(quickly=False)
