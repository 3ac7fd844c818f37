"""Texts that grow, and texts that share their beginnings, have the hidden states that the decoder gives each of them alone."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phasewise.trainer.config import ModelConfig
from phasewise.trainer.model.decoder import hidden_states
from phasewise.trainer.model.decoding import Branches, Cache, empty_cache, extend, hidden_states_of_branches
from phasewise.trainer.model.params import Params, init_params
from tests.trainer.model.families import FAMILIES

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
    compiled = jax.jit(partial(hidden_states, config=config))

    def found(tokens: np.ndarray) -> np.ndarray:
        row = np.zeros((1, config.seq_len), np.int32)
        row[0, : len(tokens)] = tokens
        return np.asarray(compiled(params, row))[0, : len(tokens)].astype(np.float32)

    return found


def test_texts_that_grow(config: ModelConfig, params: Params, alone: Alone):
    """Read in chunks of eight, then token by token; rows begin in different slots."""
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
    """A beginning of ten tokens with two ways on, another text, and three empty slots."""
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
