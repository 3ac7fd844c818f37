"""How long a step must take at least, and how long it is projected to take: the largest of its times for arithmetic, memory and networks.

Roofline: Williams et al., 2009. Nothing here is measured on a TPU.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, NamedTuple, TypeVar, cast

import jax

from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.config import ATTENTION, Kept, ModelConfig, Remat
from phasewise.trainer.flops import step_flops
from phasewise.trainer.model.params import EXPERT, param_specs
from phasewise.trainer.preflight.spec import Speeds

Term = Literal["compute", "hbm", "ici", "dcn", "host"]
UTILISATION = 0.6
"""Share of the peak that all arithmetic of a step is taken to reach. With blocks computed again, a quarter on top of the model's FLOPs, it
is an MFU of 0.48; runs of dense models of this size report 0.4 to 0.6."""

EXPOSED = 0.1
"""Share of the memory's and networks' time that is taken not to overlap, where plans are compared. Between two plans that compute as
long, it is the one that moves less; it is in no time that is reported."""


WRITES_BLOCK = ("d_model", "expert_d_model")
"""The last axis of a weight whose result goes to the residual stream."""
CUT_BY_TENSOR = ("query_heads", "kv_heads", "d_ff")
"""Axes of a weight that `tensor` cuts (`trainer.sharding.RULES`)."""
NAMED = frozenset(
    ("query", "key", "value", "attention_gate", "output", "gate", "up", "down", "router", "shared_gate", "shared_up", "shared_down")
)
"""Products that a policy can keep by name, in any model. Those of the experts are in a kernel: kept with everything else or not."""

Function = TypeVar("Function", bound=Callable[..., Any])


def remembered(function: Function) -> Function:
    """The result is kept: thousands of settings ask for it. A frozen model has a hash, which its type does not say."""
    return cast(Function, cache(function))


class Product(NamedTuple):
    """A weight of the blocks that every token of a layer is multiplied by.

    Attributes:
        inputs, outputs: the sizes of one matrix of it, from and to.
        copies: how many such matrices a token meets in a layer: of the experts those that it is routed to.
        layers: how many layers have one.
        is_cut: whether `tensor` cuts what it gives.
    """

    inputs: int
    outputs: int
    copies: int
    layers: int
    is_cut: bool


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


def exchange_share(chips: int, torus: tuple[int, ...]) -> float:
    """The share of a chip's links that an all-to-all over so many chips of a slice is as quick as, were each byte to pass one link only.

    On its way to another chip a byte passes those between: on a ring of k chips whose links go both ways ⌊k² / 4⌋ / (k - 1) links at the
    mean. Over several axes its ways add up, each on the links of its axis, and the axis with the longest way decides. Axes are taken as
    in `ring_share`.
    """
    sides: list[int] = []
    for length in sorted(torus, reverse=True):
        if (reached := math.prod(sides)) < chips:
            sides.append(min(length, -(-chips // reached)))
    others = 1 - 1 / math.prod(sides)
    ways = [(side**2 // 4) / side / others for side in sides if side > 1]
    return min((ring_share(side, (side,)) / way for side, way in zip(sides, ways, strict=False)), default=1.0) / len(torus)


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

    The head is not computed again, nor is a product whose result nothing in the backward pass needs (`products`). What the attention kernel
    computes again inside its backward pass is not counted.
    """
    tokens = sequences * model.seq_len
    once = {name: 2 * each.inputs * each.outputs * each.copies * each.layers * tokens for name, each in products(model).items()}
    once[ATTENTION] = step_flops(model, sequences).attention // 3
    kept = kept_names(remat)
    return sum(each for name, each in once.items() if name not in kept)


@remembered
def products(model: ModelConfig) -> dict[str, Product]:
    """The products whose results a block's backward pass needs, by the names of their weights.

    The last one of a block (`down`) is among them only where a norm is behind it: its result is otherwise added, and no gradient needs it.
    """
    found: dict[str, Product] = {}
    for path, spec in jax.tree_util.tree_leaves_with_path(param_specs(model)):
        is_last = spec.group in ("mlp", "experts") and spec.axes[-1] in WRITES_BLOCK
        if not spec.layers or spec.inputs is None or (is_last and not model.post_norms):
            continue
        name = str(path[-1].key)
        sides = spec.shape[spec.num_stacking_axes :]
        copies = model.experts.num_active if EXPERT in spec.axes and model.experts else 1
        layers = len(spec.layers) + (found[name].layers if name in found else 0)
        is_cut = any(axis in CUT_BY_TENSOR for axis in spec.axes[spec.num_stacking_axes + spec.inputs :])
        found[name] = Product(math.prod(sides[: spec.inputs]), math.prod(sides[spec.inputs :]), copies, layers, is_cut)
    return found


def kept_names(remat: Remat) -> frozenset[str]:
    """What is found again, on the device or on the host."""
    match remat:
        case "none":
            return NAMED | {"expert_gate", "expert_up", "expert_down", ATTENTION}
        case "dots":
            return NAMED
        case "full" | "offload":
            return frozenset()
        case Kept():
            return frozenset((*remat.on_device, *remat.on_host))
