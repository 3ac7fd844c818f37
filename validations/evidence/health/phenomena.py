"""The measures of the health table, and the published phenomena that they detect."""

from enum import StrEnum
from typing import NamedTuple

from phasewise.trainer.metrics import ALL_GROUPS

GROUP_MEASURES = ("grad_norm_spikes_percent", "param_norm_jumps_percent")
"""Measures per group of weights. A slash separates measure and group."""


class Measure(StrEnum):
    """Measures of the health table, except measures per group of weights."""

    NON_FINITE = "non_finite_values"
    LOSS_SPIKES = "loss_spikes_percent"
    GRAD_NORM_SPIKES = "grad_norm_spikes_percent"
    LED_SPIKES = "loss_spikes_led_by_update_norm"
    LM_HEAD_GROWTH = "lm_head_growth"
    LOSS_RISE = "loss_rise_at_falling_learning_rate"
    LOSS_SHIFT = "loss_shift_at_flat_evaluation"
    EMA_LAG = "update_over_ema_distance"
    EMA_GAP = "ema_gap"
    DATA_SHARE = "data_share"
    MAX_VIOLATION = "max_violation"
    EARLY_VIOLATION = "early_max_violation"
    LOSS_STEP_SPREAD = "loss_step_spread"
    BATCH_HET = "batch_het"


class Phenomenon(NamedTuple):
    """A phenomenon of published runs and the section that describes it."""

    name: str
    described_in: str


_MARIN_8B, _MARIN_32B, _TRINITY = "Marin 8B retrospective", "Marin 32B retrospective", "Trinity Large report"
_CLIPPING, _Z_LOSS = "1. Tightened max grad norm clipping", "Spoonbill: Z-loss to the rescue"
_DESCRIBED: dict[str, tuple[str, str, str]] = {
    Measure.NON_FINITE: ("divergence", _MARIN_32B, "Alternative Optimizers (`exp1388`, `exp1380`)"),
    Measure.LOSS_SPIKES: ("loss spikes", _MARIN_32B, "Phase 1: Scaling up our existing recipe"),
    Measure.GRAD_NORM_SPIKES: ("gradient norm spikes", _MARIN_32B, _CLIPPING),
    Measure.LED_SPIKES: ("update norm leads loss", _MARIN_32B, "2. Clip Update Norm"),
    Measure.LM_HEAD_GROWTH: ("lm_head explodes (Spoonbill)", _MARIN_8B, _Z_LOSS),
    Measure.LOSS_RISE: ("loss creeps up in the cooldown (Raccoon)", _MARIN_8B, "Raccoon: Debugging SFT-ability"),
    Measure.LOSS_SHIFT: ("data order shifts the loss (Bison)", _MARIN_32B, "Shuffling anomaly"),
    Measure.EMA_LAG: ("moving average the wrong way round (Ocelot)", _MARIN_8B, "Adjusted Hyperparameters"),
    Measure.EMA_GAP: ("EMA gap", _MARIN_8B, "The EMA Gap"),
    Measure.DATA_SHARE: ("training waits for data", _TRINITY, "3.2 Data Preparation"),
    Measure.MAX_VIOLATION: ("experts collapse", _TRINITY, "6 Discussion"),
    Measure.EARLY_VIOLATION: ("experts off their balance for a time", _TRINITY, "6 Discussion"),
    Measure.LOSS_STEP_SPREAD: ("batches unlike each other", _TRINITY, "3.2 Data Preparation"),
    Measure.BATCH_HET: ("parts of a batch unlike each other", _TRINITY, "3.2 Data Preparation"),
}
for _group in ALL_GROUPS:
    _DESCRIBED[f"{GROUP_MEASURES[0]}/{_group}"] = ("gradient norm spikes, by group", _MARIN_32B, _CLIPPING)
    _DESCRIBED[f"{GROUP_MEASURES[1]}/{_group}"] = ("parameter norm jumps, by group", _MARIN_8B, _Z_LOSS)
PHENOMENA = {measure: Phenomenon(name, f'{document}, section "{section}"') for measure, (name, document, section) in _DESCRIBED.items()}
"""Measure → its phenomenon."""
