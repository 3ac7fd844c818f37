"""A trainer for which some batches are poison: their update gives a loss that is no number, and weights that are none either.

`python -m tests.trainer.poisoned UPDATES RUN.json [--with-parent]`, updates counted from 0 with commas between. A batch is known by its
tokens, so it is poison whenever it is trained on, and at no other time.
"""

import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

import phasewise.trainer.loop
from phasewise.trainer.config import RunConfig
from phasewise.trainer.data.loader import Loader
from phasewise.trainer.step import build_train_step

SPIKE = 100.0


def poison(run: RunConfig, updates: tuple[int, ...], *, loss: float = np.nan) -> Any:
    """What builds a train step for which the batches of these updates are poison."""
    loader = Loader(run)
    bad = {loader.batch(update).tokens.tobytes() for update in updates}

    def build(*arguments: Any) -> Any:
        train_step = build_train_step(*arguments)

        def step(state: Any, tokens: Any, segment_ids: Any, scheduled: Any) -> Any:
            is_bad = np.asarray(tokens).tobytes() in bad
            state, measured = train_step(state, tokens, segment_ids, scheduled)
            if is_bad:
                measured = measured._replace(loss=jax.numpy.float32(loss))
                state = state._replace(params=jax.tree.map(lambda weight: weight * np.float32(np.nan), state.params))
            return state, measured

        return step

    return build


if __name__ == "__main__":
    from phasewise.trainer.run import main, read_run

    run = read_run(Path(sys.argv[2]))
    phasewise.trainer.loop.build_train_step = poison(run, tuple(int(update) for update in sys.argv[1].split(",")))
    sys.exit(main(sys.argv[2:]))
