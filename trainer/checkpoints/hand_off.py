"""From a parent's checkpoint to the first state of a phase: every leaf is carried, made fresh or grafted, and nothing else happens to one.

| leaf of the phase's state | where it comes from |
|---|---|
| part declared in `start.fresh` | fresh: zeros, ones, empty windows; the moving average is a copy of the weights |
| part declared in `start.graft` | the other checkpoint |
| all else | the parent's checkpoint |

The parts are `ema`, `optimizer`, `rolling` (the windows of norms and losses), `balancing` (the momentum of the routers' biases; the biases
are weights), and `qk_norm`: QK-norm's gains with their moments and
averages, which a model of the Llama family gets when it becomes one of the Qwen3 family. A leaf that is not where it is said to come from
is an error, and so is a leaf of the parent that would be dropped without a word.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from phasewise.trainer.base.errors import CheckpointError
from phasewise.trainer.base.wording import name_some
from phasewise.trainer.checkpoints.state import (
    MAX_NAMED,
    LeafTypes,
    Leaves,
    check_whole,
    first_device,
    leaves_of,
    placed,
    read_about,
    read_leaves,
    saved_params_digest,
    tree_like,
    type_in_words,
    types_of,
)
from phasewise.trainer.config import RunConfig, StartFrom
from phasewise.trainer.state import TrainState, init_state

QK_NORM_WEIGHTS = ("query_norm", "key_norm")
DECLARABLE = ("ema", "optimizer", "rolling", "balancing", "qk_norm")
Origin = str | None
"""The checkpoint that a leaf comes from; None where it is fresh."""


def state_to_start_from(run: RunConfig, shardings: TrainState | None = None) -> TrainState:
    """The first state of a phase: fresh weights, or the parent's state with the declared parts made fresh or grafted.

    A parent's moving average, windows or momentum of balancing that the phase does not keep are let go: that they are no longer kept is a
    change of `ema`, `max_update_norm`, `skip_step` or `balancing`, which the recipe must declare. Each leaf is placed where `shardings`
    says; None is the first device.

    Raises:
        CheckpointError: a checkpoint is missing or damaged or holds other weights than planned; a leaf is neither carried nor declared.
    """
    if run.start is None:
        return _from_scratch(run) if shardings is None else jax.jit(lambda: init_state(run), out_shardings=shardings)()
    start = run.start
    template = jax.eval_shape(lambda: init_state(run))
    wanted = types_of(leaves_of(template))
    found = _checked(run, start)
    origins = {name: _origin(name, start) for name in wanted}
    problems = [*_idle(start, wanted), *_missing(wanted, origins, found), *_dropped(wanted, start, found[start.checkpoint])]
    if problems:
        raise CheckpointError(f"phase {run.phase} cannot start from {start.checkpoint}: {name_some(problems, MAX_NAMED, '; ')}.")
    return tree_like(template, _gathered(run, origins, shardings))


def _from_scratch(run: RunConfig) -> TrainState:
    """Bound to the device as a restored state is: else the step is another program for each, and a restart compiles it again."""
    return jax.device_put(init_state(run), first_device())


def _checked(run: RunConfig, start: StartFrom) -> dict[str, LeafTypes]:
    """The leaves of each checkpoint that is named, which must be whole and hold the weights that were planned with."""
    declared = {start.checkpoint: start.params_digest, **{graft.checkpoint: graft.params_digest for graft in start.graft}}
    for checkpoint, expected in declared.items():
        check_whole(Path(checkpoint))
        found = saved_params_digest(Path(checkpoint))
        if found != expected:
            raise CheckpointError(
                f"{checkpoint} holds other weights than phase {run.phase} was planned from: expected {expected[:12]}, "
                f"found {found[:12]}. Run the recipe again."
            )
    return {checkpoint: read_about(Path(checkpoint))["leaves"] for checkpoint in declared}


def _parts(name: str) -> tuple[str, ...]:
    """The parts that a leaf belongs to; what is declared of the first counts."""
    field = name.split(".", 1)[0]
    return ("qk_norm", field) if name.rsplit(".", 1)[-1] in QK_NORM_WEIGHTS else (field,)


def _origin(name: str, start: StartFrom) -> Origin:
    grafts = {graft.part: graft.checkpoint for graft in start.graft}
    for part in _parts(name):
        if part in start.fresh:
            return None
        if part in grafts:
            return grafts[part]
    return start.checkpoint


def _idle(start: StartFrom, wanted: Iterable[str]) -> list[str]:
    """Declarations of parts that the state has not, and of parts that are to come from two places."""
    there = {part for name in wanted for part in _parts(name)}
    declared = [*start.fresh, *(graft.part for graft in start.graft)]
    idle = [f"{part!r} is declared, and the phase's state has no such part: take it out" for part in declared if part not in there]
    twice = sorted({part for part in declared if declared.count(part) > 1})
    return [*idle, *(f"{part!r} is declared twice: make it fresh or graft it from one checkpoint" for part in twice)]


def _missing(wanted: LeafTypes, origins: Mapping[str, Origin], found: Mapping[str, LeafTypes]) -> list[str]:
    """Leaves that are not where they shall come from."""
    problems: list[str] = []
    for name, origin in origins.items():
        if origin is None or (there := found[origin].get(name)) == wanted[name]:
            continue
        part = next((part for part in _parts(name) if part in DECLARABLE), None)
        what = f"{name} is {type_in_words(there)} in {origin}, not {type_in_words(wanted[name])}"
        todo = f"declare {part!r} in the hand-off's `fresh`, or graft it" if part else "the model must have the parent's weights"
        problems.append(f"{what}: {todo}")
    return problems


def _dropped(wanted: LeafTypes, start: StartFrom, parent: LeafTypes) -> list[str]:
    """Leaves of the parent that nothing declares gone."""
    declared = {*start.fresh, *(graft.part for graft in start.graft)}
    kept = {_group(name) for name in wanted}
    problems: list[str] = []
    for name in parent.keys() - wanted.keys():
        field = name.split(".", 1)[0]
        let_go = field in ("ema", "rolling", "balancing") and _group(name) not in kept
        if not let_go and field not in declared:
            part = next((part for part in _parts(name) if part in DECLARABLE and part != "qk_norm"), None)
            todo = f"declare {part!r} in the hand-off's `fresh`" if part else "a phase cannot leave out weights"
            problems.append(f"{name} of {start.checkpoint} would be dropped: {todo}")
    return sorted(problems)


def _group(name: str) -> str:
    """What is kept or not kept as one: the moving average, and each window."""
    return ".".join(name.split(".")[: 2 if name.startswith("rolling.") else 1])


def _gathered(run: RunConfig, origins: Mapping[str, Origin], shardings: TrainState | None) -> Leaves:
    """Every leaf of the state, from where it comes."""
    place = placed(shardings)
    leaves: Leaves = {}
    for checkpoint in sorted({origin for origin in origins.values() if origin is not None}):
        leaves |= read_leaves(Path(checkpoint), [name for name, origin in origins.items() if origin == checkpoint], place)
    fresh = [name for name, origin in origins.items() if origin is None]
    leaves |= _made_again(run, [name for name in fresh if not name.startswith("ema.")], place)
    averages = {name: leaves["params." + name.removeprefix("ema.")] for name in fresh if name.startswith("ema.")}
    return leaves | {name: jnp.copy(weight) for name, weight in averages.items()}  # a step takes the memory of both


def _made_again(run: RunConfig, names: list[str], place: Any) -> Leaves:
    """These leaves as they are at step 0; the others are not computed."""

    def make() -> Leaves:
        leaves = leaves_of(init_state(run))
        return {name: leaves[name] for name in names}

    return jax.jit(make, out_shardings={name: place(name) for name in names})() if names else {}
