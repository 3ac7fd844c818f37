from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu.splash_attention import CausalMask, LocalMask, MultiHeadMask, make_splash_mha_single_device

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.config import ModelConfig
from phasewise.trainer.config.execution import check_kernel
from phasewise.trainer.kernels import attention, splash, xla


@pytest.mark.parametrize(
    ("length", "block", "fused"), [(128, 128, True), (384, 384, True), (640, 128, True), (4096, 512, True), (8192, 512, False)]
)
def test_blocks_divide_the_row(length: int, block: int, fused: bool):
    blocks = splash.block_sizes(length)
    assert (blocks.block_q, blocks.block_kv, blocks.block_q_dkv, blocks.block_kv_dkv) == (block,) * 4
    assert (blocks.use_fused_bwd_kernel, blocks.block_q_dq) == (fused, None if fused else block)
    assert blocks.has_backward_blocks


def test_a_kernel_is_built_once_and_belongs_to_no_trace():
    splash.build_kernel.cache_clear()

    def mixed(x: jax.Array) -> jax.Array:
        return splash.attend(x, x, x, None, interpret=True)

    x = jnp.ones((1, 128, 2, 16))
    jax.eval_shape(mixed, x)
    jax.eval_shape(jax.jit(mixed), x)
    assert splash.build_kernel.cache_info().misses == 1
    kernel = splash.build_kernel(2, 128, None, interpret=True)
    assert {type(leaf) for leaf in jax.tree.leaves(kernel)} == {np.ndarray}


@pytest.mark.parametrize("window", [None, 1, 100, 128, 129, 300])
@pytest.mark.parametrize("before", [0, 256])
def test_a_mask_that_judges_blocks_by_their_corners_makes_the_same_kernel(window: int | None, before: int):
    shape = (1024, 1024 + before)
    ours = splash.Causal(shape, before) if window is None else splash.Local(shape, (window - 1, 0), before)
    theirs = CausalMask(shape, before) if window is None else LocalMask(shape, (window - 1, 0), before)
    leaves = [
        jax.tree.leaves(make_splash_mha_single_device(MultiHeadMask([mask] * 2), block_sizes=splash.block_sizes(*shape)))
        for mask in (ours, theirs)
    ]
    for mine, other in zip(*leaves, strict=True):
        np.testing.assert_array_equal(mine, other)


BFLOAT16 = {"compute_dtype": "bfloat16"}
UPCAST = BFLOAT16 | {"float32_attention": True}


@pytest.mark.parametrize(
    ("platform", "changes", "expected"),
    [
        ("tpu", {}, "splash"), ("tpu", BFLOAT16, "splash"), ("cpu", BFLOAT16, "xla"), ("gpu", BFLOAT16, "cudnn"), ("gpu", {}, "xla"),
        ("gpu", UPCAST, "xla"), ("gpu", BFLOAT16 | {"head_dim": 20}, "xla"), ("gpu", BFLOAT16 | {"seq_len": 33}, "xla"),
    ],
)  # fmt: skip
def test_auto_takes_what_can_run(platform: str, changes: dict[str, Any], expected: str, model: ModelConfig):
    assert check_kernel("auto", platform, model.but(**changes)) == expected


@pytest.mark.parametrize(
    ("kernel", "platform", "changes", "reason"),
    [
        ("cudnn", "cpu", BFLOAT16, "needs an NVIDIA GPU, found cpu"),
        ("cudnn", "gpu", {}, "bfloat16 or float16 .* found float32"),
        ("cudnn", "gpu", UPCAST, "found float32"),
        ("cudnn", "gpu", BFLOAT16 | {"head_dim": 20}, "multiple of 8 and at most 256, found 20"),
        ("cudnn", "gpu", BFLOAT16 | {"head_dim": 264}, "found 264"),
        ("cudnn", "gpu", BFLOAT16 | {"seq_len": 33}, "even number of tokens .* found 33"),
        ("splash", "cpu", {}, "needs a TPU, found cpu"),
        ("splash", "gpu", {}, "needs a TPU, found gpu"),
        ("flash", "cpu", {}, "one of auto, splash, cudnn, xla, found flash"),
    ],
)
def test_a_kernel_that_cannot_run_is_refused(kernel: str, platform: str, changes: dict[str, Any], reason: str, model: ModelConfig):
    with pytest.raises(ConfigError, match=f"execution.attention.*{reason}"):
        check_kernel(kernel, platform, model.but(**changes))


KERNELS: dict[str, Callable[..., jax.Array]] = {
    "xla": xla.attend,
    "splash": partial(splash.attend, interpret=True),
    "cudnn": partial(attention.attend_by_cudnn, implementation="xla"),
}
every_kernel = pytest.mark.parametrize("kernel", list(KERNELS))


class Case(NamedTuple):
    """A shape; `begins` are the positions where segments begin in every second row, the others have one segment."""

    length: int
    query_heads: int
    kv_heads: int
    head_dim: int
    sliding_window: int | None = None
    begins: tuple[int, ...] = ()


CASES = (
    Case(7, 2, 2, 16), Case(130, 4, 1, 64, begins=(1, 40, 64)), Case(128, 8, 1, 24, begins=(127,)),
    Case(150, 2, 1, 32, sliding_window=70), Case(40, 2, 1, 128, sliding_window=9, begins=(3, 20)),
)  # fmt: skip


def operands(case: Case, dtype: Any = jnp.float32) -> tuple[jax.Array, ...]:
    """Query, key, value and the gradient of the result, with values that the type can hold exactly."""
    rng = np.random.default_rng(case.length)
    shapes = [(2, case.length, heads, case.head_dim) for heads in (case.query_heads, case.kv_heads, case.kv_heads, case.query_heads)]
    return tuple(jnp.asarray(rng.normal(0, 1, shape), dtype) for shape in shapes)


def segments(case: Case) -> np.ndarray:
    ids = np.zeros((2, case.length), np.int32)
    ids[1, list(case.begins)] = 1
    return np.cumsum(ids, axis=1, dtype=np.int32)


def reference(case: Case, query: Any, key: Any, value: Any, above: Any) -> tuple[np.ndarray, ...]:
    """The result, and the gradients of Σ above · result: query by query, from the definition."""
    q, k, v, d = (np.asarray(x, np.float64) for x in (query, key, value, above))
    result, dq, dk, dv = (np.zeros_like(x) for x in (q, q, k, v))
    ids, scale, group = segments(case), case.head_dim**-0.5, case.query_heads // case.kv_heads
    for b, t, h in np.ndindex(q.shape[:3]):
        past = range(0 if case.sliding_window is None else max(0, t + 1 - case.sliding_window), t + 1)
        seen, kv = [s for s in past if ids[b, s] == ids[b, t]], h // group
        scores = scale * k[b, seen, kv] @ q[b, t, h]
        weights = np.exp(scores - scores.max()) / np.sum(np.exp(scores - scores.max()))
        result[b, t, h] = weights @ v[b, seen, kv]
        of_weights = v[b, seen, kv] @ d[b, t, h]
        of_scores = scale * weights * (of_weights - weights @ of_weights)
        dq[b, t, h] = of_scores @ k[b, seen, kv]
        dk[b, seen, kv] += np.outer(of_scores, q[b, t, h])
        dv[b, seen, kv] += np.outer(weights, d[b, t, h])
    return result, dq, dk, dv


def computed(kernel: str, case: Case, *arrays: jax.Array, segment_ids: np.ndarray | None) -> tuple[jax.Array, ...]:

    @jax.jit
    def both(query: jax.Array, key: jax.Array, value: jax.Array, above: jax.Array) -> tuple[jax.Array, ...]:
        run = partial(KERNELS[kernel], segment_ids=segment_ids, sliding_window=case.sliding_window)
        result, back = jax.vjp(lambda q, k, v: run(q, k, v), query, key, value)
        return result, *back(above)

    # The decoder is strictly typed; the gradient of jax's own XLA attention, which stands in for cuDNN here, is not.
    with jax.numpy_dtype_promotion("standard" if kernel == "cudnn" else "strict"):
        return both(*arrays)


@every_kernel
@pytest.mark.parametrize("case", CASES, ids=str)
def test_result_and_gradients_are_those_of_the_reference(kernel: str, case: Case):
    arrays = operands(case)
    found = computed(kernel, case, *arrays, segment_ids=segments(case) if case.begins else None)
    for name, got, expected in zip(("result", "query", "key", "value"), found, reference(case, *arrays), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5, err_msg=name)


@every_kernel
def test_bfloat16_is_as_near_as_its_rounding(kernel: str):
    case = Case(96, 4, 2, 32, begins=(33,))
    arrays = operands(case, jnp.bfloat16)
    found = computed(kernel, case, *arrays, segment_ids=segments(case))
    assert {part.dtype for part in found} == {jnp.dtype(jnp.bfloat16)}
    for got, expected in zip(found, reference(case, *arrays), strict=True):
        error = np.linalg.norm(np.asarray(got, np.float64) - expected) / np.linalg.norm(expected)
        assert error < 2**-7  # half a unit in the last of eight bits, some times over


@every_kernel
def test_large_scores_neither_overflow_nor_spread(kernel: str):
    directions = jnp.eye(16)[None, :, None, :] * 300.0
    value = jnp.asarray(np.random.default_rng(0).normal(size=(1, 16, 1, 16)), jnp.float32)
    found = jax.jit(partial(KERNELS[kernel], sliding_window=None))(directions, directions, value, None)
    np.testing.assert_allclose(found, value, rtol=1e-6)
