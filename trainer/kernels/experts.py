"""The experts behind one function: each token goes through the MLPs that were chosen for it, and none is dropped.

Shape letters: n token, k chosen expert, x expert, d d_model, f d_expert.
"""

import jax
from jaxtyping import Array, Float, Int

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.kernels.expert_blocks import Matrices, apply_blocks, block_rows, count_overflowed
from phasewise.trainer.kernels.expert_order import Order, sort_by_expert
from phasewise.trainer.kernels.expert_ragged import apply_ragged
from phasewise.trainer.model.router import Routed

KERNELS = ("padded", "ragged", "megablox")
"""The first two run everywhere. `jax.lax.ragged_dot` is there for comparison: with jax 0.10.2, XLA forms every expert's product with every
row for GPUs, v4, v5e, v6e and v7x, and is slow on a CPU; v5p alone has a kernel for it (docs/lab/trainer.md)."""


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
        kernel: "padded" are blocks of a fixed number of rows, "megablox" is jax's kernel for TPUs, "ragged" is `jax.lax.ragged_dot`. "auto"
            chooses for the platform of this process: to compile for another one, name it.

    Returns:
        The result, and how many assignments are beyond 1.25 times the mean load, each expert's by itself (`Load.overflowed`). None of them
        is dropped, whatever the kernel: the number says how much later the slowest device of an even split would be.

    Raises:
        ConfigError: there is no such kernel.
    """
    assert routed.scores.shape[1] == len(gate), f"the router has {routed.scores.shape[1]} experts, there are weights of {len(gate)}"
    ordered = sort_by_expert(routed.chosen, len(gate))
    result = apply_sorted(x, routed.gates, Matrices(gate, up, down), ordered, kernel)
    return result, count_overflowed(ordered.counts, routed.chosen.size)


def apply_sorted(
    x: Float[Array, "n d"], gates: Float[Array, "n k"], matrices: Matrices, ordered: Order, kernel: str
) -> Float[Array, "n d"]:
    """The result of `apply_experts` for sorted assignments. Those behind the last expert's are not computed: their results may be anything.

    Raises:
        ConfigError: there is no such kernel.
    """
    match choose(kernel, "tpu" if kernel == "megablox" else jax.default_backend()):
        case "ragged":
            return apply_ragged(x, gates, matrices, ordered)
        case "megablox":
            from phasewise.trainer.kernels.expert_megablox import apply_megablox  # half a second, for those who need it

            return apply_megablox(x, gates, matrices, ordered)
        case _:
            return apply_blocks(x, gates, matrices, ordered, block_rows(gates.size, len(matrices.gate)))


def choose(kernel: str, platform: str) -> str:
    """The kernel that is named, or for "auto" the quickest of the platform (`jax.default_backend()`, or the one to compile for).

    Raises:
        ConfigError: there is no such kernel, or it cannot run there.
    """
    if kernel == "auto":
        return "megablox" if platform == "tpu" else "padded"
    if kernel not in KERNELS:
        raise ConfigError(f"execution.expert_kernel must be one of auto, {', '.join(KERNELS)}, found {kernel}.")
    if kernel == "megablox" and platform != "tpu":
        raise ConfigError(f"execution.expert_kernel = megablox needs a TPU, found {platform}. Take another kernel, or auto.")
    return kernel
