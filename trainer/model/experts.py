"""The experts of a layer in place of its MLP: routed, computed, and measured.

Shape letters: b batch, t position, d d_model; n token (rows of a batch one after the other).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from phasewise.trainer.config import Experts
from phasewise.trainer.kernels.expert_blocks import Matrices
from phasewise.trainer.kernels.expert_parallel import apply_on_mesh
from phasewise.trainer.kernels.rows import join_rows
from phasewise.trainer.model.params import Params
from phasewise.trainer.model.router import Load, measure_load, route, sequence_loss
from phasewise.trainer.sharding import constrain


class Routing(NamedTuple):
    """What the router of a layer did with a part of a batch; sums over its tokens, which add up. With a first axis, of several layers.

    Attributes:
        sequence_loss: `trainer.model.router.sequence_loss`, without its weight. It alone has gradients.
    """

    load: Load
    sequence_loss: Float[Array, "*layer"]


def mix_experts(
    x: Float[Array, "b t d"], weights: Params, experts: Experts, *, counted: Bool[Array, "b t"] | None, kernel: str
) -> tuple[Float[Array, "b t d"], Routing]:
    """Σ of the gated experts of each token (Trinity report, eq. 15, without the shared expert), and what the router did.

    Args:
        counted: False for tokens that are padding; None counts all.
        kernel: `Execution.expert_kernel`.
    """
    rows = x.shape[0]
    flat = join_rows(x)
    is_counted = None if counted is None else counted.reshape(flat.shape[:-1])
    router = constrain(weights["router"], None, None)  # whole everywhere: a token's logits are summed on its own device
    routed = route(flat, router, weights["router_bias"], experts)
    matrices = Matrices(weights["expert_gate"], weights["expert_up"], weights["expert_down"])
    mixed, overflowed = apply_on_mesh(flat, routed, matrices, kernel=kernel)
    routing = Routing(measure_load(routed, overflowed, is_counted), sequence_loss(routed, rows, is_counted))
    return mixed.reshape(x.shape), routing


def in_layer_order(routings: dict[tuple[int, ...], Routing]) -> Routing | None:
    """The routings of several stacks as one, its first axis in the order of the layers; the keys are the numbers of their layers."""
    if not routings:
        return None
    numbers = [layer for layers in routings for layer in layers]
    order = jnp.asarray(sorted(range(len(numbers)), key=numbers.__getitem__), jnp.int32)
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves)[order], *routings.values())
