"""The table of rules that cuts array dimensions over devices, and its readers.

`replica` has copies (across slices). `fsdp` cuts weights and optimizer state. `expert` distributes the experts of a layer and acts as
`fsdp` for other weights. `tensor` cuts heads, d_ff and the vocabulary. The rows of a batch are cut over `replica`, `fsdp` and `expert`.
`context` cuts each row along positions and acts as `fsdp` for weights. One device has no mesh (`None`): these functions do nothing.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import Float, Int

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.config import Mesh, ModelConfig, RunConfig
from phasewise.trainer.model.params import ParamSpec, param_specs

T = TypeVar("T")
Device = Any  # a `jax.Device`, which jax leaves untyped
EXPERT_AXIS, TENSOR_AXIS, CONTEXT_AXIS = "expert", "tensor", "context"
BATCH_AXES: tuple[str, ...] = ("replica", "fsdp", EXPERT_AXIS)
MESH_AXES: tuple[str, ...] = (*BATCH_AXES, TENSOR_AXIS, CONTEXT_AXIS)  # axes of every mesh, in the order of `Mesh.sizes`

RULES: Mapping[str, str | tuple[str, ...] | None] = {
    "batch": BATCH_AXES,
    "looked_up_batch": "replica",
    "looked_up_d_model": ("fsdp", EXPERT_AXIS),
    "position": CONTEXT_AXIS,
    "layer": None,
    "d_model": ("fsdp", EXPERT_AXIS, CONTEXT_AXIS),
    "query_heads": TENSOR_AXIS,
    "kv_heads": TENSOR_AXIS,
    "head_dim": None,
    "d_ff": TENSOR_AXIS,
    "vocab": TENSOR_AXIS,
    "expert": EXPERT_AXIS,
    "expert_d_model": ("fsdp", CONTEXT_AXIS),
    "router_expert": None,
}
"""Logical axis → mesh axes that cut it. None is whole on every device.

d_model of a dense weight is also cut over `expert`. Otherwise the dense weights and moments of a large sparse model (16 bytes a weight)
would be several times larger on a device, and the gather costs the same.

`context` also cuts d_model of every weight, because each device computes gradients of its positions, and a reduce-scatter sends half the
bytes of an all-reduce.

`looked_up_batch` is the batch after the embedding lookup. The embedding is cut along d_model, so every device looks up a part of d_model
for all rows of its replica. An exchange along `context` follows (`looked_up_d_model`), then along other axes. In one step XLA would gather
the whole batch on every device.
"""

ACTIVATION_AXES: Mapping[str, str] = {
    "b": "batch", "t": "position", "s": "position", "h": "query_heads", "k": "kv_heads", "f": "d_ff", "v": "vocab",
}  # fmt: skip
"""Shape letter of an activation → logical axis. Other letters, such as d, stay whole, because the batch uses fsdp."""


def context_parts(length: int, *, multiple: int = 1) -> int:
    """Return the number of devices over which the current mesh cuts a row, or 1 if the parts are not multiples of `multiple`."""
    mesh = jax.sharding.get_abstract_mesh()
    parts = 1 if mesh.empty else mesh.shape[CONTEXT_AXIS]
    return parts if length % (parts * multiple) == 0 else 1


def join_rows(x: Float[jax.Array, "*b n"]) -> Float[jax.Array, "*c n"]:
    """Join the rows of a batch, which is faster, unless the mesh cuts rows along positions: then the compiler would gather them."""
    is_cut = x.ndim > 2 and context_parts(x.shape[1]) > 1
    return x if is_cut else x.reshape(-1, x.shape[-1])


def partition_spec(axes: Sequence[str | None]) -> PartitionSpec:
    """Return the partition of an array with these logical axes. None is a whole dimension.

    Raises ConfigError if an axis has no rule, or one mesh axis would cut two dimensions.
    """
    taken: dict[str, str] = {}
    for axis in axes:
        for mesh_axis in _mesh_axes(axis):
            if mesh_axis in taken:
                raise ConfigError(
                    f"each mesh axis can cut one dimension of an array, found {mesh_axis} for both {taken[mesh_axis]} and {axis} of "
                    f"({', '.join(map(str, axes))}): name other logical axes, or change RULES in trainer/sharding.py."
                )
            taken[mesh_axis] = str(axis)
    return PartitionSpec(*(RULES[axis] if axis else None for axis in axes))


def _mesh_axes(axis: str | None) -> tuple[str, ...]:
    if axis is None:
        return ()
    if axis not in RULES:
        raise ConfigError(f"every logical axis needs a rule, found none for {axis!r}: add it to RULES in trainer/sharding.py.")
    rule = RULES[axis]
    return (rule,) if isinstance(rule, str) else rule or ()


def build_mesh(mesh: Mesh, devices: Sequence[Device] | None = None) -> jax.sharding.Mesh:
    """Build a mesh of Auto axes from the devices (default: all). Across TPU slices, `replica` spans the slices.

    Raises ConfigError if the axes' product is not the number of devices, or `replica` cannot span the slices.
    """
    found = list(jax.devices() if devices is None else devices)
    if mesh.devices != len(found):
        raise ConfigError(
            f"execution.mesh must have as many places as there are devices, found {_text(mesh)} = {mesh.devices} places for "
            f"{len(found)} devices: change the mesh, or start on other devices."
        )
    slices = len({getattr(device, "slice_index", 0) for device in found if device.platform == "tpu"})
    if slices <= 1:
        grid = mesh_utils.create_device_mesh(mesh.sizes, found, allow_split_physical_axes=True)
    elif mesh.replica % slices:
        raise ConfigError(
            f"execution.mesh.replica must be a multiple of the number of slices, found {_text(mesh)} for {slices} slices: weights cut "
            f"over the network between slices are slow to gather. Take replica = {slices} and fsdp within a slice."
        )
    else:
        within = (mesh.replica // slices, *mesh.sizes[1:])
        across = (slices, *(1 for _ in mesh.sizes[1:]))
        grid = mesh_utils.create_hybrid_device_mesh(within, across, found, allow_split_physical_axes=True)
    return jax.sharding.Mesh(grid, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def _text(mesh: Mesh) -> str:
    context = f" × context {mesh.context}" if mesh.context > 1 else ""
    return f"replica {mesh.replica} × fsdp {mesh.fsdp} × expert {mesh.expert} × tensor {mesh.tensor}{context}"


def run_mesh(run: RunConfig) -> jax.sharding.Mesh | None:
    """Return the mesh of a run, or None for one device, the first. Raises ConfigError if devices, model or batches do not fit the mesh."""
    mesh, part = run.execution.mesh, run.execution.microbatch_sequences
    check_mesh(mesh, run.model)
    for step, sequences in run.batch.within(run.start_step, run.stop_step):
        check_batch(mesh, sequences, f"the batch from step {step}")
    if part is not None:
        check_batch(mesh, part, "execution.microbatch_sequences")
    return None if mesh.devices == 1 and jax.process_count() == 1 else build_mesh(mesh)


def check_mesh(mesh: Mesh, model: ModelConfig) -> None:
    """Raise `ConfigError` for a mesh that cuts weights or rows into unequal parts, or for an expert axis without experts."""
    if mesh.expert > 1 and model.experts is None:
        raise ConfigError(
            f"expert of execution.mesh needs a model with experts, found {_text(mesh)} for a model without: take fsdp in its place."
        )
    if mesh.context > 1 and model.seq_len % (2 * mesh.context):
        raise ConfigError(
            f"2 × context of execution.mesh must divide seq_len, for a device has two parts of each row in attention, found 2 × "
            f"{mesh.context} for {model.seq_len} positions: take a mesh whose context divides {model.seq_len // 2}."
        )
    sizes = dict(zip(MESH_AXES, mesh.sizes, strict=True))
    for path, spec in jax.tree_util.tree_leaves_with_path(param_specs(model)):
        partition_spec(spec.axes)
        for axis, length in zip(spec.axes, spec.shape, strict=True):
            names = [name for name in _mesh_axes(axis) if sizes[name] > 1]
            if length % (parts := math.prod(sizes[name] for name in names)):
                raise ConfigError(
                    f"{' × '.join(names)} of execution.mesh must divide {axis}, found {parts} for {length} in the weight "
                    f"{jax.tree_util.keystr(path)}: take a mesh whose {' × '.join(names)} divides {length}."
                )


def check_batch(mesh: Mesh, sequences: int, name: str) -> None:
    """Raise `ConfigError` if `replica` × `fsdp` × `expert` does not divide a number of sequences. `name` is the setting in the message."""
    if sequences % (parts := mesh.batch_parts):
        raise ConfigError(
            f"replica × fsdp × expert of execution.mesh must divide {name}, found {mesh.replica} × {mesh.fsdp} × {mesh.expert} = {parts} "
            f"for {sequences} sequences: take a mesh whose replica × fsdp × expert divides {sequences}, or another batch."
        )


def state_shardings(state: T, model: ModelConfig, mesh: jax.sharding.Mesh) -> T:
    """Return a tree with the sharding of each leaf of a training state (arrays, shapes or tracers).

    A mirror of a weight (equal end of the path, equal shape) is cut like the weight: moments, moving average.
    Counts, windows and other small leaves are whole on every device.
    """
    specs = jax.tree_util.tree_leaves_with_path(param_specs(model))
    weights: dict[tuple[str, ...], ParamSpec] = {tuple(entry.key for entry in path): spec for path, spec in specs}

    def sharding(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        keys = tuple(entry.key for entry in path if isinstance(entry, jax.tree_util.DictKey))
        spec = next((weights[keys[start:]] for start in range(len(keys)) if keys[start:] in weights), None)
        if spec is not None and spec.shape == leaf.shape:
            return named_sharding(mesh, *spec.axes)
        assert leaf.ndim <= 1, f"{jax.tree_util.keystr(path)} {leaf.shape} mirrors no weight: it would be whole on every device"
        return named_sharding(mesh)

    return jax.tree_util.tree_map_with_path(sharding, state)


def named_sharding(mesh: jax.sharding.Mesh, *axes: str | None) -> NamedSharding:
    """Return the sharding of arrays with these first logical axes. Without axes, arrays are whole on every device."""
    return NamedSharding(mesh, partition_spec(axes))


def parts_here(mesh: jax.sharding.Mesh | None) -> tuple[tuple[int, ...], int]:
    """Return the parts of a batch's rows on this process's devices (not always neighbours), and the total number of equal parts."""
    if mesh is None:
        return (0,), 1
    grid = mesh.devices.reshape(math.prod(mesh.shape[axis] for axis in BATCH_AXES), -1)
    here = jax.process_index()
    return tuple(part for part, devices in enumerate(grid) if any(device.process_index == here for device in devices)), len(grid)


def place_batch(rows: Int[np.ndarray, "b t"], mesh: jax.sharding.Mesh | None) -> Int[jax.Array | np.ndarray, "b t"]:
    """Place this process's rows (its parts in order) on the mesh, as a part of the whole batch."""
    if mesh is None:
        return rows
    parts, of = parts_here(mesh)
    size = len(rows) // len(parts)

    def part(index: tuple[slice, ...] | None) -> np.ndarray:
        assert index is not None
        first = parts.index((index[0].start or 0) // size) * size
        return rows[first : first + size, index[1]]

    return jax.make_array_from_callback((size * of, *rows.shape[1:]), named_sharding(mesh, "batch", "position"), part)


def constrain(x: T, *axes: str | None) -> T:
    """Cut `x` by its logical axes inside `on_mesh`. A dimension that its mesh axes don't divide stays whole (few held-out rows).

    Otherwise the compiler may cut d_model of an activation, and keep the whole batch on every device.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return x
    return jax.lax.with_sharding_constraint(x, _fitting_spec(cast(jax.Array, x).shape, axes))


def activation_spec(shape: Sequence[int], letters: str) -> PartitionSpec:
    """Return the partition of an activation on the current mesh, by its shape letters."""
    return _fitting_spec(shape, [ACTIVATION_AXES.get(letter) for letter in letters])


def _fitting_spec(shape: Sequence[int], axes: Sequence[str | None]) -> PartitionSpec:
    sizes: Mapping[str, int] = jax.sharding.get_abstract_mesh().shape
    fits = [length % math.prod(sizes[name] for name in _mesh_axes(axis)) == 0 for axis, length in zip(axes, shape, strict=True)]
    return partition_spec([axis if fit else None for axis, fit in zip(axes, fits, strict=True)])


def map_shards(function: Callable[..., jax.Array], *arrays: jax.Array | None, letters: Sequence[str]) -> jax.Array:
    """Apply a kernel that the compiler can't cut to each device's part of the arrays. The result is cut like the first array.

    Valid if the cut dimensions are independent, such as rows and heads in attention. A dot among the letters is a whole dimension.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return function(*arrays)
    specs = [None if array is None else activation_spec(array.shape, of) for array, of in zip(arrays, letters, strict=True)]
    return jax.shard_map(function, in_specs=tuple(specs), out_specs=specs[0], check_vma=False)(*arrays)


def on_mesh(function: Callable[..., T], mesh: jax.sharding.Mesh | None) -> Callable[..., T]:
    """Return `function`, traced with the mesh that `constrain` and the kernels read."""
    if mesh is None:
        return function

    def traced(*arguments: Any, **named: Any) -> T:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return function(*arguments, **named)

    return traced


def compile_step(
    step: Callable[..., tuple[Any, Any]], model: ModelConfig, mesh: jax.sharding.Mesh | None
) -> Callable[..., tuple[Any, Any]]:
    """Compile a train step that donates its state. On a mesh the state keeps its sharding, and measurements are whole on every device."""
    if mesh is None:
        return jax.jit(step, donate_argnums=0)

    def placed(state: Any, *arguments: Any) -> tuple[Any, Any]:
        after, measured = step(state, *arguments)
        after = jax.lax.with_sharding_constraint(after, state_shardings(after, model, mesh))
        return after, jax.lax.with_sharding_constraint(measured, named_sharding(mesh))

    return jax.jit(on_mesh(placed, mesh), donate_argnums=0)
