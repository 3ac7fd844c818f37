"""A layer of experts, forward and backward, against a dense MLP of the same products, on one core.

The sizes of the model that `train_step` trains: 4096 tokens, d_model 256, and a token's experts together as wide as the dense MLP (704).
The layer is routing, sorting, experts, and the gradients with respect to tokens and weights.

python -m experiments.bench.experts TURNS    measures, in this process, and prints a line of JSON
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from experiments.bench.measure import Options, Row, in_turns, on_cores, seconds

TOKENS, D_MODEL, D_FF = 4096, 256, 704
LAYERS = ((8, 2, 0.6), (32, 4, 0.5))
"""Experts, how many a token has, and the least share of the dense rate."""
LEANING = 0.5
"""For the uneven load: the bias goes from minus to plus this, beyond which nearly all tokens have the same experts."""


def rows(options: Options) -> Iterator[Row]:
    with on_cores(1):
        command = [sys.executable, "-m", "experiments.bench.experts", str(max(5, 3 * options.repeats))]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    for (num_experts, num_active, at_least), medians in zip(LAYERS, json.loads(done.stdout.splitlines()[-1]), strict=True):
        name = f"MoE layer of {num_experts} experts, top-{num_active}, share of the dense rate"
        note = f"dense {18 * TOKENS * D_MODEL * D_FF / medians['dense'] / 1e9:.0f} GFLOP/s"
        yield Row(name, medians["dense"] / medians["even"], at_least=at_least, note=note)
        yield Row(f"{name}, uneven load", medians["dense"] / medians["uneven"])


def measure(num_experts: int, num_active: int, turns: int) -> dict[str, float]:
    sides = {"dense": build_dense(), "even": build_sparse(num_experts, num_active, 0.0)}
    sides["uneven"] = build_sparse(num_experts, num_active, LEANING)
    timed: dict[str, Callable[[], float]] = {side: lambda work=work: seconds(work) for side, work in sides.items()}
    in_turns(timed, 1)  # compiles
    return in_turns(timed, turns)


def build_dense() -> Callable[[], object]:
    """The gradients of a SwiGLU MLP."""
    import jax
    import jax.numpy as jnp

    from phasewise.trainer.model.decoder import swiglu

    def loss(x: Any, weights: dict[str, Any]) -> Any:
        return jnp.sum(swiglu(x, weights["gate"], weights["up"], weights["down"]) ** 2)

    weights = {"gate": some(1, D_MODEL, D_FF), "up": some(2, D_MODEL, D_FF), "down": some(3, D_FF, D_MODEL)}
    gradients = jax.jit(jax.grad(loss, argnums=(0, 1)))
    x = some(0, 16, TOKENS // 16, D_MODEL)
    return lambda: jax.block_until_ready(gradients(x, weights))


def build_sparse(num_experts: int, num_active: int, leaning: float) -> Callable[[], object]:
    import jax
    import jax.numpy as jnp

    from phasewise.trainer.config import Experts
    from phasewise.trainer.kernels.experts import apply_experts
    from phasewise.trainer.model.router import route

    d_expert = D_FF // num_active
    experts = Experts(
        num_experts=num_experts,
        num_active=num_active,
        num_shared=0,
        d_expert=d_expert,
        route_scale=1.0,
        num_dense_layers=0,
        balancing=None,
        sequence_loss=0.0,
    )
    bias = jnp.linspace(-leaning, leaning, num_experts)

    def loss(x: Any, router: Any, matrices: tuple[Any, ...]) -> Any:
        result, overflowed = apply_experts(x, route(x, router, bias, experts), *matrices)
        return jnp.sum(result**2), overflowed

    shapes = [(num_experts, D_MODEL, d_expert), (num_experts, D_MODEL, d_expert), (num_experts, d_expert, D_MODEL)]
    matrices = tuple(some(number, *shape) for number, shape in enumerate(shapes, start=1))
    gradients = jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))
    x, router = some(0, TOKENS, D_MODEL), some(4, D_MODEL, num_experts)
    return lambda: jax.block_until_ready(gradients(x, router, matrices))


def some(seed: int, *shape: int) -> Any:
    """Random numbers, on the device."""
    import jax.numpy as jnp

    return jnp.asarray(np.random.default_rng(seed).normal(size=shape) * 0.05, jnp.float32)


if __name__ == "__main__":
    print(json.dumps([measure(num_experts, num_active, int(sys.argv[1])) for num_experts, num_active, _ in LAYERS]))
