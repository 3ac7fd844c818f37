"""What Splash needs beside right results: blocks that fit, masks made once, and use within a mesh."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu.splash_attention import CausalMask, LocalMask, MultiHeadMask, make_splash_mha_single_device
from jax.sharding import AxisType, Mesh, PartitionSpec

from phasewise.trainer.kernels import splash, xla


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
    """As jax's own, which looks at every place of a block."""
    shape = (1024, 1024 + before)
    ours = splash.Causal(shape, before) if window is None else splash.Local(shape, (window - 1, 0), before)
    theirs = CausalMask(shape, before) if window is None else LocalMask(shape, (window - 1, 0), before)
    leaves = [
        jax.tree.leaves(make_splash_mha_single_device(MultiHeadMask([mask] * 2), block_sizes=splash.block_sizes(*shape)))
        for mask in (ours, theirs)
    ]
    for mine, other in zip(*leaves, strict=True):
        np.testing.assert_array_equal(mine, other)


def test_two_backward_kernels_make_what_one_makes(monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(0)
    query, key, value = (jnp.asarray(rng.normal(size=(1, 256, heads, 16)), jnp.float32) for heads in (2, 1, 1))
    ids = jnp.asarray(np.arange(256) // 100, jnp.int32)[None]

    def gradients() -> tuple[jax.Array, ...]:
        splash.build_kernel.cache_clear()
        run = partial(splash.attend, segment_ids=ids, interpret=True)
        return jax.jit(jax.grad(lambda q, k, v: jnp.sum(run(q, k, v) ** 2), (0, 1, 2)))(query, key, value)

    monkeypatch.setattr(splash, "MAX_BLOCK", 128)
    one = gradients()
    monkeypatch.setattr(splash, "MAX_FUSED_BLOCKS", 1)
    two = gradients()
    splash.build_kernel.cache_clear()
    for got, expected in zip(two, one, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_it_runs_within_a_mesh():
    """Under jit and shard_map; with more devices each has its rows and its heads."""
    mesh = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)
    rng = np.random.default_rng(0)
    query, key, value = (jnp.asarray(rng.normal(size=(2, 130, heads, 16)), jnp.float32) for heads in (4, 2, 2))
    ids = jnp.asarray(np.arange(130) // 50, jnp.int32)[None].repeat(2, axis=0)
    cut = PartitionSpec("fsdp", None, "tensor", None)
    whole = jax.shard_map(
        partial(splash.attend, interpret=True),
        mesh=mesh,
        in_specs=(cut, cut, cut, PartitionSpec("fsdp", None)),
        out_specs=cut,
        check_vma=False,
    )
    found = jax.jit(whole)(query, key, value, ids)
    np.testing.assert_allclose(found, jax.jit(xla.attend)(query, key, value, ids), rtol=1e-5, atol=1e-5)
