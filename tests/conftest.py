"""What all tests share: the stores, and which of them may run two at a time."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before anything imports jax: with libtpu installed it would look for a TPU

pytest_plugins = ["tests.stores.fixtures"]
TESTS = Path(__file__).parent
TWO_AT_ONCE = ("architecture", "flows", "leakage_recall", "tasks", "trainer", "validations")
"""Folders whose tests keep one core busy. Those that start processes of their own say `alone` in their file; other folders are alone."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as `alone` whatever needs both cores, or a port, or a quiet machine."""
    for item in items:
        if item.path.relative_to(TESTS).parts[0] not in TWO_AT_ONCE:
            item.add_marker(pytest.mark.alone)
