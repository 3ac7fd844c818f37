"""What a recipe allows: the numbers that verdicts are measured against. None has a default, but for what came later, which is off."""

from typing import Self

from pydantic import Field, model_validator

from phasewise.trainer.base.frozen import Frozen


class LeakageLimits(Frozen):
    """When a text counts as containing a test item, and how many such items may be found.

    Attributes:
        min_words: parts of an item with at least so many words can count alone and with changes; shorter ones count word for word only,
            and the shortest only beside another part.
        min_score: the share of a part that must be in the text, weighted by how rare its words are.
        min_copy_share: of an excerpt of ordinary text, such as a held-out document, the share that must be there in one run of words.
        max_items: items that may be hit, for each component and benchmark.
    """

    min_words: int = Field(gt=0)
    min_score: float = Field(gt=0, le=1)
    min_copy_share: float = Field(gt=0, le=1)
    max_items: int = Field(ge=0)


class OrderLimits(Frozen):
    """How a data order is distinguished from a true random permutation.

    Attributes:
        false_alarm_rate: how often all measures together may flag a true random permutation.
        max_shift_deviations: the largest predicted change of the mean of a per-document signal along the training order, in standard
            deviations of that signal. `None` does not look for one.
    """

    false_alarm_rate: float = Field(gt=0, lt=1)
    max_shift_deviations: float | None = Field(gt=0)


class HealthLimits(Frozen):
    """What the metrics of a training run must keep to. `None` turns a check off.

    Attributes:
        spike_deviations: a value is a spike from so many standard deviations of its rolling window on.
        spike_window: updates in that window.
        max_spike_percent: share of the updates that may be spikes, of the loss and of the gradient norm each.
        max_lm_head_growth: factor by which the norm of `lm_head` may grow within the phase.
        max_loss_rise: rise of the training loss, in nats a token, while the learning rate falls.
        max_loss_shift: shift of the training loss, in nats a token, that the evaluation loss does not follow.
        max_ema_gap: evaluation loss of the weights above that of their moving average, in nats a token.
        max_data_share: share of the time of an update spent waiting for data.
        max_violation: how far the busiest expert may lastingly be above the mean in the second half of a phase, as a share of it (MaxVio);
            for models with experts. What is above it in the first half alone warns.
    """

    spike_deviations: float = Field(gt=0)
    spike_window: int = Field(gt=1)
    max_spike_percent: float = Field(ge=0)
    max_lm_head_growth: float | None = Field(gt=1)
    max_loss_rise: float | None = Field(gt=0)
    max_loss_shift: float | None = Field(gt=0)
    max_ema_gap: float | None = Field(gt=0)
    max_data_share: float | None = Field(gt=0, le=1)
    max_violation: float | None = Field(default=None, gt=0)


class PackingLimits(Frozen):
    """What may become of documents that are packed into rows, for each component. `None` turns a check off.

    Attributes:
        min_counted_percent: of the tokens in its rows, those that are predicted.
        max_cut_percent: of its documents, those that are longer than a row and are cut.
        max_padding_percent: of the places in its rows, those without a token.
    """

    min_counted_percent: float | None = Field(default=None, gt=0, le=100)
    max_cut_percent: float | None = Field(default=None, ge=0, le=100)
    max_padding_percent: float | None = Field(default=None, ge=0, le=100)


class DataLimits(Frozen):
    """What the data of a phase must keep to.

    Attributes:
        max_share_error_points: realised against intended share of a component, in percentage points, over each stage.
        max_share_error_percent: what a block of the mixture has of a component against its intended share, in percent of that share. `None`
            is any, for blocks too small to hold small shares.
        max_epochs: how often each row of a component may have been seen since step 0. `None` is unlimited.
        max_left_out_percent: of a component's documents those that may be left out, for whatever reason: without text, unreadable, by a
            filter, as a copy, by their length. More than that warns. `None` is unlimited.
    """

    max_share_error_points: float = Field(ge=0)
    max_share_error_percent: float | None = Field(gt=0)
    max_epochs: float | None = Field(gt=0)
    leakage: LeakageLimits
    order: OrderLimits
    packing: PackingLimits = PackingLimits()
    max_left_out_percent: float | None = Field(default=90.0, ge=0, le=100)


class GateLimits(Frozen):
    """What a phase's last checkpoint must keep to before the next phase may start.

    Attributes:
        max_increase_bits_per_byte: macro bits per byte over the held-out components, above the parent's.
        must_beat_baseline: whether each benchmark must show that the model is above the floor: that it is right more often than a dumb
            baseline, or finds the right answers likelier than others.
        floor_error_rate: how often a model at the floor of a benchmark may pass it. `None` only where it is not asked.
        false_refusal_rate: how often a checkpoint that is as good as its parent may be refused by its scores, by all benchmarks of the gate
            together. `None` compares no score with the parent's.
        max_score_fall: how far a score may truly lie below the parent's, as a share of the items. A larger fall is refused where it is more
            than chance.
        max_score_rise: the same of a rise, which is impossible beyond it: only who saw the test items learns so much in a phase. `None`
            allows any.
        needle_error_rate: how often a model that finds no needle may pass each of the phase's benchmarks of needles (`niah`). `None`
            measures and shows them, and asks nothing.
        exposure_error_rate: how often a model that never saw the test items may be refused for how it reads them under two renderings.
            `None` does not ask.
        min_answer_gain_nats: how much likelier the answers of held-out conversations must be than they were to the parent, in nats a
            token, each conversation counting the same. More than this must be shown. `None` does not ask.
        answer_error_rate: how often a checkpoint that is no likelier than that may pass.
    """

    max_increase_bits_per_byte: float
    must_beat_baseline: bool
    floor_error_rate: float | None = Field(gt=0, lt=0.5)
    false_refusal_rate: float | None = Field(default=None, gt=0, lt=0.5)
    max_score_fall: float | None = Field(default=None, ge=0, lt=1)
    max_score_rise: float | None = Field(default=None, gt=0, lt=1)
    needle_error_rate: float | None = Field(default=None, gt=0, lt=0.5)
    exposure_error_rate: float | None = Field(default=None, gt=0, lt=0.5)
    min_answer_gain_nats: float | None = Field(default=None, allow_inf_nan=False)
    answer_error_rate: float | None = Field(default=None, gt=0, lt=0.5)

    @property
    def asked_floor_error_rate(self) -> float | None:
        """The rate, where the floor is asked for."""
        return self.floor_error_rate if self.must_beat_baseline else None

    @model_validator(mode="after")
    def _has_rate(self) -> Self:
        if self.must_beat_baseline and self.floor_error_rate is None:
            raise ValueError(
                "where must_beat_baseline is true, floor_error_rate must say how often a model at the floor may pass, for example 0.01; "
                "found null"
            )
        if (self.false_refusal_rate is None) != (self.max_score_fall is None):
            raise ValueError(
                "false_refusal_rate and max_score_fall must be given together or not at all: how often a checkpoint may be refused "
                "wrongly, for example 0.05, and how far a score may fall, for example 0.01; "
                f"found {self.false_refusal_rate} and {self.max_score_fall}"
            )
        if (self.min_answer_gain_nats is None) != (self.answer_error_rate is None):
            raise ValueError(
                "min_answer_gain_nats and answer_error_rate must be given together or not at all: how much likelier answers must be, for "
                "example 0, and how often one that is not may pass, for example 0.01; "
                f"found {self.min_answer_gain_nats} and {self.answer_error_rate}"
            )
        if self.max_score_rise is not None and self.false_refusal_rate is None:
            raise ValueError("max_score_rise asks for a false_refusal_rate, for example 0.05: without one no score is compared; found null")
        return self
