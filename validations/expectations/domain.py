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


class ColumnValuesOneOf(ColumnMapMetricProvider):
    """Cells that hold one of `allowed`."""

    condition_metric_name = "column_values.one_of"
    condition_value_keys = ("allowed",)
    filter_column_isnull = False

    @column_condition_partial(engine=PandasExecutionEngine)
    def _pandas(cls, column: pd.Series, allowed: list[Any], **_: Any) -> pd.Series:  # noqa: N805  # a class method to the decorator
        return column.notna() & column.isin(allowed)


class ColumnValuesNoneOf(ColumnMapMetricProvider):
    """Cells that hold something, and none of `refused`."""

    condition_metric_name = "column_values.none_of"
    condition_value_keys = ("refused",)
    filter_column_isnull = False

    @column_condition_partial(engine=PandasExecutionEngine)
    def _pandas(cls, column: pd.Series, refused: list[Any], **_: Any) -> pd.Series:  # noqa: N805  # a class method to the decorator
        return column.notna() & ~column.isin(refused)


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


class ExpectShareErrorWithinLimit(_WithinLimit):
    """Expect each component's realised share to be near the intended one, in percentage points."""


class ExpectLeftOutWithinLimit(_WithinLimit):
    """Expect most documents of each component to be taken, in percent of them."""


class ExpectBlockToKeepShare(_WithinLimit):
    """Expect a block's share of each component to be near the intended one, in percent of that share."""


class ExpectEpochsWithinLimit(_WithinLimit):
    """Expect no component to be repeated more often than allowed."""


class ExpectDocumentsToFitTheirRows(_WithinLimit):
    """Expect few documents to be longer than a row, where rows have whole documents."""


class ExpectRowsToBeFull(_WithinLimit):
    """Expect little of the rows to be padding."""


class ExpectLossToParentWithinLimit(_WithinLimit):
    """Expect bits per byte not to rise above the parent's by more than allowed."""


class ExpectNoFileNamedLikeATest(_WithinLimit):
    """Expect no file that was read to be named like a test split."""


class ExpectStagesToStartOnTheBlockGrid(_WithinLimit):
    """Expect no stage to cut a block of the mixture, where the recipe does not say that it may."""


class _AboveFloor(_EveryRow):
    """A measured column of which every row is above `floor`."""

    floor: float

    map_metric = "column_values.above_floor"
    success_keys = ("floor", "mostly")
    args_keys = ("column", "floor")


class ExpectScoreToBeAboveTheFloor(_WithinLimit):
    """Expect every benchmark's score to be one that a model at the floor reaches at most that often."""


class ExpectAccuracyNotToBeBelowTheBaseline(_AboveFloor):
    """Expect no benchmark's accuracy to be one that a model as good as the dumb baseline falls to no oftener than that."""


class ExpectAnswersToBecomeLikelier(_WithinLimit):
    """Expect the answers of held-out conversations to be likelier than they were to the parent, by more than chance."""


class ExpectAnswersOfEachToStayLikely(_AboveFloor):
    """Expect the answers of no component's held-out conversations to have become less likely, by more than chance."""


class ExpectNoFallBelowTheParent(_AboveFloor):
    """Expect no benchmark's score to be one that a model as good as its parent falls to no oftener than that."""


class ExpectNoImpossibleRise(_AboveFloor):
    """Expect no benchmark's score to lie further above the parent's than a phase can bring."""


class ExpectRightAnswersToStayLikely(_AboveFloor):
    """Expect the right choices not to become less likely than they were to the parent, by more than chance."""


class ExpectTestItemsToBeUnseen(_AboveFloor):
    """Expect a model not to read test items otherwise than items that nobody has seen."""


class ExpectSomethingToRead(_AboveFloor):
    """Expect a count of what was read, or can be, to be above zero."""


class ExpectTokensToCount(_AboveFloor):
    """Expect enough of each component's tokens to be predicted."""


class ExpectShareToBeIntended(_AboveFloor):
    """Expect no component to be drawn that the recipe gives no share."""


class _OneOf(_EveryRow):
    """A column that holds one of `allowed` in every row."""

    allowed: list[Any]

    map_metric = "column_values.one_of"
    success_keys = ("allowed", "mostly")
    args_keys = ("column", "allowed")


class ExpectTrainingSplit(_OneOf):
    """Expect what is trained on to be a training split."""


class ExpectComponentToBeDrawn(_OneOf):
    """Expect each component with a share to be drawn at least once."""


class ExpectVerifiedCacheToBeTheJudgedOne(_OneOf):
    """Expect the caches that were verified to be those that are judged, by their digests."""


class ExpectCacheToBeMadeAsConfigured(_OneOf):
    """Expect each cache to be made of the sources, by the settings, the code and the tokenizer that are configured now."""


class ExpectHandOffToBeCompared(_OneOf):
    """Expect the evidence to say of every change whether it is declared and found."""


class ExpectTheWholeBenchmark(_OneOf):
    """Expect every item of a benchmark to have been asked."""


class ExpectScoresToBeComparable(_OneOf):
    """Expect a benchmark to have been put to the checkpoint and to its parent in the same way, at a known point of the schedule."""


class _NoneOf(_EveryRow):
    """A column that holds something else than `refused` in every row."""

    refused: list[Any]

    map_metric = "column_values.none_of"
    success_keys = ("refused", "mostly")
    args_keys = ("column", "refused")


class ExpectShardsToMatchManifest(_NoneOf):
    """Expect the bytes of every shard to have the digest that the manifest says."""


class ExpectCachedFilesToBeSelected(_NoneOf):
    """Expect a cache to hold nothing of a file that its source leaves out by now."""


class ExpectCacheToBeFresh(_NoneOf):
    """Expect no source file to have changed, gone or come since the cache was made."""


class ExpectChangesToBeDeclared(_NoneOf):
    """Expect a hand-off to change nothing that it does not declare."""


class ExpectDeclaredChangesToBeFound(_NoneOf):
    """Expect a hand-off to declare nothing that it does not change."""


class ExpectOnlyFiniteNumbers(_WithinLimit):
    """Expect a run to have measured no value that is infinite or no number."""


class ExpectSpikesWithinLimit(_WithinLimit):
    """Expect no more updates than allowed to be far above those before them."""


class ExpectNoSpikeToBeLedByUpdates(_WithinLimit):
    """Expect no loss spike to follow a rise of the update norm."""


class ExpectLmHeadToKeepItsNorm(_WithinLimit):
    """Expect the norm of the output head not to grow by more than the factor allowed."""


class ExpectLossNotToRiseInCooldown(_WithinLimit):
    """Expect the training loss not to rise while the learning rate falls."""


class ExpectLossAndEvaluationToMoveTogether(_WithinLimit):
    """Expect no shift of the training loss that the evaluation loss does not follow."""


class ExpectMovingAverageToLag(_WithinLimit):
    """Expect the weights to be further from their moving average than one update moves them."""


class ExpectEmaGapWithinLimit(_WithinLimit):
    """Expect the weights to evaluate not much worse than their moving average."""


class ExpectExpertsToKeepTheirBalance(_WithinLimit):
    """Expect no expert of any layer to have lastingly many more tokens than the mean."""


class ExpectDataInTime(_WithinLimit):
    """Expect little of the training time to be spent waiting for batches."""


class ExpectOrderToMix(_AboveFloor):
    """Expect no measure of the data order to be less likely, under true random permutations, than its share of the false alarms."""


class ExpectNoPredictedPhaseShift(_WithinLimit):
    """Expect the mean of each signal of the documents to stay where it is along the training order."""
