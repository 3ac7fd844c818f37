"""Domain expectations: a base class per kind of condition, and the classes that `suites.yaml` names.

Importing this module imports Great Expectations, which takes nine seconds: import it through `judging.load_library`. Unlike the library's
expectations, these fail on an empty table and on an empty cell.
"""

from collections.abc import Callable
from typing import Any

import pandas as pd
from great_expectations.execution_engine.pandas_execution_engine import PandasExecutionEngine
from great_expectations.expectations.expectation import ColumnMapExpectation
from great_expectations.expectations.metrics.map_metric_provider.column_condition_partial import column_condition_partial
from great_expectations.expectations.metrics.map_metric_provider.column_map_metric_provider import ColumnMapMetricProvider

from phasewise.validations.expectations.suites import SUITE_DATA

_Holds = Callable[[pd.Series, Any], pd.Series]
CONDITIONS: dict[str, tuple[str, Any, _Holds]] = {
    "ColumnWithinLimit": ("limit", float, lambda column, limit: column <= limit),
    "ColumnAboveFloor": ("floor", float, lambda column, floor: column > floor),
    "ColumnOneOf": ("allowed", list[Any], lambda column, allowed: column.isin(allowed)),
    "ColumnNoneOf": ("refused", list[Any], lambda column, refused: ~column.isin(refused)),
}
"""Base class → its argument, the type of the argument, and the condition of a cell that is not empty."""


class _EveryRow(ColumnMapExpectation):
    """Pass if the table has rows and every row passes."""

    def _validate(self, metrics: dict[str, Any], runtime_configuration: Any = None, execution_engine: Any = None) -> Any:
        outcome = super()._validate(metrics, runtime_configuration, execution_engine)
        unexpected = metrics.get(f"{self.map_metric}.unexpected_count")
        outcome["success"] = unexpected == 0 and metrics["table.row_count"] > 0
        return outcome


for _base, (_argument, _type, _holds) in CONDITIONS.items():

    def _condition(_: Any, column: pd.Series, argument: str = _argument, holds: _Holds = _holds, **arguments: Any) -> pd.Series:
        return column.notna() & holds(column, arguments[argument])

    _metric = f"column_values.{_argument}"
    _members = {
        "condition_metric_name": _metric,
        "condition_value_keys": (_argument,),
        "filter_column_isnull": False,
        "_pandas": column_condition_partial(engine=PandasExecutionEngine)(_condition),
    }
    type(f"ColumnValues_{_argument}", (ColumnMapMetricProvider,), _members)
    _members = {
        "__module__": __name__,
        "__doc__": f"Every cell passes by `{_argument}`.",
        "__annotations__": {_argument: _type},
        "map_metric": _metric,
        "success_keys": (_argument, "mostly"),
        "args_keys": ("column", _argument),
    }
    _class = globals()[_base] = type(_EveryRow)(_base, (_EveryRow,), _members)
    for _name, _says in SUITE_DATA["expectations"][_base].items():
        globals()[_name] = type(_class)(_name, (_class,), {"__doc__": _says, "__module__": __name__})
