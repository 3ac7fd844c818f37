"""How long a step must take at least, and how long it is projected to take: the largest of its times for arithmetic, memory and networks.

Roofline: Williams et al., 2009. Nothing here is measured on a TPU.
"""

from typing import Literal

from pydantic import Field

from trainer.base.frozen import Frozen
from trainer.config import ATTENTION, Kept, ModelConfig, Remat
from trainer.flops import step_flops

Term = Literal["compute", "hbm", "ici", "dcn", "host"]
UTILISATION = 0.6
"""Share of the peak that all arithmetic of a step is taken to reach. With blocks computed again, a quarter on top of the model's FLOPs, it
is an MFU of 0.48; runs of dense models of this size report 0.4 to 0.6."""

EXPOSED = 0.1
"""Share of the memory's and networks' time that is taken not to overlap, where plans are compared. Between two plans that compute as
long, it is the one that moves less; it is in no time that is reported."""


class Speeds(Frozen):
    """What a chip can do in a second. Networks: bytes sent, in one direction.

    Attributes:
        flops: dense, bfloat16.
        dcn_bytes: this chip's part of its host's network card.
        host_bytes: between the chip and its host's memory.
    """

    flops: float = Field(gt=0)
    hbm_bytes: float = Field(gt=0)
    ici_bytes: float = Field(gt=0)
    dcn_bytes: float = Field(gt=0)
    host_bytes: float = Field(gt=0)


class StepWork(Frozen):
    """What a chip does in a step. `ici_seconds`: how long it sends within its slice, by the links that each operation can use."""

    flops: float
    hbm_bytes: float
    ici_seconds: float
    dcn_bytes: float
    host_bytes: float


class Roofline(Frozen):
    """Seconds of each term, taken to overlap fully: the largest is the step's."""

    compute: float
    hbm: float
    ici: float
    dcn: float
    host: float

    @property
    def step_seconds(self) -> float:
        """The projected time of a step."""
        return max(self.model_dump().values())

    @property
    def ranking_seconds(self) -> float:
        """What plans are compared by: the step, and a part of what is taken to overlap with it."""
        return self.step_seconds + EXPOSED * (sum(self.model_dump().values()) - self.step_seconds)

    @property
    def binds(self) -> Term:
        """The term that is the largest."""
        terms: dict[Term, float] = self.model_dump()  # type: ignore[assignment]
        return max(terms, key=lambda term: terms[term])


def project(work: StepWork, speeds: Speeds) -> Roofline:
    """The terms of a step."""
    return Roofline(
        compute=work.flops / (speeds.flops * UTILISATION),
        hbm=work.hbm_bytes / speeds.hbm_bytes,
        ici=work.ici_seconds,
        dcn=work.dcn_bytes / speeds.dcn_bytes,
        host=work.host_bytes / speeds.host_bytes,
    )


def ring_share(chips: int, torus: tuple[int, ...]) -> float:
    """The share of a chip's links that a ring over so many chips of a slice can use: those along as many axes of the torus as it must span.

    The longest axes are taken first. Two chips have one link between them, not one in each direction of an axis.
    """
    spanned, reached = 0, 1
    for length in sorted(torus, reverse=True):
        if reached >= chips:
            break
        spanned, reached = spanned + 1, reached * length
    return max(spanned, 1) / len(torus) * (0.5 if chips == 2 else 1.0)


def recomputed_flops(model: ModelConfig, sequences: int, remat: Remat) -> int:
    """FLOPs of a step, on all chips, that are there to save memory: forward products of the blocks, and attention, once more.

    Neither the head nor the last product of a block (`down`) is computed again: nothing in the backward pass needs it. What the attention
    kernel computes again inside its backward pass is not counted.
    """
    flops = step_flops(model, sequences)
    once = {name: 2 * width * outer * model.num_layers * sequences * model.seq_len for name, (width, outer) in products(model).items()}
    once[ATTENTION] = flops.attention // 3
    kept = kept_names(remat)
    return sum(each for name, each in once.items() if name not in kept)


def products(model: ModelConfig) -> dict[str, tuple[int, int]]:
    """The products whose results a block's backward pass needs: the sizes of each one's weight, from and to."""
    queries = model.num_query_heads * model.head_dim
    keys = model.num_kv_heads * model.head_dim
    d, f = model.d_model, model.d_ff
    return {"query": (d, queries), "key": (d, keys), "value": (d, keys), "output": (queries, d), "gate": (d, f), "up": (d, f)}


def kept_names(remat: Remat) -> frozenset[str]:
    """What is found again, on the device or on the host."""
    match remat:
        case "none":
            return frozenset({"query", "key", "value", "output", "gate", "up", ATTENTION})
        case "dots":
            return frozenset({"query", "key", "value", "output", "gate", "up"})
        case "full" | "offload":
            return frozenset()
        case Kept():
            return frozenset((*remat.on_device, *remat.on_host))
