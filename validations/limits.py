"""Limits that a recipe sets for verdicts. A limit has no default, except for newer limits, which are off. The exceptions are waivers."""

from collections.abc import Iterable, Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from phasewise.trainer.base.frozen import Frozen


class LeakageLimits(Frozen):
    """When a text counts as containing a test item, and how many such items are allowed."""

    min_words: int = Field(gt=0)
    """A part with at least this many words can count without other parts and with changes. A shorter part must match word for word."""
    min_score: float = Field(gt=0, le=1)  # share of a part that the text must contain, weighted by the rarity of its words
    min_copy_share: float = Field(gt=0, le=1)
    """Share of an excerpt of ordinary text, such as a held-out document, that the text must contain in one run of words."""
    max_items: int = Field(ge=0)  # allowed hits per component and benchmark
    max_held_out_percent: float | None = Field(default=None, ge=0, le=100)
    """Percent of held-out documents, and of items made from held-out text, that a component may contain. None applies `max_items`."""


class OrderLimits(Frozen):
    """Limits that separate a data order from a true random permutation."""

    false_alarm_rate: float = Field(gt=0, lt=1)  # how often all measures together may flag a true random permutation
    max_shift_deviations: float | None = Field(gt=0)
    """Largest predicted change of a document signal's mean along the training order, in its standard deviations. None checks no signal."""


class HealthLimits(Frozen):
    """Limits on the metrics of a training run. None turns a check off."""

    spike_deviations: float = Field(gt=0)  # standard deviations of its rolling window above which a value is a spike
    spike_window: int = Field(gt=1)  # updates in the rolling window
    max_spike_percent: float = Field(ge=0)  # percent of the updates that may be spikes, for the loss and for the gradient norm
    max_lm_head_growth: float | None = Field(gt=1)  # factor by which the norm of `lm_head` may grow within the phase
    max_loss_rise: float | None = Field(gt=0)  # rise of the training loss, in nats a token, while the learning rate falls
    max_loss_shift: float | None = Field(gt=0)  # shift of the training loss, in nats a token, that the evaluation loss does not follow
    max_ema_gap: float | None = Field(gt=0)  # evaluation loss of the weights minus the loss of their moving average, in nats a token
    max_data_share: float | None = Field(gt=0, le=1)  # share of an update's time that training spends waiting for data
    max_violation: float | None = Field(default=None, gt=0)
    """MaxVio of the busiest expert in the second half of a phase. A higher value in the first half only warns."""


class PackingLimits(Frozen):
    """Limits per component on documents packed into rows. None turns a check off."""

    min_counted_percent: float | None = Field(default=None, gt=0, le=100)  # predicted tokens, in percent of the row tokens
    max_cut_percent: float | None = Field(default=None, ge=0, le=100)  # documents longer than a row, in percent of the documents
    max_padding_percent: float | None = Field(default=None, ge=0, le=100)  # positions without a token, in percent of the row positions


class DataLimits(Frozen):
    """Limits on the data of a phase."""

    max_share_error_points: float = Field(ge=0)  # realised minus intended share of a component over each stage, in percentage points
    max_share_error_percent: float | None = Field(gt=0)
    """Error of a component's share of a mixture block, in percent of its intended share. None suits blocks too small for small shares."""
    max_epochs: float | None = Field(gt=0)  # epochs of a component since step 0. None is unlimited
    leakage: LeakageLimits
    order: OrderLimits
    packing: PackingLimits = PackingLimits()
    max_left_out_percent: float | None = Field(default=90.0, ge=0, le=100)
    """Percent of a component's documents that may be left out, whatever the reason. A larger percentage warns. None is unlimited."""


class GateLimits(Frozen):
    """Limits on a phase's last checkpoint before the next phase may start. None turns a check off."""

    max_increase_bits_per_byte: float  # macro bits per byte over the held-out components, above the parent's
    must_beat_baseline: bool
    """Each benchmark must show that the model is above the floor, by accuracy or by likelihoods, at the `floor_error_rate`."""
    floor_error_rate: float | None = Field(gt=0, lt=0.5)  # how often a model at the floor of a benchmark may pass
    false_refusal_rate: float | None = Field(default=None, gt=0, lt=0.5)
    """How often the scores may reject a checkpoint that is as good as its parent, over all benchmarks of the gate."""
    max_score_fall: float | None = Field(default=None, ge=0, lt=1)
    """Allowed true fall of a score below the parent's, as a share of the items."""
    max_score_rise: float | None = Field(default=None, gt=0, lt=1)
    """Allowed true rise of a score above the parent's. A larger rise within one phase means that the model saw the test items."""
    needle_error_rate: float | None = Field(default=None, gt=0, lt=0.5)
    """How often a model that finds no needle may pass a needle benchmark (`niah`)."""
    exposure_error_rate: float | None = Field(default=None, gt=0, lt=0.5)
    """How often the likelihoods under two renderings may reject a model that never saw the test items."""
    min_answer_gain_nats: float | None = Field(default=None, allow_inf_nan=False)
    """Gain in the likelihood of held-out answers over the parent, in nats a token. Each conversation counts the same."""
    answer_error_rate: float | None = Field(default=None, gt=0, lt=0.5)  # how often a checkpoint without this gain may pass

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        if self.must_beat_baseline and self.floor_error_rate is None:
            raise ValueError("must_beat_baseline: expected a floor_error_rate, for example 0.01, found null")
        for limit, rate, example in (
            ("max_score_fall", "false_refusal_rate", "0.01 and 0.05"),
            ("min_answer_gain_nats", "answer_error_rate", "0 and 0.01"),
        ):
            values = getattr(self, limit), getattr(self, rate)
            if (values[0] is None) != (values[1] is None):
                raise ValueError(
                    f"{limit} and {rate} must be given together or not at all, for example {example}, found {values[0]} and {values[1]}"
                )
        if self.max_score_rise is not None and self.false_refusal_rate is None:
            raise ValueError("max_score_rise: expected a false_refusal_rate, for example 0.05, found null")
        return self


MACRO = "macro bits per byte"  # the row of the mean over components
OWN_TEXT = "own held-out text"  # the key of an evaluation with the bits per byte of each subset
NEEDLE_BENCHMARKS = ("niah", "niah_written")  # multiple choice among the values of all keys, and generation of the value


def is_needle(benchmark: str) -> bool:
    """Return whether a benchmark searches needles in a haystack: `niah:4096`, `niah_written:4096`."""
    return benchmark.partition(":")[0] in NEEDLE_BENCHMARKS


Cell = bool | int | float | str


class AcceptedWarning(Frozen):
    """A warning that the recipe expects, for the table rows that match its cells."""

    table: str
    check: str  # name of the check in verdicts, such as `expect_order_to_mix`
    where: dict[str, Cell] = Field(min_length=1)  # column → cell. The check defines the columns to name
    phases: tuple[str, ...] | None = Field(min_length=1)  # None is every phase
    reason: str = Field(pattern=r"\S")
    source: str = Field(pattern=r"\S")

    @property
    def words(self) -> str:
        """The finding as text, such as `expect_order_to_mix where permutation = linear`."""
        return f"{self.check} where {' and '.join(f'{column} = {cell}' for column, cell in self.where.items())}"

    def covers(self, row: Mapping[str, Any]) -> bool:
        """Return whether the cells of a row match `where`."""
        return all(column in row and bool(row[column] == cell) for column, cell in self.where.items())


class ApprovableCheck(Frozen):
    """A check whose failure a person may let pass. A new failure needs a new approval."""

    table: str
    check: str  # name of the check in verdicts, such as `expect_no_fall_below_the_parent`
    phases: tuple[str, ...] | None = Field(default=None, min_length=1)  # None is every phase


class AsksPeople(Frozen):
    """Decisions of a verdict that a person makes."""

    approvable: tuple[ApprovableCheck, ...] = ()
    on_warnings: bool = False  # a person decides on a verdict with warnings. If False, warnings are only shown


NOBODY = AsksPeople()


def accepted_in(phase: str, accepts: Iterable[AcceptedWarning]) -> tuple[AcceptedWarning, ...]:
    """Select the warnings of one phase."""
    return tuple(warning for warning in accepts if warning.phases is None or phase in warning.phases)


def expected(accepts: Iterable[AcceptedWarning]) -> list[dict[str, Any]]:
    """Return the warnings as JSON without their phases: other phases do not change the verdict of this phase."""
    return [warning.model_dump(mode="json", exclude={"phases"}) for warning in accepts]
