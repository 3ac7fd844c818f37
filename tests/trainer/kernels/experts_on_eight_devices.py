"""A process with eight devices: experts on meshes and on one device, and what differs. `test_expert_parallel.py` starts it.

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python experts_on_eight_devices.py FOUND.json

FOUND.json has, for each mesh, way and load, what `measure` gives.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from phasewise.trainer.base.storage import write_json
from phasewise.trainer.config import Experts, Mesh
from phasewise.trainer.kernels import expert_parallel
from phasewise.trainer.kernels.expert_parallel import Passage, Way, apply_on_mesh
from phasewise.trainer.kernels.experts import Matrices, Routed
from phasewise.trainer.model.router import mix_experts
from phasewise.trainer.sharding import build_mesh, named_sharding, on_mesh

TOKENS, D_MODEL, D_EXPERT, NUM_EXPERTS, NUM_ACTIVE = 128, 16, 8, 16, 2
RNG = np.random.default_rng(7)
LOADS: dict[str, np.ndarray] = {
    "even": (np.arange(TOKENS)[:, None] + np.array([0, 5])) % NUM_EXPERTS,
    "uneven": np.stack([RNG.permutation(NUM_EXPERTS)[:NUM_ACTIVE] for _ in range(TOKENS)]),
    "all to the same": np.tile([11, 10], (TOKENS, 1)),
    "from one device": np.where(np.arange(TOKENS)[:, None] < TOKENS // 8, [3, 0], (np.arange(TOKENS)[:, None] + [0, 7]) % NUM_EXPERTS),
}
CASES: list[tuple[str, Mesh, Way]] = [
    ("fsdp 8", Mesh(fsdp=8), "dense"),
    ("expert 8", Mesh(expert=8), "dense"),
    ("expert 2 fsdp 2 replica 2", Mesh(expert=2, fsdp=2, replica=2), "dense"),
    ("expert 2 tensor 2 fsdp 2", Mesh(expert=2, tensor=2, fsdp=2), "dense"),
    ("expert 4 fsdp 2", Mesh(expert=4, fsdp=2), "ragged"),
]


def some(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


X, GATES = some(TOKENS, D_MODEL), some(TOKENS, NUM_ACTIVE)
SHAPES = ((NUM_EXPERTS, D_MODEL, D_EXPERT), (NUM_EXPERTS, D_MODEL, D_EXPERT), (NUM_EXPERTS, D_EXPERT, D_MODEL))
MATRICES = Matrices(*(jnp.asarray(0.3 * some(*shape), jnp.float32) for shape in SHAPES))


def ragged_exchange(
    operand: Array, output: Array, input_offsets: Array, send_sizes: Array, output_offsets: Array, recv_sizes: Array, *, axis_name: str
) -> Array:
    """`jax.lax.ragged_all_to_all`, which XLA does not have for CPUs, as its documentation says it. What is announced wrongly is NaN."""
    here = jax.lax.axis_index(axis_name)
    parts = (operand, input_offsets, send_sizes, output_offsets)
    operands, inputs, sizes, outputs = (jax.lax.all_gather(part, axis_name) for part in parts)
    row = jnp.arange(len(output), dtype=jnp.int32)
    for source in range(len(operands)):
        offset = row - outputs[source, here]
        is_there = (offset >= 0) & (offset < sizes[source, here])
        index = jnp.where(is_there, inputs[source, here] + offset, 0)
        output = jnp.where(is_there[:, None], operands[source][index], output)
    is_right = jnp.all(recv_sizes == sizes[:, here]) & jnp.all(inputs + sizes <= len(operand)) & jnp.all(outputs + sizes <= len(output))
    return jnp.where(is_right, output, jnp.full((), jnp.nan, output.dtype))


def total(x: Array, gates: Array, matrices: Matrices, chosen: Array) -> tuple[Array, tuple[Array, Array]]:
    """Σ sin(result), whose gradients are of many sizes; the result; and what overflowed."""
    decided = Routed(chosen, gates, jnp.zeros((TOKENS, NUM_EXPERTS)))
    with jax.numpy_dtype_promotion("strict"):
        result, overflowed = apply_on_mesh(x, decided, matrices, kernel="padded")
    return jnp.sum(jnp.sin(result)), (result, overflowed)


def build(mesh: Mesh | None) -> Callable[[np.ndarray], Any]:
    """Results and gradients for the experts of each token, compiled for the mesh or for one device."""
    devices = None if mesh is None else build_mesh(mesh)
    function = jax.jit(on_mesh(jax.value_and_grad(total, argnums=(0, 1, 2), has_aux=True), devices))

    def run(chosen: np.ndarray) -> Any:
        arguments = (X, GATES, MATRICES, chosen.astype(np.int32))
        return jax.device_get(function(*(arguments if devices is None else jax.device_put(arguments, named_sharding(devices)))))

    return run


def measure(alone: Any, together: Any) -> dict[str, Any]:
    """How far results and gradients lie from those of one device, and whether the results have the same bits."""
    (_, (one, beyond_one)), gradients_one = alone
    (_, (other, beyond_other)), gradients_other = together
    apart = [float(np.max(np.abs(a - b))) for a, b in zip(jax.tree.leaves(gradients_one), jax.tree.leaves(gradients_other), strict=True)]
    return {
        "results": float(np.max(np.abs(one - other))),
        "same_bits": one.tobytes() == other.tobytes(),
        "gradients": apart,
        "overflowed": [int(beyond_one), int(beyond_other)],
    }


def choose_with_ties(mesh: Mesh | None) -> tuple[np.ndarray, list[int]]:
    """Results, and tokens of each expert, of a router whose experts are four times the same four, on tokens of which half are zero."""
    devices = None if mesh is None else build_mesh(mesh)
    experts = Experts(
        num_experts=16, num_active=3, num_shared=0, d_expert=8, route_scale=1.0, num_dense_layers=0, balancing=None, sequence_loss=0.0
    )
    rng = np.random.default_rng(3)
    x = rng.normal(size=(8, 16, 256)).astype(np.float32) * (np.arange(16) % 2)[:, None].astype(np.float32)
    router = np.tile(rng.normal(size=(256, 4)), 4).astype(np.float32)
    shapes = {"expert_gate": (16, 256, 8), "expert_up": (16, 256, 8), "expert_down": (16, 8, 256)}
    weights = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    weights |= {"router": router, "router_bias": np.zeros(16, np.float32)}
    function = jax.jit(on_mesh(lambda x, weights: mix_experts(x, weights, experts, counted=None, kernel="padded"), devices))
    if devices is not None:
        x = jax.device_put(x, named_sharding(devices, "batch"))
        weights = jax.device_put(weights, named_sharding(devices))
    mixed, routing = jax.device_get(function(x, weights))
    return mixed, routing.load.counts.tolist()


def main(found: Path) -> None:
    assert len(jax.devices()) == 8
    jax.lax.ragged_all_to_all = ragged_exchange  # pyright: ignore[reportAttributeAccessIssue]
    single = build(None)
    expected = {load: single(chosen) for load, chosen in LOADS.items()}
    results: dict[str, dict[str, Any]] = {}
    for name, mesh, way in CASES:
        expert_parallel.Passage = partial(lambda way, _, rows, room: Passage(way, rows, room), way)  # pyright: ignore[reportAttributeAccessIssue]
        function = build(mesh)
        results[f"{way}: {name}"] = {load: measure(expected[load], function(chosen)) for load, chosen in LOADS.items()}
    mixed, counts = choose_with_ties(None)
    for name, mesh, _ in CASES[:2]:
        mixed_here, counts_here = choose_with_ties(mesh)
        results[f"ties: {name}"] = {"same_bits": mixed.tobytes() == mixed_here.tobytes(), "counts": [counts, counts_here]}
    write_json(found, results)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
