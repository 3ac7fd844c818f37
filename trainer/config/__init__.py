"""What a training run is, as data: frozen, complete, and refused where it is wrong.

`RunConfig` is everything that `python -m phasewise.trainer RUN.json` needs. Every value is absolute and resolved; no default of a library
decides anything. `None` is off.
"""

from phasewise.trainer.config.added import without_added
from phasewise.trainer.config.execution import (
    ATTENTION,
    BLOCK_INPUT,
    DECIDES_BITS,
    LANES,
    AttentionKernel,
    Execution,
    ExpertKernel,
    Instrumentation,
    Kept,
    Mesh,
    Remat,
)
from phasewise.trainer.config.experts import Balancing, Experts, SignBalancing, Smebu
from phasewise.trainer.config.model import Llama3RopeScaling, ModelConfig, Rope
from phasewise.trainer.config.optimizer import AdamC, AdamW, Muon, NAdamW, Optimizer
from phasewise.trainer.config.recovery import Recovery
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
)
from phasewise.trainer.config.schedule import LearningRateSegment, check_segments, check_segments_end
from phasewise.trainer.config.schema import Steps, always
from phasewise.trainer.config.stability import RollingLimit, Stability

__all__ = [
    "ATTENTION",
    "BLOCK_INPUT",
    "DECIDES_BITS",
    "LANES",
    "AdamC",
    "AdamW",
    "AttentionKernel",
    "Balancing",
    "CheckpointPolicy",
    "Component",
    "DataOrder",
    "Execution",
    "ExpertKernel",
    "Experts",
    "Graft",
    "Instrumentation",
    "Kept",
    "LearningRateSegment",
    "Llama3RopeScaling",
    "LossEvaluation",
    "LossOn",
    "Mesh",
    "MixtureShares",
    "ModelConfig",
    "Muon",
    "NAdamW",
    "Optimizer",
    "PackingKind",
    "Recovery",
    "Remat",
    "RollingLimit",
    "Rope",
    "RunConfig",
    "SignBalancing",
    "Smebu",
    "Stability",
    "StartFrom",
    "StatePart",
    "Steps",
    "always",
    "check_mixture",
    "check_rows",
    "check_segments",
    "check_segments_end",
    "sequences_between",
    "without_added",
]
