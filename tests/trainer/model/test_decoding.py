from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phasewise.trainer.config import ModelConfig
from phasewise.trainer.model.decoder import run_layers
from phasewise.trainer.model.decoding import BLOCK_SLOTS, Branches, Cache, attend_past, empty_cache, extend, hidden_states_of_branches
from phasewise.trainer.model.params import Params, init_params
from tests.trainer.model.families import FAMILIES

HEADS, KV_HEADS, WIDTH = 4, 2, 8


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


@pytest.mark.parametrize("window", [None, 1, 300])
@pytest.mark.parametrize("new", [1, 12])
def test_new_tokens_see_what_is_kept_of_their_row_and_one_another(new: int, window: int | None):
    length, layer, starts = BLOCK_SLOTS + 30, 1, np.array([0, 7, BLOCK_SLOTS + 20])
    keys, values = (drawn(seed, 3, 3, 2 * BLOCK_SLOTS, KV_HEADS, WIDTH) for seed in (3, 4))
    query, key, value = drawn(5, 3, new, HEADS, WIDTH), drawn(6, 3, new, KV_HEADS, WIDTH), drawn(7, 3, new, KV_HEADS, WIDTH)
    kept = jnp.asarray(keys.transpose(0, 1, 3, 4, 2)), jnp.asarray(values.swapaxes(2, 3))
    cache = Cache(*kept, jnp.asarray(starts, jnp.int32), jnp.int32(length))
    found = jax.jit(partial(attend_past, sliding_window=window))(query, key, value, cache, jnp.int32(layer))
    kept_keys, kept_values = (np.concatenate([kept[layer, :, :length], own], axis=1) for kept, own in ((keys, key), (values, value)))
    slots = np.arange(length + new)
    back = slots[length:, None] - slots
    seen = (back >= 0) & (back < (window or length + new)) & (slots >= starts[:, None])[:, None]
    np.testing.assert_allclose(found, reference(query, kept_keys, kept_values, seen), atol=1e-5)


NARROW = {"compute_dtype": "bfloat16", "float32_attention": True, "sliding_window": 5}
CHANGES: dict[str, dict[str, Any]] = {**FAMILIES, "qwen": FAMILIES["qwen"] | NARROW}
Alone = Callable[[np.ndarray], np.ndarray]


@pytest.fixture(scope="module", params=CHANGES)
def config(request: pytest.FixtureRequest, model: ModelConfig) -> ModelConfig:
    return ModelConfig.model_validate({**model.model_dump(), "initializer_std": 0.3, **CHANGES[request.param]})


@pytest.fixture(scope="module")
def params(config: ModelConfig) -> Params:
    return init_params(0, config)


@pytest.fixture(scope="module")
def alone(config: ModelConfig, params: Params) -> Alone:
    compiled = jax.jit(partial(run_layers, config=config))

    def found(tokens: np.ndarray) -> np.ndarray:
        row = np.zeros((1, config.seq_len), np.int32)
        row[0, : len(tokens)] = tokens
        return np.asarray(compiled(params, row)[0])[0, : len(tokens)].astype(np.float32)

    return found


def test_texts_that_grow(config: ModelConfig, params: Params, alone: Alone):
    lengths, read, grown = (20, 13, 24), 24, 6
    texts = np.random.default_rng(0).integers(2, 256, (3, 32))
    rows = np.zeros((3, read), np.int32)
    for row, text, length in zip(rows, texts, lengths, strict=True):
        row[read - length :] = text[:length]
    starts = jnp.array([read - length for length in lengths], jnp.int32)
    step = jax.jit(partial(extend, config=config))
    cache: Cache = jax.jit(lambda: empty_cache(config, starts, read + grown))()
    hidden: list[np.ndarray] = []
    new = [rows[:, start : start + 8] for start in range(0, read, 8)]
    new += [np.stack([text[length + i : length + i + 1] for text, length in zip(texts, lengths, strict=True)]) for i in range(grown)]
    for tokens in new:
        found, cache = step(params, tokens, cache=cache)
        hidden.append(np.asarray(found, np.float32))
    assert int(cache.length) == read + grown
    for row, text, length in zip(np.concatenate(hidden, axis=1), texts, lengths, strict=True):
        assert_close(row[read - length :], alone(text[: length + grown]), config)


def test_texts_that_share_their_beginnings(config: ModelConfig, params: Params, alone: Alone):
    rng = np.random.default_rng(1)
    shared, first, second, other = (rng.integers(2, 256, length) for length in (10, 6, 7, 6))
    row = np.concatenate([shared, first, second, other, [0] * 3]).astype(np.int32)
    ends = np.concatenate([[23] * 10, [16] * 6, [23] * 7, [29] * 6, [30, 31, 32]]).astype(np.int32)
    positions = np.concatenate([np.arange(16), np.arange(10, 17), np.arange(6), [0] * 3]).astype(np.int32)
    run = jax.jit(partial(hidden_states_of_branches, config=config))
    found = np.asarray(run(params, row[None], branches=Branches(ends[None], positions[None])), np.float32)[0]  # pyright: ignore[reportArgumentType]  # arrays of either kind
    assert_close(found[:16], alone(np.concatenate([shared, first])), config)
    assert_close(found[16:23], alone(np.concatenate([shared, second]))[10:], config)
    assert_close(found[23:29], alone(other), config)


def assert_close(found: np.ndarray, expected: np.ndarray, config: ModelConfig) -> None:
    tolerance = 1e-4 if config.compute_dtype == "float32" else 0.1
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)
    assert expected.std() > 0.5  # else the tolerance would say little
