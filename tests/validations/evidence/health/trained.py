"""Real runs of a tiny model, in which a phenomenon is provoked."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import jax
import numpy as np

from phasewise.trainer.config import AdamW, ModelConfig, Rope
from phasewise.trainer.interventions import Scheduled
from phasewise.trainer.loss import objective_sums
from phasewise.trainer.metrics import Row
from phasewise.trainer.model.decoder import head_weight, run_layers
from phasewise.trainer.model.params import Params, init_params
from phasewise.trainer.optimizer import build_optimizer
from phasewise.trainer.recorder import values_of
from phasewise.trainer.step import TrainState, TrainStep, build_train_step

MODEL = ModelConfig(
    vocab_size=256, seq_len=32, num_layers=1, d_model=32, d_ff=48, num_query_heads=4, num_kv_heads=2, head_dim=8,
    rope=Rope(theta=10_000.0, scaling=None), rms_norm_epsilon=1e-5, initializer_std=0.02, compute_dtype="float32", qk_norm=False,
    tied_head=False, sliding_window=None, float32_attention=False,
)  # fmt: skip
OPTIMIZER = AdamW(kind="adamw", beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1)
EVERY = 10  # updates from one evaluation to the next
Batches = Callable[[int, np.random.Generator], np.ndarray]


@dataclass(frozen=True)
class Run:
    """How the tiny model is trained: the learning rate, batch and z-loss of an update, by its number."""

    learning_rate: Callable[[int], float]
    batch: Batches
    updates: int = 300
    z_loss: Callable[[int], float] = lambda _: 1e-4
    max_grad_norm: float = 1.0
    ema_decay: float = 0.9


def counting(_: int, rng: np.random.Generator) -> np.ndarray:
    """Eight sequences, each of which counts on by 1 to 4 with a few slips: something to learn, and something that can't be."""
    strides = rng.integers(1, 5, (8, 1))
    firsts = rng.integers(1, 255, (8, 1))
    tokens = 1 + (firsts + strides * np.arange(32)) % 255
    return np.where(rng.random(tokens.shape) < 0.05, rng.integers(1, 256, tokens.shape), tokens).astype(np.int32)


def noise(_: int, rng: np.random.Generator) -> np.ndarray:
    return rng.integers(1, 256, (8, 32)).astype(np.int32)


def cosine(step: int) -> float:
    """A warm-up of 20 updates, and half a cosine from 3e-3 to 3e-4 over 300."""
    return 3e-3 * min((step + 1) / 20, 0.55 + 0.45 * np.cos(np.pi * step / 300))


def train(run: Run) -> list[Row]:
    """The rows that the trainer would write, with evaluations of the weights and of their average."""
    train_step, evaluate = _compiled()
    params = init_params(0, MODEL)
    state = TrainState(params, build_optimizer(OPTIMIZER, MODEL).init(params), jax.tree.map(lambda leaf: leaf.copy(), params))
    rng = np.random.default_rng(1)
    held_out = counting(0, np.random.default_rng(2))
    rows: list[Row] = []
    for step in range(run.updates):
        rate, z_loss = run.learning_rate(step), run.z_loss(step)
        state, measured = train_step(state, run.batch(step, rng), None, Scheduled(rate, z_loss, run.max_grad_norm, run.ema_decay))
        rows.append({
            "step": step + 1, **values_of(measured), "learning_rate": rate, "z_loss": z_loss, "tokens": 8 * 32, "mixture_since": 0,
            "data_seconds": 0.0, "seconds": float(step),
        })  # fmt: skip
        if (step + 1) % EVERY == 0:
            assert state.ema is not None
            rows[-1] |= {"eval_loss": float(evaluate(state.params, held_out)), "ema_eval_loss": float(evaluate(state.ema, held_out))}
    return rows


@cache
def _compiled() -> tuple[TrainStep, Callable[[Params, np.ndarray], jax.Array]]:
    def evaluate(params: Params, tokens: np.ndarray) -> jax.Array:
        ids = jax.numpy.asarray(tokens)
        _, sums = objective_sums(run_layers(params, ids, MODEL)[0], head_weight(params, MODEL), ids, 0.0)
        return sums.cross_entropy / sums.tokens

    return build_train_step(MODEL, OPTIMIZER), jax.jit(evaluate)
