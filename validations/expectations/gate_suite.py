"""What is expected of a phase's last checkpoint before the next phase starts: tables `benchmarks` and `bits_per_byte`."""

from collections.abc import Mapping

import pandas as pd

from validations.expectations.check import Check, expect_rows
from validations.limits import GateLimits

GATE_SUITE = "gate"


def gate_checks(limits: GateLimits, tables: Mapping[str, pd.DataFrame]) -> tuple[Check, ...]:
    """The whole suite. The parent is compared with where there is one."""
    checks = [
        expect_rows("benchmarks", "Evaluate the checkpoint on at least one benchmark."),
        expect_rows("bits_per_byte", "Evaluate the checkpoint on the held-out splits."),
        _expect_finite("benchmarks"),
        _expect_finite("bits_per_byte"),
    ]
    if limits.must_beat_baseline:
        checks.append(_beats_baseline())
    if tables["bits_per_byte"].get("has_parent", pd.Series([True])).any():
        checks.append(_keeps_to_parent(limits))
    return tuple(checks)


def _expect_finite(table: str) -> Check:
    return Check(
        table=table,
        expectation="ExpectColumnValuesToBeInSet",
        arguments={"column": "finite", "value_set": [True]},
        severity="critical",
        asks="Every response of the model was a finite number.",
        what="{name} rests on responses of the model that are not finite numbers",
        found="{value}",
        limit="finite numbers only",
        where="{name}",
        what_to_do="The model has diverged: go back to the last good checkpoint.",
    )


def _beats_baseline() -> Check:
    return Check(
        table="benchmarks",
        expectation="ExpectBaselineToBeBeaten",
        arguments={"column": "margin", "floor": 0},
        severity="critical",
        asks="Every benchmark is above its dumb baseline.",
        what="{name} is {value:.4f}, not above the {baseline:.4f} of its dumb baseline",
        found="{value:.4f}",
        limit="above {baseline:.4f}",
        where="{name}",
        what_to_do="Train for longer, or check that the benchmark suits a model of this size.",
    )


def _keeps_to_parent(limits: GateLimits) -> Check:
    return Check(
        table="bits_per_byte",
        expectation="ExpectLossToParentWithinLimit",
        arguments={"column": "increase_bits_per_byte", "limit": limits.max_increase_bits_per_byte},
        severity="critical",
        asks="The phase does not make the model worse than its parent by more than the recipe allows.",
        what="{name} went from the parent's {parent:.4f} to {value:.4f}, by {increase_bits_per_byte:+.4f}",
        found="{increase_bits_per_byte:+.4f} bits per byte",
        limit=f"at most {limits.max_increase_bits_per_byte:+g} bits per byte",
        where="{name}",
        what_to_do="Look at the phase's loss, learning rate and mixture, or allow a larger increase in the recipe.",
    )
