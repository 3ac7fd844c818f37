"""Shared by all benchmarks: a row of the table, alternating sides, and a fixed number of cores."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Options:
    megabytes: int = 50
    gigabytes: float = 0.4
    repeats: int = 3
    home: Path | None = None


@dataclass(frozen=True)
class Row:
    name: str
    value: float | None
    at_least: float | None = None
    at_most: float | None = None
    note: str = ""

    @property
    def demand(self) -> str:
        limits = [f"≥ {self.at_least:g}" if self.at_least is not None else "", f"≤ {self.at_most:g}" if self.at_most is not None else ""]
        return ", ".join(filter(None, limits))

    @property
    def met(self) -> str:
        """Whether the demand is met."""
        if self.value is None:
            return "not run"
        if not self.demand:
            return ""
        above = self.at_least is None or self.value >= self.at_least
        return "met" if above and (self.at_most is None or self.value <= self.at_most) else "NOT MET"

    def __str__(self) -> str:
        value = "–" if self.value is None else f"{self.value:.2f}"
        return f"{self.name:76s} {value:>8s}  {self.demand:14s} {self.met:8s} {self.note}".rstrip()


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def in_turns(sides: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, side in sides.items():
            found[name].append(side())
            print(f"  {name}: {found[name][-1]:.4g}", file=sys.stderr, flush=True)
    return {name: float(np.median(measured)) for name, measured in found.items()}


@contextmanager
def on_cores(number: int) -> Iterator[None]:
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:number])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
