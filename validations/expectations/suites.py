"""The suites by name: which tables each one reads, and which limits it measures against."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from validations.expectations.check import Check
from validations.expectations.data_suite import DATA_SUITE, data_checks
from validations.expectations.gate_suite import GATE_SUITE, gate_checks
from validations.limits import DataLimits, GateLimits

SUITE_VERSION = 1


@dataclass(frozen=True)
class Suite:
    """`tables` are what a verdict's folder holds; `checks` makes the checks from thresholds and tables."""

    name: str
    tables: tuple[str, ...]
    checks: Callable[[Mapping[str, Any], Mapping[str, pd.DataFrame]], tuple[Check, ...]]


SUITES = {
    DATA_SUITE: Suite(
        DATA_SUITE,
        ("caches", "mixture", "leakage", "leaked_items"),
        lambda thresholds, tables: data_checks(DataLimits.model_validate(thresholds), tables),
    ),
    GATE_SUITE: Suite(
        GATE_SUITE,
        ("benchmarks", "bits_per_byte"),
        lambda thresholds, tables: gate_checks(GateLimits.model_validate(thresholds), tables),
    ),
}
