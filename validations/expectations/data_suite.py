"""What is expected of the data before a phase trains on it, table by table."""

from collections.abc import Mapping

import pandas as pd

from phasewise.validations.expectations.cache_checks import CACHE_CHECKS, difference_checks, left_out_checks
from phasewise.validations.expectations.check import Check
from phasewise.validations.expectations.hand_off_checks import HAND_OFF_CHECKS
from phasewise.validations.expectations.leakage_checks import leakage_checks
from phasewise.validations.expectations.mixture_checks import mixture_checks
from phasewise.validations.expectations.order_checks import order_checks
from phasewise.validations.expectations.packing_checks import packing_checks
from phasewise.validations.limits import DataLimits

DATA_SUITE = "data"


def data_checks(limits: DataLimits, tables: Mapping[str, pd.DataFrame]) -> tuple[Check, ...]:
    """The whole suite. The components that the mixture draws must be among those that the other tables judge."""
    drawn = _components_with(tables["mixture"], "sequences")
    with_rows = [name for name in _components_with(tables["mixture"], "rows") if name in drawn]
    return (
        *CACHE_CHECKS,
        *left_out_checks(limits.max_left_out_percent),
        _judges_components("caches", drawn, "Give every component of the mixture a cache."),
        *difference_checks(tables),
        _judges_components("differences", drawn, "Verify the caches of every component of the mixture."),
        *mixture_checks(limits),
        *leakage_checks(limits.leakage, tables),
        _judges_components("leakage", drawn, "Scan the cache of every component of the mixture."),
        *order_checks(limits.order, tables),
        _judges_components("order", with_rows, "Judge the order of every component of the mixture."),
        *packing_checks(limits.packing),
        _judges_components("packing", drawn, "Judge the rows of every component of the mixture."),
        *HAND_OFF_CHECKS,
    )


def _components_with(mixture: pd.DataFrame, column: str) -> list[str]:
    """The components of which a stage has something; none where the table does not say, which breaks the checks of the table itself."""
    return sorted(mixture["component"][mixture[column] > 0].unique()) if {"component", column} <= set(mixture) else []


def _judges_components(table: str, drawn: list[str], what_to_do: str) -> Check:
    return Check(
        table=table,
        expectation="ExpectColumnDistinctValuesToContainSet",
        arguments={"column": "component", "value_set": drawn},
        severity="critical",
        asks="Every component that the mixture draws is judged.",
        what=f"table {table} does not judge every component that the mixture draws ({{observed}})",
        found="{observed}",
        limit=", ".join(drawn),
        where=f"table {table}",
        what_to_do=what_to_do,
    )
