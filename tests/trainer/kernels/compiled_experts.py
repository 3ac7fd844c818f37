"""A layer of experts, forward, compiled for one chip that is not here, as a process of its own.

python -m tests.trainer.kernels.compiled_experts KERNEL TOPOLOGY    prints its products' FLOPs as a multiple of what the layer needs
"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies

from phasewise.trainer.kernels.experts import Routed, apply_experts

TOKENS, NUM_ACTIVE, NUM_EXPERTS, D_MODEL, D_EXPERT = 1024, 2, 8, 512, 512


def main(kernel: str, topology: str) -> float:
    """The multiple, by XLA's count."""
    device = next(iter(topologies.get_topology_desc(platform="tpu", topology_name=topology).devices))
    where = jax.sharding.SingleDeviceSharding(device)

    def shape(*sizes: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(sizes, dtype, sharding=where)

    def layer(x: Any, routed: Any, *matrices: Any) -> Any:
        return apply_experts(x, Routed(*routed), *matrices, kernel=kernel)

    routed = (shape(TOKENS, NUM_ACTIVE, dtype=jnp.int32), shape(TOKENS, NUM_ACTIVE), shape(TOKENS, NUM_EXPERTS))
    inwards, outwards = shape(NUM_EXPERTS, D_MODEL, D_EXPERT), shape(NUM_EXPERTS, D_EXPERT, D_MODEL)
    compiled = jax.jit(layer).lower(shape(TOKENS, D_MODEL, dtype=jnp.bfloat16), routed, inwards, inwards, outwards).compile()
    analysis: Any = compiled.cost_analysis()
    return float(analysis["flops"]) / (6 * TOKENS * NUM_ACTIVE * D_MODEL * D_EXPERT)


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
