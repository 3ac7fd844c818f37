"""How long the loop is stopped while a checkpoint is saved in the background, against saving it at once. Digests are part of both."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.bench.measure import Options, Row, in_turns, seconds
from experiments.bench.startup import peer_run, write_cache
from phasewise.trainer.config import RunConfig

SHAPES: dict[str, dict[str, int]] = {
    "7 M": {},
    "100 M": {"d_model": 640, "d_ff": 2560, "num_layers": 12, "num_query_heads": 10, "num_kv_heads": 5, "vocab_size": 16_384},
}
EMA: dict[str, Any] = {"ema_decay": [[0, 0.995]]}


def rows(options: Options) -> Iterator[Row]:
    """Of two models with Adam's moments and a moving average: four numbers a parameter."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        write_cache(home / "text")
        plain = peer_run(home, "checkpoints").model_dump(mode="json")
        for name, shape in SHAPES.items():
            stability = {**plain["stability"], **EMA}
            run = RunConfig.model_validate({**plain, "stability": stability, "model": {**plain["model"], **shape}})
            yield from _of_run(home / "saved", run, name, options.repeats)


def _of_run(folder: Path, run: RunConfig, name: str, repeats: int) -> Iterator[Row]:
    import jax

    from phasewise.trainer.checkpoints.checkpointer import Checkpoints
    from phasewise.trainer.model.params import count_parameters
    from phasewise.trainer.step import TrainState, init_state

    update = jax.jit(lambda state: jax.tree.map(lambda leaf: leaf + leaf.dtype.type(1), state), donate_argnums=0)
    state: TrainState = jax.block_until_ready(update(init_state(run)))
    step = 0

    def one_update() -> None:
        nonlocal state
        state = jax.block_until_ready(update(state))

    with Checkpoints(folder, run) as checkpoints:

        def save() -> None:
            nonlocal step
            step += 1
            checkpoints.save(step, state, {})

        def stopped() -> float:
            elapsed = seconds(save)
            first = seconds(one_update)
            second = seconds(one_update)
            checkpoints.wait()
            return elapsed + max(0.0, first - second)

        def at_once() -> float:
            return seconds(lambda: (save(), checkpoints.wait()))

        for _ in range(2):  # compiles both copies: the first makes the memory that the others use
            stopped()
        found = in_turns({"stopped": stopped, "at once": at_once}, repeats)
    shutil.rmtree(folder)
    note = f"{found['stopped']:.3f} of {found['at once']:.2f} s, {count_parameters(run.model) / 1e6:.0f} M parameters"
    yield Row(
        f"checkpoint, {name} parameters, share of a synchronous save that the loop is stopped",
        found["stopped"] / found["at once"],
        at_most=0.1,
        note=note,
    )
