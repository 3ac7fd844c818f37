"""Benchmark items, read from rows of any shape."""
