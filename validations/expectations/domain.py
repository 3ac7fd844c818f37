"""Custom Expectations that say what they ask in the domain's words.

Importing this module imports Great Expectations, which takes nine seconds: import it inside functions, through `judging.load_library`.
An empty table and an empty cell fail these expectations; those of the library pass on both.
"""

# Great Expectations leaves its dictionaries untyped.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false

from typing import Any

import pandas as pd
from great_expectations.execution_engine.pandas_execution_engine import PandasExecutionEngine
from great_expectations.expectations.expectation import ColumnMapExpectation
from great_expectations.expectations.metrics.map_metric_provider.column_condition_partial import column_condition_partial
from great_expectations.expectations.metrics.map_metric_provider.column_map_metric_provider import ColumnMapMetricProvider


class ColumnValuesWithinLimit(ColumnMapMetricProvider):
    """Cells that hold a number of at most `limit`."""

    condition_metric_name = "column_values.within_limit"
    condition_value_keys = ("limit",)
    filter_column_isnull = False

    @column_condition_partial(engine=PandasExecutionEngine)
    def _pandas(cls, column: pd.Series, limit: float, **_: Any) -> pd.Series:  # noqa: N805  # a class method to the decorator
        return column.notna() & (column <= limit)


class ColumnValuesAboveFloor(ColumnMapMetricProvider):
    """Cells that hold a number above `floor`."""

    condition_metric_name = "column_values.above_floor"
    condition_value_keys = ("floor",)
    filter_column_isnull = False

    @column_condition_partial(engine=PandasExecutionEngine)
    def _pandas(cls, column: pd.Series, floor: float, **_: Any) -> pd.Series:  # noqa: N805  # a class method to the decorator
        return column.notna() & (column > floor)


class _EveryRow(ColumnMapExpectation):
    """Passes where there is a row and every row passes."""

    def _validate(self, metrics: dict[str, Any], runtime_configuration: Any = None, execution_engine: Any = None) -> Any:
        outcome = super()._validate(metrics, runtime_configuration, execution_engine)
        unexpected = metrics.get(f"{self.map_metric}.unexpected_count")
        outcome["success"] = unexpected == 0 and metrics["table.row_count"] > 0
        return outcome


class _WithinLimit(_EveryRow):
    """A measured column of which no row is above `limit`."""

    limit: float

    map_metric = "column_values.within_limit"
    success_keys = ("limit", "mostly")
    args_keys = ("column", "limit")


class ExpectLeakedItemsWithinLimit(_WithinLimit):
    """Expect no more test items in the training data than allowed; usually none."""


class ExpectShardsToMatchManifest(_WithinLimit):
    """Expect the bytes of every shard to have the digest that the manifest says."""


class ExpectCacheToBeFresh(_WithinLimit):
    """Expect no source file to have changed, gone or come since the cache was made."""


class ExpectShareErrorWithinLimit(_WithinLimit):
    """Expect each component's realised share to be near the intended one, in percentage points."""


class ExpectEpochsWithinLimit(_WithinLimit):
    """Expect no component to be repeated more often than allowed."""


class ExpectLossToParentWithinLimit(_WithinLimit):
    """Expect bits per byte not to rise above the parent's by more than allowed."""


class _AboveFloor(_EveryRow):
    """A measured column of which every row is above `floor`."""

    floor: float

    map_metric = "column_values.above_floor"
    success_keys = ("floor", "mostly")
    args_keys = ("column", "floor")


class ExpectBaselineToBeBeaten(_AboveFloor):
    """Expect every benchmark to be strictly above its dumb baseline."""


class ExpectSomethingToRead(_AboveFloor):
    """Expect a count of what was read, or can be, to be above zero."""
