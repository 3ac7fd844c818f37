"""The experts behind one function: each token goes through the MLPs that were chosen for it, and none is dropped.

Shape letters: n token, k chosen expert, x expert, d d_model, f d_expert.
"""

import jax
from jaxtyping import Array, Float, Int

from trainer.base.errors import ConfigError
from trainer.kernels.expert_blocks import Matrices, apply_blocks, block_rows, count_overflowed
from trainer.kernels.expert_order import sort_by_expert
from trainer.kernels.expert_ragged import apply_ragged
from trainer.model.router import Routed

KERNELS = ("ragged", "padded")
"""Both run everywhere; `choose` knows where each is quick."""


def apply_experts(
    x: Float[Array, "n d"],
    routed: Routed,
    gate: Float[Array, "x d f"],
    up: Float[Array, "x d f"],
    down: Float[Array, "x f d"],
    *,
    kernel: str = "auto",
) -> tuple[Float[Array, "n d"], Int[Array, ""]]:
    """Σ over the experts of a token of its gate · down(silu(gate(x)) · up(x)) (Trinity report, eqs 15 and 18).

    Products run in the type of `x`, to which the weights are cast where they are used; their sums, the activation and the gates are
    float32. All distributions of tokens are exact, also that of all tokens to the same experts. Gradients go to `x`, to the weights and
    to `routed.gates`.

    Args:
        kernel: "padded" are blocks of a fixed number of rows, "ragged" is `jax.lax.ragged_dot`. "auto" chooses for the platform of this
            process: to compile for another one, name it.

    Returns:
        The result, and how many assignments are beyond 1.25 times the mean load, each expert's by itself (`Load.overflowed`). None of them
        is dropped, whatever the kernel: the number says how much later the slowest device of an even split would be.

    Raises:
        ConfigError: there is no such kernel.
    """
    assert routed.scores.shape[1] == len(gate), f"the router has {routed.scores.shape[1]} experts, there are weights of {len(gate)}"
    ordered = sort_by_expert(routed.chosen, len(gate))
    assignments = routed.chosen.size
    matrices = Matrices(gate, up, down)
    if choose(kernel, jax.default_backend()) == "ragged":
        result = apply_ragged(x, routed.gates, matrices, ordered)
    else:
        result = apply_blocks(x, routed.gates, matrices, ordered, block_rows(assignments, len(gate)))
    return result, count_overflowed(ordered.counts, assignments)


def choose(kernel: str, platform: str) -> str:
    """The kernel that is named, or for "auto" the quicker one of the platform.

    Raises:
        ConfigError: there is no such kernel.
    """
    if kernel == "auto":
        return "ragged" if platform == "tpu" else "padded"
    if kernel not in KERNELS:
        raise ConfigError(f"execution.experts must be one of auto, {', '.join(KERNELS)}, found {kernel}.")
    return kernel
