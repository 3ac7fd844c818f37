"""Domain expectations: a base class per kind of condition, and the classes that `suites.yaml` names.

Importing this module imports Great Expectations, which takes nine seconds: import it through `judging.load_library`. Unlike the library's
expectations, these fail on an empty table and on an empty cell.
"""

# Great Expectations leaves its dictionaries untyped.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false

from collections.abc import Callable
from typing import Any

import pandas as pd
from great_expectations.execution_engine.pandas_execution_engine import PandasExecutionEngine
from great_expectations.expectations.expectation import ColumnMapExpectation
from great_expectations.expectations.metrics.map_metric_provider.column_condition_partial import column_condition_partial
from great_expectations.expectations.metrics.map_metric_provider.column_map_metric_provider import ColumnMapMetricProvider

from phasewise.validations.expectations.suites import SUITE_DATA

CONDITIONS: dict[str, tuple[str, Callable[[pd.Series, Any], pd.Series]]] = {
    "within_limit": ("limit", lambda column, limit: column <= limit),
    "above_floor": ("floor", lambda column, floor: column > floor),
    "one_of": ("allowed", lambda column, allowed: column.isin(allowed)),
    "none_of": ("refused", lambda column, refused: ~column.isin(refused)),
}
"""Condition of a cell → its argument, and its function over cells that are not empty."""


def _register_metric(name: str, argument: str, holds: Callable[[pd.Series, Any], pd.Series]) -> None:
    def condition(_: Any, column: pd.Series, **arguments: Any) -> pd.Series:
        return column.notna() & holds(column, arguments[argument])

    members = {
        "condition_metric_name": f"column_values.{name}",
        "condition_value_keys": (argument,),
        "filter_column_isnull": False,
        "_pandas": column_condition_partial(engine=PandasExecutionEngine)(condition),
    }
    type(f"ColumnValues_{name}", (ColumnMapMetricProvider,), members)


for _name, _condition in CONDITIONS.items():
    _register_metric(_name, *_condition)


class _EveryRow(ColumnMapExpectation):
    """Pass if the table has rows and every row passes."""

    def _validate(self, metrics: dict[str, Any], runtime_configuration: Any = None, execution_engine: Any = None) -> Any:
        outcome = super()._validate(metrics, runtime_configuration, execution_engine)
        unexpected = metrics.get(f"{self.map_metric}.unexpected_count")
        outcome["success"] = unexpected == 0 and metrics["table.row_count"] > 0
        return outcome


class ColumnWithinLimit(_EveryRow):
    """Every value is at most `limit`."""

    limit: float

    map_metric = "column_values.within_limit"
    success_keys = ("limit", "mostly")
    args_keys = ("column", "limit")


class ColumnAboveFloor(_EveryRow):
    """Every value is above `floor`."""

    floor: float

    map_metric = "column_values.above_floor"
    success_keys = ("floor", "mostly")
    args_keys = ("column", "floor")


class ColumnOneOf(_EveryRow):
    """Every value is in `allowed`."""

    allowed: list[Any]

    map_metric = "column_values.one_of"
    success_keys = ("allowed", "mostly")
    args_keys = ("column", "allowed")


class ColumnNoneOf(_EveryRow):
    """No value is in `refused`."""

    refused: list[Any]

    map_metric = "column_values.none_of"
    success_keys = ("refused", "mostly")
    args_keys = ("column", "refused")


for _base in (ColumnWithinLimit, ColumnAboveFloor, ColumnOneOf, ColumnNoneOf):
    for _name, _says in SUITE_DATA["expectations"][_base.__name__].items():
        globals()[_name] = type(_base)(_name, (_base,), {"__doc__": _says, "__module__": __name__})
