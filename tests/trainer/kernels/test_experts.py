import os
import subprocess
import sys
from collections.abc import Callable
from functools import lru_cache, partial
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import topologies
from jaxtyping import Array

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.kernels import experts
from tests.trainer.model import expert_reference as reference


@pytest.mark.skipif(find_spec("libtpu") is None, reason="libtpu, the compiler for TPUs, is not installed")
def test_no_expert_is_multiplied_with_the_rows_of_another():
    command = [sys.executable, "-m", "tests.trainer.kernels.test_experts", experts.choose("auto", "tpu"), "v5e:2x2"]
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}  # those are for this machine's CPU
    environment |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert 0.9 < float(done.stdout.splitlines()[-1]) < 1.2


D_MODEL, NUM_EXPERTS, NUM_ACTIVE = 16, 6, 2
LOADS: dict[str, Callable[[int], np.ndarray]] = {
    "even": lambda tokens: np.stack([(token + np.array([0, 3])) % NUM_EXPERTS for token in range(tokens)]),
    "uneven": lambda tokens: np.stack([np.random.default_rng(token).permutation(NUM_EXPERTS)[:NUM_ACTIVE] for token in range(tokens)]),
    "all to the same": lambda tokens: np.tile([4, 1], (tokens, 1)),
    "one without tokens": lambda tokens: np.stack([np.array([0, 1, 3, 4, 5])[(token + np.array([0, 2])) % 5] for token in range(tokens)]),
}
"""The experts of each token."""


def some(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


MATRICES = tuple(0.3 * some(seed, *shape) for seed, shape in enumerate([(6, 16, 12), (6, 16, 12), (6, 12, 16)]))


def routed(load: str, tokens: int) -> experts.Routed:
    """As the load says, with gates and scores of no meaning."""
    chosen = jnp.asarray(LOADS[load](tokens), jnp.int32)
    return experts.Routed(chosen, jnp.asarray(some(9, tokens, NUM_ACTIVE)), jnp.zeros((tokens, NUM_EXPERTS)))


def plain(x: Array, gates: Array, matrices: experts.Matrices, chosen: Array) -> Array:
    """Every expert on every token, and most weigh nothing."""
    hidden = jax.nn.silu(jnp.einsum("nd,xdf->nxf", x, matrices.gate)) * jnp.einsum("nd,xdf->nxf", x, matrices.up)
    weights = jnp.sum(jnp.where(chosen[..., None] == jnp.arange(NUM_EXPERTS), gates[..., None], 0), axis=1)
    return jnp.einsum("nxf,xfd,nx->nd", hidden, matrices.down, weights)


def by_kernel(x: Array, gates: Array, matrices: experts.Matrices, chosen: Array, *, kernel: str) -> Array:
    decided = experts.Routed(chosen, gates, jnp.zeros((len(x), NUM_EXPERTS)))
    with jax.numpy_dtype_promotion("strict"):
        return experts.apply_experts(x, decided, *matrices, kernel=kernel)[0]


def by_megablox(x: Array, gates: Array, matrices: experts.Matrices, chosen: Array) -> Array:
    """The program of the TPU's kernel, step by step."""
    with jax.numpy_dtype_promotion("strict"):
        return experts.apply_megablox(x, gates, matrices, experts.sort_by_expert(chosen, NUM_EXPERTS), interpret=True)


def by_small_blocks(x: Array, gates: Array, matrices: experts.Matrices, chosen: Array, *, size: int) -> Array:
    """Of a few rows, so that an expert needs many; those of a kernel hold at least 64."""
    return experts.apply_blocks(x, gates, matrices, experts.sort_by_expert(chosen, NUM_EXPERTS), size)


FORMS: dict[str, Callable[..., Array]] = {
    "megablox": by_megablox,
    "ragged": partial(by_kernel, kernel="ragged"),
    "padded": partial(by_kernel, kernel="padded"),
    "blocks of 5": partial(by_small_blocks, size=5),
}


@lru_cache
def value_and_gradients(form: str) -> Callable[..., Any]:
    """Of Σ sin(result), compiled once for all loads."""
    function = FORMS.get(form, plain)

    def total(*arguments: Any) -> tuple[Array, Array]:
        result = function(*arguments)
        return jnp.sum(jnp.sin(result.astype(jnp.float32))), result

    return jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2), has_aux=True))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("load", LOADS)
def test_values_and_gradients(form: str, load: str):
    x = some(7, 24, D_MODEL)
    decided = routed(load, 24)
    arguments = (jnp.asarray(x), decided.gates, experts.Matrices(*map(jnp.asarray, MATRICES)), decided.chosen)
    (_, found), gradients = value_and_gradients(form)(*arguments)
    as_read = reference.Decision(*(np.asarray(part) for part in decided))
    np.testing.assert_allclose(found, reference.apply_experts(x, as_read, *MATRICES), atol=1e-5)
    expected = value_and_gradients("plain")(*arguments)[1]
    jax.tree.map(partial(np.testing.assert_allclose, atol=2e-5), gradients, expected)
    idle = np.setdiff1d(np.arange(NUM_EXPERTS), np.asarray(decided.chosen))
    for matrix in gradients[2]:
        np.testing.assert_array_equal(matrix[idle], 0)
        assert np.all(np.abs(np.delete(matrix, idle, axis=0)).max((1, 2)) > 1e-3)


@pytest.mark.parametrize("form", ["padded", "ragged", "megablox"])
def test_narrow_tokens_have_narrow_results_and_the_weights_full_gradients(form: str):
    x = jnp.asarray(some(7, 24, D_MODEL), jnp.bfloat16)
    decided = routed("uneven", 24)
    wide = experts.Matrices(*(jnp.asarray(matrix, jnp.bfloat16).astype(jnp.float32) for matrix in MATRICES))
    (_, found), gradients = value_and_gradients(form)(x, decided.gates, wide, decided.chosen)
    (_, value), expected = value_and_gradients("plain")(x.astype(jnp.float32), decided.gates, wide, decided.chosen)
    assert found.dtype == gradients[0].dtype == jnp.bfloat16
    assert all(part.dtype == jnp.float32 for part in jax.tree.leaves(gradients[1:]))
    for one, other in zip(jax.tree.leaves((found, gradients)), jax.tree.leaves((value, expected)), strict=True):
        np.testing.assert_allclose(np.asarray(one, np.float32), other, atol=0.03 * float(jnp.abs(other).max()))


def test_what_is_beyond_the_capacity_is_counted_by_every_kernel():
    x = jnp.asarray(some(7, 24, D_MODEL))
    for kernel in ("padded", "ragged"):
        apply = jax.jit(partial(experts.apply_experts, kernel=kernel))
        for load, expected in {"even": 0, "all to the same": 2 * (24 - 10), "one without tokens": 0}.items():
            assert int(apply(x, routed(load, 24), *map(jnp.asarray, MATRICES))[1]) == expected


def test_auto_takes_the_quickest_of_the_platform():
    for platform, expected in {"cpu": "padded", "gpu": "padded", "tpu": "megablox"}.items():
        assert [experts.choose(kernel, platform) for kernel in ("auto", "padded", "ragged", expected)] == [
            expected,
            "padded",
            "ragged",
            expected,
        ]


@pytest.mark.parametrize("form", ["padded", "ragged", "megablox"])
def test_rows_that_no_expert_has_move_nothing(form: str):
    chosen = np.random.default_rng(3).integers(0, NUM_EXPERTS + 1, (600, 1))
    x = np.where(chosen < NUM_EXPERTS, some(7, 600, D_MODEL), 0).astype(np.float32)
    gates = np.where(chosen < NUM_EXPERTS, some(8, 600, 1), 0).astype(np.float32)

    def total(apply: Callable[..., Array], x: Array, gates: Array, matrices: experts.Matrices) -> Array:
        return jnp.sum(jnp.where(jnp.asarray(chosen) < NUM_EXPERTS, jnp.sin(apply(x, gates, matrices)), 0))

    def by_form(x: Array, gates: Array, matrices: experts.Matrices) -> Array:
        ordered = experts.sort_by_expert(jnp.asarray(chosen), NUM_EXPERTS + 1)
        ordered = ordered._replace(counts=ordered.counts[:-1])
        if form == "megablox":
            return experts.apply_megablox(x, gates, matrices, ordered, interpret=True)
        return experts.apply_sorted(x, gates, matrices, ordered, form)

    arguments = (jnp.asarray(x), jnp.asarray(gates), experts.Matrices(*map(jnp.asarray, MATRICES)))
    found, expected = (
        jax.jit(jax.value_and_grad(partial(total, apply), argnums=(0, 1, 2)))(*arguments)
        for apply in (by_form, partial(plain, chosen=jnp.asarray(chosen)))
    )
    is_there = chosen[:, 0] < NUM_EXPERTS
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-4)
    jax.tree.map(partial(np.testing.assert_allclose, atol=2e-4), found[1][2], expected[1][2])
    for own, other in zip(found[1][:2], expected[1][:2], strict=True):
        np.testing.assert_allclose(own[is_there], other[is_there], atol=2e-5)


def test_a_kernel_that_cannot_run_is_refused():
    with pytest.raises(ConfigError, match="one of auto, padded, ragged, megablox, found gmm"):
        experts.apply_experts(jnp.ones((1, D_MODEL)), routed("even", 1), *map(jnp.asarray, MATRICES), kernel="gmm")
    with pytest.raises(ConfigError, match="megablox needs a TPU, found gpu"):
        experts.choose("megablox", "gpu")


def compiled_flops(kernel: str, topology: str) -> float:
    """FLOPs of a layer's products, compiled for a chip that is not here, as a multiple of what the layer needs."""
    tokens, num_active, num_experts, d_model, d_expert = 1024, 2, 8, 512, 512
    device = next(iter(topologies.get_topology_desc(platform="tpu", topology_name=topology).devices))
    where = jax.sharding.SingleDeviceSharding(device)

    def shape(*sizes: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(sizes, dtype, sharding=where)

    def layer(x: Any, routed: Any, *matrices: Any) -> Any:
        return experts.apply_experts(x, experts.Routed(*routed), *matrices, kernel=kernel)

    routed = (shape(tokens, num_active, dtype=jnp.int32), shape(tokens, num_active), shape(tokens, num_experts))
    inwards, outwards = shape(num_experts, d_model, d_expert), shape(num_experts, d_expert, d_model)
    compiled = jax.jit(layer).lower(shape(tokens, d_model, dtype=jnp.bfloat16), routed, inwards, inwards, outwards).compile()
    analysis: Any = compiled.cost_analysis()
    return float(analysis["flops"]) / (6 * tokens * num_active * d_model * d_expert)


if __name__ == "__main__":
    print(compiled_flops(*sys.argv[1:]))
