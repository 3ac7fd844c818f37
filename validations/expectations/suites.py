"""The suites by name: which tables each one reads, and which limits it measures against."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from phasewise.trainer.base.identity import code_digest
from phasewise.validations.expectations.check import Check
from phasewise.validations.expectations.data_suite import DATA_SUITE, data_checks
from phasewise.validations.expectations.gate_suite import GATE_SUITE, gate_checks
from phasewise.validations.expectations.health_suite import HEALTH_SUITE, health_checks
from phasewise.validations.limits import DataLimits, GateLimits, HealthLimits


@dataclass(frozen=True)
class Suite:
    """One judgement's expectations.

    Attributes:
        number: raised where the suite asks for something else than before; for people, see `version_of`.
        tables: what a verdict's folder holds.
        checks: makes the checks from thresholds and tables.
        evidence: globs of the files of `validations/evidence` that make the tables.
    """

    name: str
    number: int
    tables: tuple[str, ...]
    checks: Callable[[Mapping[str, Any], Mapping[str, pd.DataFrame]], tuple[Check, ...]]
    evidence: tuple[str, ...] = ()


COMPARED_BY = ("gate.py", "against_parent.py", "comparable.py", "paired.py", "proportions.py", "detectable.py")
"""What compares a checkpoint with its parent."""
SUITES = {
    DATA_SUITE: Suite(
        DATA_SUITE,
        4,
        ("caches", "differences", "mixture", "leakage", "leaked_items", "order", "shifts", "packing", "hand_off"),
        lambda thresholds, tables: data_checks(DataLimits.model_validate(thresholds), tables),
        ("caches.py", "differences.py", "mixture.py", "hand_off.py", "packing.py", "leakage/**/*.py", "order/**/*.py"),
    ),
    HEALTH_SUITE: Suite(
        HEALTH_SUITE,
        1,
        ("health",),
        lambda thresholds, tables: health_checks(HealthLimits.model_validate(thresholds), tables),
        ("health/**/*.py",),
    ),
    GATE_SUITE: Suite(
        GATE_SUITE,
        7,
        ("asked", "benchmarks", "bits_per_byte", "comparable", "falls", "rises", "likelihoods", "needles", "exposure", "answers"),
        lambda thresholds, tables: gate_checks(GateLimits.model_validate(thresholds), tables),
        ("evaluation.py", "floor.py", "exposure.py", "fragility.py", "answers.py", "needles.py", "needle_names.py", *COMPARED_BY),
    ),
}


def checks_of(name: str, thresholds: Mapping[str, Any]) -> tuple[Check, ...]:
    """Every check that a suite can make within these thresholds, whatever the tables will hold."""
    suite = SUITES[name]
    return suite.checks(thresholds, {table: pd.DataFrame() for table in suite.tables})


def version_of(suite: Suite) -> str:
    """The suite's number, and what the code of its checks and of its evidence was: nobody can weaken one and leave the version as it is."""
    code = code_digest("validations/expectations/*.py", *(f"validations/evidence/{name}" for name in suite.evidence))
    return f"{suite.number}-{code}"
