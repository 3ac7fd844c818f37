"""Projected time of a step: the largest of its times for arithmetic, memory and networks (roofline: Williams et al., 2009).

No value is measured on a TPU.
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
"""Assumed share of peak for all arithmetic of a step. With recomputed blocks (a quarter more FLOPs) the MFU is 0.48. Published dense runs
have 0.4 to 0.6."""
EXPOSED = 0.1
"""Assumed share of memory and network time without overlap, only in the comparison of plans: of two plans with equal compute, the plan with
less traffic wins."""
WRITES_BLOCK = ("d_model", "expert_d_model")  # last axis of a weight that writes to the residual stream
CUT_BY_TENSOR = ("query_heads", "kv_heads", "d_ff")  # axes of a weight that `tensor` cuts (`trainer.sharding.RULES`)
NAMED = frozenset(
    ("query", "key", "value", "attention_gate", "output", "gate", "up", "down", "router", "shared_gate", "shared_up", "shared_down")
)
"""Products that a policy can store by name. Experts' products are inside a kernel, so only `none` stores them."""

Function = TypeVar("Function", bound=Callable[..., Any])


def remembered(function: Function) -> Function:
    """Cache a function of frozen models, whose type does not declare their hash. The search calls it thousands of times."""
    return cast(Function, cache(function))


class Product(NamedTuple):
    """A weight in the layers that multiplies tokens."""

    inputs: int
    outputs: int
    copies: int  # matrices per token and layer: the routed experts
    layers: int
    is_cut: bool  # `tensor` cuts the result


class StepWork(Frozen):
    """Work of a chip in a step. `ici_seconds` is the time to send within its slice by the links of each operation."""

    flops: float
    hbm_bytes: float
    ici_seconds: float
    dcn_bytes: float
    host_bytes: float


class Roofline(Frozen):
    """Seconds of each term. With full overlap the largest term is the time of the step."""

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
        """The time of a step for the comparison of plans, with a share of the overlapping terms."""
        return self.step_seconds + EXPOSED * (sum(self.model_dump().values()) - self.step_seconds)

    @property
    def binds(self) -> Term:
        """The largest term."""
        terms: dict[Term, float] = self.model_dump()  # type: ignore[assignment]
        return max(terms, key=lambda term: terms[term])


def project(work: StepWork, speeds: Speeds) -> Roofline:
    """Return the terms of a step."""
    return Roofline(
        compute=work.flops / (speeds.flops * UTILISATION),
        hbm=work.hbm_bytes / speeds.hbm_bytes,
        ici=work.ici_seconds,
        dcn=work.dcn_bytes / speeds.dcn_bytes,
        host=work.host_bytes / speeds.host_bytes,
    )


def exchange_share(chips: int, torus: tuple[int, ...]) -> float:
    """Return the effective share of a chip's links in an all-to-all over the given number of chips, relative to one link per byte.

    A byte passes intermediate chips: on a bidirectional ring of k chips ⌊k² / 4⌋ / (k - 1) links on average. Over several axes the paths
    add up, each on its axis, and the slowest axis decides. Axes are selected as in `ring_share`.
    """
    sides: list[int] = []
    for length in sorted(torus, reverse=True):
        if (reached := math.prod(sides)) < chips:
            sides.append(min(length, -(-chips // reached)))
    others = 1 - 1 / math.prod(sides)
    ways = [(side**2 // 4) / side / others for side in sides if side > 1]
    return min((ring_share(side, (side,)) / way for side, way in zip(sides, ways, strict=False)), default=1.0) / len(torus)


def ring_share(chips: int, torus: tuple[int, ...]) -> float:
    """Return the share of a chip's links in a ring: the longest axes of the torus that it spans. Two chips have only one link."""
    spanned, reached = 0, 1
    for length in sorted(torus, reverse=True):
        if reached >= chips:
            break
        spanned, reached = spanned + 1, reached * length
    return max(spanned, 1) / len(torus) * (0.5 if chips == 2 else 1.0)


def recomputed_flops(model: ModelConfig, sequences: int, remat: Remat) -> int:
    """Return the FLOPs of recomputation in a step on all chips: the blocks' `products`, and attention outside its backward kernel."""
    tokens = sequences * model.seq_len
    once = {name: 2 * each.inputs * each.outputs * each.copies * each.layers * tokens for name, each in products(model).items()}
    once[ATTENTION] = step_flops(model, sequences).attention // 3
    kept = kept_names(remat)
    return sum(each for name, each in once.items() if name not in kept)


@remembered
def products(model: ModelConfig) -> dict[str, Product]:
    """Return the products that a block's backward pass needs, by weight. It needs the last product (`down`) only with a norm after it."""
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
    """Return the names of stored results, on the device or on the host."""
    match remat:
        case "none":
            return NAMED | {"expert_gate", "expert_up", "expert_down", ATTENTION}
        case "dots":
            return NAMED
        case "full" | "offload":
            return frozenset()
        case Kept():
            return frozenset((*remat.on_device, *remat.on_host))
