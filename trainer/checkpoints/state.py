"""The content of a checkpoint: the leaves of a state by name, and `about`, which describes the leaves.

A leaf's name is its path: `params.blocks.query`, `optimizer.0.mu.head`. Orbax gets a flat dictionary of names, so that any subset of the
leaves can be read without the types of their containers, for example of a parent's optimizer.

The first state of a phase from its parent's checkpoint: every leaf is carried, fresh or grafted.

| leaf of the phase's state | origin |
|---|---|
| part declared in `start.fresh` | fresh: zeros, ones, empty windows, or for the moving average a copy of the weights |
| part declared in `start.graft` | the other checkpoint |
| all others | the parent's checkpoint |

The parts are `ema`, `optimizer`, `rolling` (windows of norms and losses), `balancing` (momentum of the routers' biases), and `qk_norm` (the
gains of QK-norm with their moments and averages, for a Llama model that becomes a Qwen3 model). A leaf that is missing in its origin is an
error, and so is a leaf of the parent that would be dropped without a declaration.
"""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from phasewise.trainer.base.errors import CheckpointError
from phasewise.trainer.base.wording import name_some
from phasewise.trainer.checkpoints.files import find_damage, is_committed, saved_steps
from phasewise.trainer.config import ModelConfig, RunConfig
from phasewise.trainer.model.params import Params, abstract_params
from phasewise.trainer.step import TrainState, init_state, params_digest

STATE, ABOUT = "state", "about"  # the two items of a checkpoint in Orbax, which are folders
Leaves = dict[str, Any]  # name → array, or its shape and type
LeafTypes = dict[str, dict[str, Any]]  # name → `shape` and `dtype`, as JSON
MAX_NAMED = 3


def leaves_of(tree: Any) -> Leaves:
    """Return name → leaf, in the order of the tree."""
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def tree_like(template: Any, leaves: Mapping[str, Any]) -> Any:
    """Return a tree with the template's structure and these leaves."""
    return jax.tree.unflatten(jax.tree.structure(template), [leaves[name] for name in leaves_of(template)])


def types_of(leaves: Mapping[str, Any]) -> LeafTypes:
    """Return the description of each leaf for `about`."""
    return {name: {"shape": list(leaf.shape), "dtype": str(leaf.dtype)} for name, leaf in leaves.items()}


def read_about(path: Path) -> dict[str, Any]:
    """Return the description of a checkpoint: `run`, `contract` and `leaves`."""
    if not (path / ABOUT).exists():
        raise CheckpointError(f"no checkpoint at {path}. Train the phase that ends there first.")
    try:
        with ocp.Checkpointer(ocp.JsonCheckpointHandler()) as reader:
            about = reader.restore(path.resolve() / ABOUT)
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: its description is not JSON ({error}). Restore it from a copy.") from None
    if not isinstance(about, dict) or not {"run", "contract", "leaves"} <= about.keys():
        raise CheckpointError(f"{path} does not say how it was trained: it must name run, contract and leaves. Train that phase again.")
    return about


def check_whole(path: Path) -> None:
    """Raise `CheckpointError` if a checkpoint is missing, not committed, or damaged."""
    if not path.exists():
        raise CheckpointError(f"no checkpoint at {path}. Train the phase that ends there first.")
    if damage := find_damage(path):
        raise CheckpointError(
            f"{path} {damage}. Restore it from a copy, or start its phase again, which resumes from the checkpoint before."
        )


def read_leaves(path: Path, names: Collection[str], place: Callable[[str], jax.sharding.Sharding | None]) -> Leaves:
    """Return the named leaves with the shardings of `place`, or as NumPy arrays on the host without a sharding."""
    types: LeafTypes = read_about(path)["leaves"]
    wanted: Leaves = {}
    arguments: dict[str, ocp.RestoreArgs] = {}
    for name in names:
        shape = tuple(types[name]["shape"])
        dtype = jnp.dtype(types[name]["dtype"])
        sharding = place(name)
        wanted[name] = jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
        if sharding is None:
            arguments[name] = ocp.RestoreArgs(restore_type=np.ndarray)
        else:
            arguments[name] = ocp.ArrayRestoreArgs(sharding=sharding, global_shape=shape, dtype=dtype)
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        return reader.restore(
            path.resolve() / STATE, args=ocp.args.PyTreeRestore(item=wanted, restore_args=arguments, partial_restore=True)
        )


def read_params(path: Path, config: ModelConfig, *, ema: bool = False, shardings: Params | None = None) -> Params:
    """Return the weights, or their moving average, of an undamaged checkpoint."""
    check_whole(path)
    field = "ema" if ema else "params"
    types = read_about(path)["leaves"]
    found = {name: leaf for name, leaf in types.items() if name.startswith(f"{field}.")}
    if not found:
        raise CheckpointError(f"{path} has no moving average of the weights.")
    wanted = {field: abstract_params(config)}
    check_types(path, found, types_of(leaves_of(wanted)))
    return tree_like(wanted, read_leaves(path, found.keys(), placed(None if shardings is None else {field: shardings})))[field]


def saved_params_digest(path: Path) -> str:
    """Return the `params_digest` of a checkpoint of any model."""
    names = [name for name in read_about(path)["leaves"] if name.startswith("params.")]
    params: dict[str, Any] = {}
    for name, leaf in read_leaves(path, names, lambda _: None).items():
        *outer, last = name.split(".")[1:]
        at = params
        for part in outer:
            at = at.setdefault(part, {})
        at[last] = leaf
    return params_digest(params)


def check_types(path: Path, found: LeafTypes, wanted: LeafTypes) -> None:
    """Raise `CheckpointError` with the first three missing, unexpected or different leaves."""
    differing = [
        f"{name} is {type_in_words(found.get(name))}, not {type_in_words(wanted.get(name))}"
        for name in wanted | found
        if found.get(name) != wanted.get(name)
    ]
    if differing:
        raise CheckpointError(
            f"{path} does not fit the run: {name_some(differing, MAX_NAMED, '; ')}. "
            "Use its training configuration (in its `about`), or restart in another folder."
        )


def type_in_words(leaf: Mapping[str, Any] | None) -> str:
    """Return `float32[2, 3]`."""
    return f"{leaf['dtype']}{leaf['shape']}" if leaf else "nothing"


def placed(shardings: Any | None) -> Callable[[str], jax.sharding.Sharding]:
    """Return the sharding of each leaf by name. Leaves without a sharding are on the first device."""
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    by_name = {} if shardings is None else leaves_of(shardings)
    return lambda name: by_name.get(name, here)


def kept_steps(folder: Path, run: RunConfig) -> list[int]:
    """Return the steps of the phase with a committed checkpoint, oldest first, or an empty list if the last one is missing."""
    steps = [step for step in saved_steps(folder) if run.start_step < step <= run.stop_step and is_committed(folder / str(step))]
    return steps if steps and steps[-1] == run.stop_step else []


def last_steps(folder: Path, run: RunConfig, count: int) -> tuple[int, ...]:
    """Return the steps of the run's last `count` checkpoints, oldest first, up to `stop_step`."""
    steps = kept_steps(folder, run)
    if len(steps) < max(count, 1):
        raise CheckpointError(
            f"the last {count} checkpoints must end with the one of step {run.stop_step}, and {folder} has {len(steps)} of this phase "
            f"({', '.join(map(str, steps)) or 'none'}). Ask for fewer, or have more kept: `checkpoints.keep_all` or `checkpoints.at_steps`."
        )
    chosen = tuple(steps[-count:])
    written = {step: RunConfig.model_validate(read_about(folder / str(step))["run"]) for step in chosen}
    last = written[chosen[-1]]
    if (last.recipe, last.phase, last.model) != (run.recipe, run.phase, run.model):
        raise CheckpointError(
            f"{folder / str(chosen[-1])} is of {last.recipe}/{last.phase} or of another model, not of {run.recipe}/{run.phase}."
        )
    for step, one in written.items():
        if one.digest != last.digest:
            raise CheckpointError(
                f"only checkpoints of one run belong together: {folder / str(step)} was written by the run {one.digest[:12]}, the last one "
                f"by {last.digest[:12]}. Ask for fewer, or train the phase again."
            )
    return chosen


def average_of_last(folder: Path, run: RunConfig, count: int) -> tuple[Params, tuple[int, ...]]:
    """Return the mean of the weights of the run's last `count` checkpoints, and their steps, oldest first.

    Late updates oscillate around the optimum, and their mean is closer to it (Izmailov et al., "Averaging Weights Leads to Wider Optima and
    Better Generalization", 2018). Sums are in float64 on the host, one checkpoint at a time. The mean has the types of the weights. Raises
    CheckpointError if a checkpoint is missing, damaged, or of another run or model.
    """
    chosen = last_steps(folder, run, count)
    total: Any = None
    last: Params | None = None
    for step in chosen:
        last = read_params(folder / str(step), run.model)
        wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), last)
        total = wide if total is None else jax.tree.map(np.add, total, wide)
    return jax.tree.map(lambda leaf, like: jnp.asarray((leaf / count).astype(like.dtype)), total, last), chosen


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
