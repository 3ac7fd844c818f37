"""What the measures look for, by its name in the record, and the section that describes it."""

from dataclasses import dataclass
from enum import StrEnum

from phasewise.trainer.metrics import ALL_GROUPS

BY_GROUP = "/"
"""Stands in a measure's name before the group of weights that it is of."""
MARIN_8B, MARIN_32B, TRINITY_LARGE = "Marin 8B retrospective", "Marin 32B retrospective", "Trinity Large report"


class Measure(StrEnum):
    """The measures of the health table, besides those by group of weights."""

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


@dataclass(frozen=True)
class Phenomenon:
    """A thing that happened to a run, in a word or two, and where the record describes it."""

    name: str
    described_in: str


def _marin_32b(section: str) -> str:
    return f'{MARIN_32B}, section "{section}"'


def _marin_8b(section: str) -> str:
    return f'{MARIN_8B}, section "{section}"'


GRADIENT_OF_GROUP = Phenomenon("gradient norm spikes, by group", _marin_32b("1. Tightened max grad norm clipping"))
NORM_OF_GROUP = Phenomenon("parameter norm jumps, by group", _marin_8b("Spoonbill: Z-loss to the rescue"))


def grad_norm_spikes_of(group: str) -> str:
    """The measure's name."""
    return f"grad_norm_spikes_percent{BY_GROUP}{group}"


def param_norm_jumps_of(group: str) -> str:
    """The measure's name."""
    return f"param_norm_jumps_percent{BY_GROUP}{group}"


PHENOMENA: dict[str, Phenomenon] = {
    Measure.NON_FINITE: Phenomenon("divergence", _marin_32b("Alternative Optimizers (`exp1388`, `exp1380`)")),
    Measure.LOSS_SPIKES: Phenomenon("loss spikes", _marin_32b("Phase 1: Scaling up our existing recipe")),
    Measure.GRAD_NORM_SPIKES: Phenomenon("gradient norm spikes", _marin_32b("1. Tightened max grad norm clipping")),
    Measure.LED_SPIKES: Phenomenon("update norm leads loss", _marin_32b("2. Clip Update Norm")),
    Measure.LM_HEAD_GROWTH: Phenomenon("lm_head explodes (Spoonbill)", _marin_8b("Spoonbill: Z-loss to the rescue")),
    Measure.LOSS_RISE: Phenomenon("loss creeps up in the cooldown (Raccoon)", _marin_8b("Raccoon: Debugging SFT-ability")),
    Measure.LOSS_SHIFT: Phenomenon("data order shifts the loss (Bison)", _marin_32b("Shuffling anomaly")),
    Measure.EMA_LAG: Phenomenon("moving average the wrong way round (Ocelot)", _marin_8b("Adjusted Hyperparameters")),
    Measure.EMA_GAP: Phenomenon("EMA gap", _marin_8b("The EMA Gap")),
    Measure.DATA_SHARE: Phenomenon("training waits for data", f'{TRINITY_LARGE}, section "3.2 Data Preparation"'),
    Measure.MAX_VIOLATION: Phenomenon("experts collapse", f'{TRINITY_LARGE}, section "6 Discussion"'),
    Measure.EARLY_VIOLATION: Phenomenon("experts off their balance for a time", f'{TRINITY_LARGE}, section "6 Discussion"'),
    Measure.LOSS_STEP_SPREAD: Phenomenon("batches unlike each other", f'{TRINITY_LARGE}, section "3.2 Data Preparation"'),
    Measure.BATCH_HET: Phenomenon("parts of a batch unlike each other", f'{TRINITY_LARGE}, section "3.2 Data Preparation"'),
    **{grad_norm_spikes_of(group): GRADIENT_OF_GROUP for group in ALL_GROUPS},
    **{param_norm_jumps_of(group): NORM_OF_GROUP for group in ALL_GROUPS},
}
"""Measure → what it looks for."""
