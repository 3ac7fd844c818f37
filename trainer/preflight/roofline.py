"""How long a step must take at least, and how long it is projected to take: the largest of its times for arithmetic, memory and networks.

Roofline: Williams et al., 2009. Nothing here is measured on a TPU.
"""

from typing import Literal

from pydantic import Field

from trainer.base.frozen import Frozen
from trainer.config import ModelConfig
from trainer.flops import FLOPS_A_PARAMETER, step_flops

Term = Literal["compute", "hbm", "ici", "dcn"]
UTILISATION = 0.6
"""Share of the peak that all arithmetic of a step is taken to reach. With blocks computed again, a third on top of the model's FLOPs, this
is an MFU of 0.45; runs of dense models of this size report 0.4 to 0.6."""


class Speeds(Frozen):
    """What a chip can do in a second. Networks: bytes sent, in one direction.

    Attributes:
        flops: dense, bfloat16.
        dcn_bytes: this chip's part of its host's network card.
    """

    flops: float = Field(gt=0)
    hbm_bytes: float = Field(gt=0)
    ici_bytes: float = Field(gt=0)
    dcn_bytes: float = Field(gt=0)


class StepWork(Frozen):
    """What a chip does in a step."""

    flops: float
    hbm_bytes: float
    ici_bytes: float
    dcn_bytes: float


class Roofline(Frozen):
    """Seconds of each term, taken to overlap fully: the largest is the step's."""

    compute: float
    hbm: float
    ici: float
    dcn: float

    @property
    def step_seconds(self) -> float:
        """The projected time of a step."""
        return max(self.compute, self.hbm, self.ici, self.dcn)

    @property
    def binds(self) -> Term:
        """The term that is the largest."""
        terms: dict[Term, float] = {"compute": self.compute, "hbm": self.hbm, "ici": self.ici, "dcn": self.dcn}
        return max(terms, key=lambda term: terms[term])


def project(work: StepWork, speeds: Speeds) -> Roofline:
    """The terms of a step."""
    return Roofline(
        compute=work.flops / (speeds.flops * UTILISATION),
        hbm=work.hbm_bytes / speeds.hbm_bytes,
        ici=work.ici_bytes / speeds.ici_bytes,
        dcn=work.dcn_bytes / speeds.dcn_bytes,
    )


def recomputed_flops(model: ModelConfig, sequences: int, remat: str) -> int:
    """FLOPs of a step, on all chips, that are there to save memory: the forward pass of the blocks once more, or of attention alone.

    The head is not computed again. What the attention kernel computes again inside its backward pass is not counted.
    """
    flops = step_flops(model, sequences)
    tokens = sequences * model.seq_len
    head = FLOPS_A_PARAMETER * model.d_model * model.vocab_size * tokens
    match remat:
        case "full" | "offload":
            return (flops.matrices - head + flops.attention) // 3
        case "dots":
            return flops.attention // 3
        case _:
            return 0
