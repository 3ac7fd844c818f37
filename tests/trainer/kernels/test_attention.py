"""Every attention kernel that runs here against one slow reference in NumPy, float64, one pair of positions at a time.

Splash runs interpreted; cuDNN's call runs with jax's XLA implementation of it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phasewise.trainer.kernels import attention, splash
from phasewise.trainer.kernels.attention import attend, implementation

KERNELS: dict[str, Callable[..., jax.Array]] = {
    "xla": implementation("xla"),
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
    Case(7, 2, 2, 16),
    Case(130, 2, 1, 32),
    Case(65, 4, 1, 64, begins=(1, 40, 64)),
    Case(128, 8, 1, 24, begins=(127,)),
    Case(150, 2, 1, 16, sliding_window=70),
    Case(150, 2, 2, 16, sliding_window=1, begins=(75,)),
    Case(40, 2, 1, 128, sliding_window=9, begins=(3, 20)),
)


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
    result = np.zeros_like(q)
    dq = np.zeros_like(q)
    dk = np.zeros_like(k)
    dv = np.zeros_like(v)
    ids = segments(case)
    scale = case.head_dim**-0.5
    group = case.query_heads // case.kv_heads
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
    """The result and the gradients of Σ above · result, by the kernel."""

    @jax.jit
    def both(query: jax.Array, key: jax.Array, value: jax.Array, above: jax.Array) -> tuple[jax.Array, ...]:
        run = partial(KERNELS[kernel], segment_ids=segment_ids, sliding_window=case.sliding_window)
        result, back = jax.vjp(lambda q, k, v: run(q, k, v), query, key, value)
        return result, *back(above)

    # The decoder is strictly typed; the gradient of jax's own XLA attention, which stands in for cuDNN here, is not.
    with jax.numpy_dtype_promotion("standard" if kernel == "cudnn" else "strict"):
        return both(*arrays)


def run(kernel: str, *operands: Any, sliding_window: int | None = None) -> jax.Array:
    return jax.jit(partial(KERNELS[kernel], sliding_window=sliding_window))(*operands)


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
    """With scores of thousands, softmax takes the largest alone: the value of the position that a query points at."""
    t, e = 16, 16
    directions = jnp.eye(t)[None, :, None, :] * 300.0
    value = jnp.asarray(np.random.default_rng(0).normal(size=(1, t, 1, e)), jnp.float32)
    found = run(kernel, directions, directions, value, None)
    np.testing.assert_allclose(found, value, rtol=1e-6)


@every_kernel
def test_what_comes_later_or_belongs_to_another_document_changes_no_bit(kernel: str):
    case = Case(140, 2, 1, 16, begins=(70,))
    query, key, value, _ = operands(case)
    ids = segments(case)
    attend_to = jax.jit(lambda k, v: KERNELS[kernel](query, k, v, ids))
    before = attend_to(key, value)
    later = attend_to(key.at[:, 100:].set(1e4), value.at[:, 100:].set(-1e4))
    np.testing.assert_array_equal(later[:, :100], before[:, :100])
    other = attend_to(key.at[1, :70].set(1e4), value.at[1, :70].set(-1e4))
    np.testing.assert_array_equal(other[1, 70:], before[1, 70:])
    assert not np.array_equal(later[:, 100:], before[:, 100:])


@every_kernel
def test_a_position_alone_in_its_segment_has_its_own_value(kernel: str):
    """All of its past is masked out, whole blocks of it included."""
    case = Case(140, 2, 2, 16)
    query, key, value, _ = operands(case)
    ids = np.zeros((2, 140), np.int32)
    ids[:, -1] = 1
    found = run(kernel, query, key, value, ids)
    np.testing.assert_allclose(found[:, -1], value[:, -1], rtol=1e-6)


@every_kernel
def test_a_window_as_long_as_the_row_is_none(kernel: str):
    case = Case(70, 2, 1, 16)
    query, key, value, _ = operands(case)
    whole = run(kernel, query, key, value, None)
    np.testing.assert_allclose(run(kernel, query, key, value, None, sliding_window=70), whole, rtol=1e-6, atol=1e-6)


def test_attend_takes_xla_on_a_cpu_by_default():
    case = Case(20, 2, 1, 16, sliding_window=5, begins=(7,))
    query, key, value, _ = operands(case)
    ids = jnp.asarray(segments(case))
    expected = run("xla", query, key, value, ids, sliding_window=5)
    for kernel in ("auto", "xla"):
        found = jax.jit(partial(attend, kernel=kernel, sliding_window=5))(query, key, value, ids)
        np.testing.assert_array_equal(found, expected)
