"""Attention that only reads, to shared beginnings and to what is kept, against a slow reference in NumPy: one pair of slots at a time."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phasewise.trainer.model.decoding import BLOCK_SLOTS, Branches, Past, attend_branches, attend_past

HEADS, KV_HEADS, WIDTH = 4, 2, 8
WINDOWS = (None, 1, 5)


def drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def reference(query: np.ndarray, key: np.ndarray, value: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """softmax(query · key / √e) · value over the slots that are seen: [b t h e], [b s k e], [b s k e], [b t s]."""
    result = np.zeros_like(query, np.float64)
    for b, t, h in np.ndindex(query.shape[:3]):
        slots, kv = np.flatnonzero(seen[b, t]), h // (HEADS // KV_HEADS)
        weights = np.exp(key[b, slots, kv].astype(np.float64) @ query[b, t, h] / np.sqrt(WIDTH))
        result[b, t, h] = weights / weights.sum() @ value[b, slots, kv]
    return result


@pytest.mark.parametrize("window", WINDOWS)
def test_a_slot_sees_its_own_text_and_no_other(window: int | None):
    """Two rows of 70 slots: a beginning with three ways on, the second of which has two itself; then another text, and empty slots."""
    paths = [[*range(10)], [*range(30)], [*range(30), *range(35, 60)], [*range(30), *range(60, 64)], [64, 65, 66]]
    ends = np.arange(1, 71)
    ends[:10], ends[10:30], ends[30:35], ends[35:60], ends[60:64], ends[64:67] = 64, 64, 35, 60, 64, 67
    paths[1] = [*range(35)]
    positions = np.zeros(70, np.int32)
    seen = np.eye(70, dtype=bool)
    for path in paths:
        positions[path] = np.arange(len(path))
        for place, slot in enumerate(path):
            seen[slot, path[0 if window is None else max(0, place - window + 1) : place + 1]] = True
    query, key, value = drawn(0, 2, 70, HEADS, WIDTH), drawn(1, 2, 70, KV_HEADS, WIDTH), drawn(2, 2, 70, KV_HEADS, WIDTH)
    branches = Branches(jnp.asarray(np.stack([ends] * 2), jnp.int32), jnp.asarray(np.stack([positions] * 2)))
    found = jax.jit(partial(attend_branches, sliding_window=window))(query, key, value, branches)
    np.testing.assert_allclose(found, reference(query, key, value, np.stack([seen] * 2)), atol=1e-5)


@pytest.mark.parametrize("window", [*WINDOWS, 300])
@pytest.mark.parametrize("new", [1, 12])
def test_new_tokens_see_what_is_kept_of_their_row_and_one_another(new: int, window: int | None):
    """Rows that begin in different slots, a past that ends within its second block, and rubbish in what is not filled."""
    length, layers, layer, starts = BLOCK_SLOTS + 30, 3, 1, np.array([0, 7, BLOCK_SLOTS + 20])
    keys, values = drawn(3, layers, 3, 2 * BLOCK_SLOTS, KV_HEADS, WIDTH), drawn(4, layers, 3, 2 * BLOCK_SLOTS, KV_HEADS, WIDTH)
    query, key, value = drawn(5, 3, new, HEADS, WIDTH), drawn(6, 3, new, KV_HEADS, WIDTH), drawn(7, 3, new, KV_HEADS, WIDTH)
    past = Past(
        jnp.asarray(keys.transpose(0, 1, 3, 4, 2)), jnp.asarray(values.swapaxes(2, 3)), jnp.asarray(starts, jnp.int32),
        jnp.int32(length), jnp.int32(layer),
    )  # fmt: skip
    found = jax.jit(partial(attend_past, sliding_window=window))(query, key, value, past)
    kept_keys, kept_values = (np.concatenate([kept[layer, :, :length], own], axis=1) for kept, own in ((keys, key), (values, value)))
    slots = np.arange(length + new)
    back = slots[length:, None] - slots
    seen = (back >= 0) & (back < (window or length + new)) & (slots >= starts[:, None])[:, None]
    np.testing.assert_allclose(found, reference(query, kept_keys, kept_values, seen), atol=1e-5)
