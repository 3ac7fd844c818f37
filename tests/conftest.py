"""Fixtures for all tests: the stores."""

pytest_plugins = ["tests.stores.fixtures"]
