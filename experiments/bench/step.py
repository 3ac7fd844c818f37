"""Arithmetic of the proxy's train step (6 · matrix parameters · tokens) against a large matrix product."""

from collections.abc import Iterator

import numpy as np

from experiments.bench.measure import Options, Row, in_turns, seconds

SIDE = 2048


def rows(options: Options) -> Iterator[Row]:
    """The step's share of the matrix-product rate."""
    import jax
    import jax.numpy as jnp

    from phasewise.flows.recipes import load_recipe
    from phasewise.trainer.interventions import Scheduled
    from phasewise.trainer.model.params import count_parameters, init_params
    from phasewise.trainer.optimizer import build_optimizer
    from phasewise.trainer.step import TrainState, build_train_step

    phase = load_recipe("marin-8b", "proxy").phase("starling")
    params = init_params(0, phase.model)
    state = TrainState(params, build_optimizer(phase.optimizer, phase.model).init(params), jax.tree.map(jnp.copy, params))
    tokens = np.random.default_rng(0).integers(1, phase.model.vocab_size, (phase.batch.at(phase.stop_step - 1), phase.model.seq_len))
    step = build_train_step(phase.model, phase.optimizer)
    scheduled = Scheduled(1e-3, 1e-4, 1.0, 0.9)

    def one_step() -> None:
        nonlocal state
        state, metrics = step(state, tokens, None, scheduled)
        jax.block_until_ready(metrics)

    square = jnp.ones((SIDE, SIDE))
    product = jax.jit(lambda a: a @ a)
    sides = {"step": lambda: seconds(one_step), "product": lambda: seconds(lambda: product(square).block_until_ready())}
    in_turns(sides, 1)  # compiles
    medians = in_turns(sides, options.repeats)
    matrix_parameters = count_parameters(phase.model) - phase.model.vocab_size * phase.model.d_model
    step_rate = 6 * matrix_parameters * tokens.size / medians["step"]
    yield Row("train step, share of the matrix-product rate", step_rate / (2 * SIDE**3 / medians["product"]))
