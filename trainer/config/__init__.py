"""A training run as frozen, complete, validated data.

`RunConfig` is the input of `python -m phasewise.trainer RUN.json`. Every value is absolute, and no library default decides anything. `None`
is off.
"""

from phasewise.trainer.config.execution import (
    ATTENTION,
    BLOCK_INPUT,
    DECIDES_BITS,
    LANES,
    Execution,
    ExecutionSettings,
    Instrumentation,
    Kept,
    Mesh,
    Remat,
)
from phasewise.trainer.config.model import Balancing, Experts, Llama3RopeScaling, ModelConfig, Rope, SignBalancing, Smebu
from phasewise.trainer.config.optimization import (
    AdamC,
    AdamW,
    LearningRateSegment,
    Muon,
    NAdamW,
    Optimizer,
    Recovery,
    RollingLimit,
    SkipLimit,
    SkipOn,
    Stability,
    Steps,
    always,
    check_segments,
    check_segments_end,
    first_changed_rate,
    learning_rate_at,
    turns_of,
    value_in,
)
from phasewise.trainer.config.run import (
    CheckpointPolicy,
    Component,
    DataOrder,
    Graft,
    LossEvaluation,
    LossOn,
    MixtureShares,
    PackingKind,
    RunConfig,
    StartFrom,
    StatePart,
    check_mixture,
    check_rows,
    sequences_between,
    without_added,
)

__all__ = [  # noqa: RUF022
    "ATTENTION", "AdamC", "AdamW", "BLOCK_INPUT", "Balancing", "CheckpointPolicy", "Component",
    "DECIDES_BITS", "DataOrder", "Execution", "ExecutionSettings", "Experts", "Graft", "Instrumentation", "Kept", "LANES",
    "LearningRateSegment", "Llama3RopeScaling", "LossEvaluation", "LossOn", "Mesh", "MixtureShares", "ModelConfig",
    "Muon", "NAdamW", "Optimizer", "PackingKind", "Recovery", "Remat", "RollingLimit", "Rope", "RunConfig",
    "SignBalancing", "SkipLimit", "SkipOn", "Smebu", "Stability", "StartFrom", "StatePart", "Steps", "always", "check_mixture",
    "check_rows", "check_segments", "check_segments_end", "first_changed_rate", "learning_rate_at", "sequences_between", "turns_of",
    "value_in", "without_added",
]  # fmt: skip
