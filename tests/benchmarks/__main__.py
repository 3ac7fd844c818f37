"""`make bench`: figures as ratios within one run. Absolute numbers are this machine's, today's."""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

os.environ.setdefault("JAX_PLATFORMS", "cpu")

REPEATS = 5


def seconds(work: Callable[[], object]) -> float:
    """Median time of a call, after one that is not counted."""
    work()
    times: list[float] = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def train_step() -> tuple[str, float]:
    """Arithmetic of the proxy's step (6 · matrix parameters · tokens) against a large matrix product."""
    import jax
    import jax.numpy as jnp

    from flows.recipes import load_recipe
    from trainer.model.params import count_parameters, init_params
    from trainer.optimizer.adamw import build_optimizer
    from trainer.state import TrainState
    from trainer.step import Scheduled, build_train_step

    phase = load_recipe("marin-8b", "proxy").phase("starling")
    params = init_params(0, phase.model)
    state = TrainState(params, build_optimizer(phase.optimizer, phase.model).init(params), jax.tree.map(jnp.copy, params))
    tokens = np.random.default_rng(0).integers(1, phase.model.vocab_size, (phase.batch.at(phase.stop_step - 1), phase.model.seq_len))
    step, scheduled = build_train_step(phase.model, phase.optimizer), Scheduled(1e-3, 1e-4, 1.0, 0.9)

    def one_step() -> None:
        nonlocal state
        state, metrics = step(state, tokens, scheduled)
        jax.block_until_ready(metrics)

    square = jnp.ones((2048, 2048))
    product = jax.jit(lambda a: a @ a)
    matrix_parameters = count_parameters(phase.model) - phase.model.vocab_size * phase.model.d_model
    step_rate = 6 * matrix_parameters * tokens.size / seconds(one_step)
    return "train step, share of the matrix-product rate", step_rate / (2 * 2048**3 / seconds(lambda: product(square).block_until_ready()))


def permutation() -> tuple[str, float]:
    """A stateless look-up against a table that is already there."""
    from trainer.data.permutation import permute

    length = 1_000_003
    indices = np.random.default_rng(0).integers(0, length, 1_000_000)
    table = np.random.default_rng(1).permutation(length)
    stateless = seconds(lambda: permute("feistel", indices, length=length, key=7))
    return "feistel permutation, times a table look-up", stateless / seconds(lambda: table[indices])


def tokenization() -> tuple[str, float]:
    """Documents to token cache against bare `encode_batch` in one thread."""
    from tasks.data.caches import build_cache
    from tasks.data.documents import read_split_texts, write_documents
    from tasks.data.source import fingerprint
    from tasks.data.standins import StandIn, collect, stand_in_source, write_stand_ins
    from tasks.data.tokenizer import load_tokenizer, train_tokenizer

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        write_stand_ins({"code": collect(StandIn(view="code", where=("stdlib:*.py",), max_bytes=3_000_000))}, place / "sources")
        source = stand_in_source(place / "sources" / "code")
        write_documents("code", source, fingerprint(source), place / "documents")
        train_tokenizer([place / "documents"], 4096, place / "tokenizer.json")
        tokenizer = load_tokenizer(place / "tokenizer.json")
        texts = read_split_texts(place / "documents", "train")
        bare = seconds(lambda: tokenizer.encode_batch_fast(texts, add_special_tokens=False))
        build = seconds(
            lambda: build_cache("code", source, "train", place / "documents", place / "tokenizer.json", "0" * 64, place / "cache")
        )
    return "documents to token cache, share of bare encode_batch", bare / build


def main() -> None:
    """Print the table."""
    for bench in (train_step, permutation, tokenization):
        name, ratio = bench()
        print(f"{name:55s} {ratio:6.2f}")


if __name__ == "__main__":
    main()
