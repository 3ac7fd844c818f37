"""What the trainers compile here runs for milliseconds: it need not be optimised."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def quick_compilation() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        yield
