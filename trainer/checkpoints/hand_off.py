"""The first state of a phase from its parent's checkpoint: every leaf is carried, fresh or grafted.

| leaf of the phase's state | origin |
|---|---|
| part declared in `start.fresh` | fresh: zeros, ones, empty windows, or for the moving average a copy of the weights |
| part declared in `start.graft` | the other checkpoint |
| all others | the parent's checkpoint |

The parts are `ema`, `optimizer`, `rolling` (windows of norms and losses), `balancing` (momentum of the routers' biases), and `qk_norm` (the
gains of QK-norm with their moments and averages, for a Llama model that becomes a Qwen3 model). A leaf that is missing in its origin is an
error, and so is a leaf of the parent that would be dropped without a declaration.
"""

from pathlib import Path

import jax
import jax.numpy as jnp

from phasewise.trainer.base.errors import CheckpointError
from phasewise.trainer.base.wording import name_some
from phasewise.trainer.checkpoints.state import (
    MAX_NAMED,
    LeafTypes,
    Leaves,
    check_whole,
    leaves_of,
    placed,
    read_about,
    read_leaves,
    saved_params_digest,
    tree_like,
    type_in_words,
    types_of,
)
from phasewise.trainer.config import RunConfig
from phasewise.trainer.state import TrainState, init_state

QK_NORM_WEIGHTS = ("query_norm", "key_norm")
DECLARABLE = ("ema", "optimizer", "rolling", "balancing", "qk_norm")


def state_to_start_from(run: RunConfig, shardings: TrainState | None = None) -> TrainState:
    """Return the first state of a phase, with these shardings or on the first device.

    A parent's moving average, windows or momentum of balancing that the phase does not keep are dropped. The recipe must declare their end
    as a change of `ema`, `max_update_norm`, `skip_step` or `balancing`. Raises CheckpointError if a checkpoint is missing, damaged or of
    other weights than planned, or a leaf is not carried or declared.
    """
    if run.start is None and shardings is None:
        # on the device like a restored state: else a restart compiles another program for the step
        return jax.device_put(init_state(run), jax.local_devices()[0])
    if run.start is None:
        return jax.jit(lambda: init_state(run), out_shardings=shardings)()
    template = jax.eval_shape(lambda: init_state(run))
    wanted = types_of(leaves_of(template))
    origins = _origins(run, wanted)
    place = placed(shardings)
    leaves: Leaves = {}
    for checkpoint in sorted({origin for origin in origins.values() if origin is not None}):
        leaves |= read_leaves(Path(checkpoint), [name for name, origin in origins.items() if origin == checkpoint], place)
    fresh = [name for name, origin in origins.items() if origin is None]
    made = {name: place(name) for name in fresh if not name.startswith("ema.")}
    if made:  # the other leaves are not computed
        initial = jax.jit(lambda: {name: leaf for name, leaf in leaves_of(init_state(run)).items() if name in made}, out_shardings=made)
        leaves |= initial()
    averages = {name: leaves["params." + name.removeprefix("ema.")] for name in fresh if name.startswith("ema.")}
    return tree_like(template, leaves | {name: jnp.copy(weight) for name, weight in averages.items()})  # a step donates both


def _origins(run: RunConfig, wanted: LeafTypes) -> dict[str, str | None]:
    """Return the checkpoint of each leaf, or None for a fresh leaf."""
    start = run.start
    assert start is not None
    planned = {start.checkpoint: start.params_digest, **{graft.checkpoint: graft.params_digest for graft in start.graft}}
    found: dict[str, LeafTypes] = {}
    for checkpoint, expected in planned.items():
        check_whole(Path(checkpoint))
        if (digest := saved_params_digest(Path(checkpoint))) != expected:
            raise CheckpointError(
                f"{checkpoint} holds other weights than phase {run.phase} was planned from: expected {expected[:12]}, "
                f"found {digest[:12]}. Run the recipe again."
            )
        found[checkpoint] = read_about(Path(checkpoint))["leaves"]
    parts: dict[str, tuple[str, ...]] = {}  # of each leaf, the narrowest first
    for name in wanted:
        field = name.split(".", 1)[0]
        parts[name] = ("qk_norm", field) if name.rsplit(".", 1)[-1] in QK_NORM_WEIGHTS else (field,)
    there = {part for of_leaf in parts.values() for part in of_leaf}
    declared = [*start.fresh, *(graft.part for graft in start.graft)]
    problems = [f"{part!r} is declared, and the phase's state has no such part: take it out" for part in declared if part not in there]
    twice = sorted({part for part in declared if declared.count(part) > 1})
    problems += [f"{part!r} is declared twice: make it fresh or graft it from one checkpoint" for part in twice]
    places: dict[str, str | None] = {graft.part: graft.checkpoint for graft in start.graft} | dict.fromkeys(start.fresh)
    origins: dict[str, str | None] = {}
    for name, kind in wanted.items():
        origin = origins[name] = next((places[part] for part in parts[name] if part in places), start.checkpoint)
        if origin is None or (saved := found[origin].get(name)) == kind:
            continue
        part = next((part for part in parts[name] if part in DECLARABLE), None)
        todo = f"declare {part!r} in the hand-off's `fresh`, or graft it" if part else "the model must have the parent's weights"
        problems.append(f"{name} is {type_in_words(saved)} in {origin}, not {type_in_words(kind)}: {todo}")
    for name in sorted(found[start.checkpoint].keys() - wanted.keys()):
        field = name.split(".", 1)[0]
        group = ".".join(name.split(".")[: 2 if field == "rolling" else 1])
        let_go = field in ("ema", "rolling", "balancing") and not any(f"{kept}.".startswith(f"{group}.") for kept in wanted)
        if not let_go and field not in declared:
            todo = f"declare {field!r} in the hand-off's `fresh`" if field in DECLARABLE else "a phase cannot leave out weights"
            problems.append(f"{name} of {start.checkpoint} would be dropped: {todo}")
    if problems:
        raise CheckpointError(f"phase {run.phase} cannot start from {start.checkpoint}: {name_some(problems, MAX_NAMED, '; ')}.")
    return origins
