"""Texts grown token by token, many at once: what comes before is computed once and kept.

A batch's contexts end at the same slot. They are read in chunks, so that few shapes are compiled: for each size of cache one program that
reads and one that writes.

Shape letters: r rows, t slots, v vocab, e tokens that end a text.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt

from phasewise.tasks.evaluation.sampling import Sampling, choose_tokens, row_keys
from phasewise.trainer.config import ModelConfig
from phasewise.trainer.model.decoder import project
from phasewise.trainer.model.decoding import Cache, empty_cache, extend
from phasewise.trainer.model.params import Params
from phasewise.trainer.sharding import batch_sharding, on_mesh, parts_here, replicated

CHUNK_TOKENS = 128
"""Tokens of each context that are read at once."""
STEPS_AT_ONCE = 16
"""Tokens between two looks at the texts: some of a text that has ended are in vain."""
CACHE_SLOTS, MAX_ROWS = 36_864, 32
"""Slots of all rows of a batch together, and its rows, on each part of it."""
SHORT_SHARE = 4
"""Texts of at most this part of `seq_len` have a smaller cache, and more of them are in a batch."""


class Prompt(NamedTuple):
    """What is gone on from: a context with room for the new tokens, and how often the same one was asked for before."""

    tokens: Sequence[int]
    repeat: int


class Growing(NamedTuple):
    """A batch between two looks.

    Attributes:
        z: logits of each row's next token.
        step: how many tokens each row has got.
    """

    cache: Cache
    z: Float[Array, "r v"]
    step: Int[Array, ""]


class Grown(NamedTuple):
    """What a row got: its tokens, up to and without the one that ended it, and whether all logits that they come from were finite."""

    tokens: list[int]
    finite: bool


Ended = Callable[[list[int]], bool]
"""Whether a text that has got these tokens needs no more."""


def generate(
    params: Params,
    config: ModelConfig,
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int,
    ends: Collection[int],
    ended: Ended,
    sampling: Sampling = Sampling(),  # noqa: B008  # a frozen tuple
    seed: int = 0,
    mesh: jax.sharding.Mesh | None = None,
) -> list[Grown]:
    """At most `max_new_tokens` tokens behind each prompt, in the order given. Those behind where `ended` was true may be in vain.

    Args:
        ends: the tokens of which the first one ends a text; at least one.
        prompts: with `max_new_tokens` they are at most `config.seq_len` tokens long.
        mesh: the devices that `params` are cut over; None is one device.
    """
    found: list[Grown | None] = [None] * len(prompts)
    for slots, numbers in _batches(prompts, config.seq_len, max_new_tokens, mesh):
        batch = _Batch(params, config, [prompts[number] for number in numbers], slots=slots, seed=seed, sampling=sampling, mesh=mesh)
        for number, grown in zip(numbers, batch.grow(max_new_tokens, sorted(ends), ended), strict=True):
            found[number] = grown
    assert all(grown is not None for grown in found), "a prompt is in no batch"
    return [grown for grown in found if grown is not None]


@partial(jax.jit, static_argnames=("config", "slots", "mesh"))
def read(
    params: Params, tokens: Int[Array, "r t"], starts: Int[Array, " r"], chunks: Int[Array, ""],
    *, config: ModelConfig, slots: int, mesh: jax.sharding.Mesh | None = None,
) -> Growing:  # fmt: skip
    """The contexts, which end where the last of `chunks` chunks ends."""

    def read_all(params: Params, tokens: Array, starts: Array, chunks: Array) -> Growing:
        def read_chunk(number: Array, so_far: tuple[Cache, Array]) -> tuple[Cache, Array]:
            chunk = jax.lax.dynamic_slice_in_dim(tokens, number * CHUNK_TOKENS, CHUNK_TOKENS, axis=1)
            hidden, cache = extend(params, chunk, config, so_far[0])
            return cache, hidden[:, -1:]

        nothing = jnp.zeros((tokens.shape[0], 1, config.d_model), config.compute_dtype)
        cache, last = jax.lax.fori_loop(0, chunks, read_chunk, (empty_cache(config, starts, slots), nothing))
        return Growing(cache, project(params, last, config)[:, 0], jnp.int32(0))

    return on_mesh(read_all, mesh)(params, tokens, starts, chunks)


@partial(jax.jit, static_argnames=("config", "mesh"), donate_argnames="growing")
def write(
    params: Params, growing: Growing, is_done: Bool[Array, " r"], steps: Int[Array, ""], ends: Int[Array, " e"],
    sampling: Sampling, keys: UInt[Array, "r two"], *, config: ModelConfig, mesh: jax.sharding.Mesh | None = None,
) -> tuple[Growing, Int[Array, "r t"], Bool[Array, " r"]]:  # fmt: skip
    """The next `steps` tokens of each row, at most `STEPS_AT_ONCE`; fewer where all rows are done. And whether their logits were finite."""

    def write_all(params: Params, growing: Growing, is_done: Array) -> tuple[Growing, Array, Array]:
        def goes_on(state: tuple[Array, Growing, Array, Array, Array]) -> Array:
            return (state[0] < steps) & ~jnp.all(state[2])

        def write_one(state: tuple[Array, Growing, Array, Array, Array]) -> tuple[Array, Growing, Array, Array, Array]:
            number, (cache, z, step), is_done, written, finite = state
            chosen = choose_tokens(z, sampling, keys, step)
            finite &= is_done | jnp.isfinite(jnp.max(z, axis=-1))
            is_done |= jnp.isin(chosen, ends)
            hidden, cache = extend(params, chosen[:, None], config, cache)
            written = jax.lax.dynamic_update_slice_in_dim(written, chosen[:, None], number, axis=1)
            return number + 1, Growing(cache, project(params, hidden, config)[:, 0], step + 1), is_done, written, finite

        rows = is_done.shape[0]
        nothing = jnp.full((rows, STEPS_AT_ONCE), ends[0], jnp.int32)
        state = jnp.int32(0), growing, is_done, nothing, jnp.ones(rows, jnp.bool_)
        _, growing, _, written, finite = jax.lax.while_loop(goes_on, write_one, state)
        return growing, written, finite

    growing, *found = on_mesh(write_all, mesh)(params, growing, is_done)
    written, finite = found if mesh is None else (jax.lax.with_sharding_constraint(part, replicated(mesh)) for part in found)
    return growing, written, finite


class _Batch:
    """Prompts that grow at once; rows that are left over are empty, and done from the beginning."""

    def __init__(
        self, params: Params, config: ModelConfig, prompts: Sequence[Prompt],
        *, slots: int, seed: int, sampling: Sampling, mesh: jax.sharding.Mesh | None,
    ) -> None:  # fmt: skip
        rows = rows_per_batch(slots, mesh)
        chunks = -(-max(len(prompt.tokens) for prompt in prompts) // CHUNK_TOKENS)
        filled = [prompt.tokens for prompt in prompts] + [[0]] * (rows - len(prompts))
        tokens = np.zeros((rows, -(-slots // CHUNK_TOKENS) * CHUNK_TOKENS), np.int32)
        end = chunks * CHUNK_TOKENS
        for row, of_row in zip(tokens, filled, strict=True):
            row[end - len(of_row) : end] = of_row
        self._params, self._config, self._mesh, self._sampling = params, config, mesh, sampling
        self._prompts, self._rows = prompts, rows
        self._keys = self._placed(row_keys(seed, filled, [*(prompt.repeat for prompt in prompts), *[0] * (rows - len(prompts))]))
        starts = self._placed(np.array([end - len(of_row) for of_row in filled], np.int32))
        self._growing = read(params, self._placed(tokens), starts, np.int32(chunks), config=config, slots=slots, mesh=mesh)

    def grow(self, max_new_tokens: int, ends: Sequence[int], ended: Ended) -> list[Grown]:
        """What each prompt got."""
        tokens: list[list[int]] = [[] for _ in self._prompts]
        finite = np.ones(len(self._prompts), bool)
        is_done = np.arange(self._rows) >= len(self._prompts)
        for start in range(0, max_new_tokens, STEPS_AT_ONCE):
            steps = min(STEPS_AT_ONCE, max_new_tokens - start)
            written, is_finite = self._write(is_done, steps, ends)
            for row in np.flatnonzero(~is_done):
                tokens[row] += written[row, :steps].tolist()
                finite[row] &= is_finite[row]
                is_done[row] = any(end in tokens[row] for end in ends) or ended(tokens[row]) or not finite[row]
            if is_done.all():
                break
        return [Grown(_before(of_row, ends), bool(is_finite)) for of_row, is_finite in zip(tokens, finite, strict=True)]

    def _write(self, is_done: Bool[np.ndarray, " r"], steps: int, ends: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        self._growing, written, finite = write(
            self._params, self._growing, self._placed(is_done), np.int32(steps), np.array(ends, np.int32),
            self._sampling, self._keys, config=self._config, mesh=self._mesh,
        )  # fmt: skip
        return np.asarray(written), np.asarray(finite)

    def _placed(self, rows: np.ndarray) -> np.ndarray | jax.Array:
        return rows if self._mesh is None else jax.device_put(rows, batch_sharding(self._mesh))


def rows_per_batch(slots: int, mesh: jax.sharding.Mesh | None) -> int:
    """Rows with a cache of `slots` slots that grow at once."""
    return min(MAX_ROWS, max(1, CACHE_SLOTS // slots)) * parts_here(mesh)[1]


def _batches(
    prompts: Sequence[Prompt], seq_len: int, max_new_tokens: int, mesh: jax.sharding.Mesh | None
) -> Iterator[tuple[int, list[int]]]:
    """The slots of a batch's cache, and the numbers of its prompts: those of like length together, the longest first."""
    sizes = sorted({-(-seq_len // SHORT_SHARE), seq_len})
    by_size: dict[int, list[int]] = {size: [] for size in sizes}
    for number in sorted(range(len(prompts)), key=lambda number: (-len(prompts[number].tokens), prompts[number].tokens, number)):
        by_size[next(size for size in sizes if len(prompts[number].tokens) + max_new_tokens <= size)].append(number)
    for size, numbers in by_size.items():
        slots = size + CHUNK_TOKENS  # contexts begin anywhere in their first chunk
        rows = rows_per_batch(slots, mesh)
        yield from ((slots, numbers[start : start + rows]) for start in range(0, len(numbers), rows))


def _before(tokens: list[int], ends: Collection[int]) -> list[int]:
    return tokens[: next((place for place, token in enumerate(tokens) if token in ends), len(tokens))]
