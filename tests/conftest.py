"""Fixtures for all tests: the stores."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before anything imports jax: with libtpu installed it would look for a TPU

pytest_plugins = ["tests.stores.fixtures"]
