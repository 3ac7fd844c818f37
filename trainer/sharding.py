"""Which dimension of which array is cut over which devices: one table of rules, and everything that reads it.

`replica` holds copies (over slices, where there are several), `fsdp` cuts weights and optimizer state, `expert` deals out the experts of a
layer and is a part of `fsdp` for all other weights, `tensor` cuts heads, d_ff and the vocabulary. The rows of a batch are cut over
`replica`, `fsdp` and `expert`; each row is cut along its positions over `context`, which is a part of `fsdp` for all weights. On one device
there is no mesh (`None`), and nothing here does anything.
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


def context_parts(length: int, *, multiple: int = 1) -> int:
    """Over how many devices the mesh in sight cuts a row of this length; 1 where it does not divide it.

    Args:
        multiple: what a part must be a multiple of.
    """
    mesh = jax.sharding.get_abstract_mesh()
    parts = 1 if mesh.empty else mesh.shape[CONTEXT_AXIS]
    return parts if length % (parts * multiple) == 0 else 1


def join_rows(x: Float[jax.Array, "*b n"]) -> Float[jax.Array, "*c n"]:
    """The rows of a batch as one long row, which is quicker; as they are where the mesh in sight cuts rows along their positions.

    Joined, such rows would lie in pieces that no mesh can name, and the compiler would gather them.
    """
    is_cut = x.ndim > 2 and context_parts(x.shape[1]) > 1
    return x if is_cut else x.reshape(-1, x.shape[-1])


def map_tokens(function: Callable[[jax.Array], jax.Array], x: Float[jax.Array, "*n c"]) -> jax.Array:
    """`function` of the tokens that each device has, where it takes each by itself and the compiler would gather them, as for `top_k`."""
    if jax.sharding.get_abstract_mesh().empty:
        return function(x)
    spec = activation_spec(x.shape, "bt"[: x.ndim - 1] + ".")
    return jax.shard_map(function, in_specs=spec, out_specs=spec, check_vma=False)(x)


T = TypeVar("T")
Device = Any
"""A `jax.Device`; jax gives it no type."""
MESH_AXES: tuple[str, ...] = ("replica", "fsdp", "expert", "tensor", "context")
"""The axes of every mesh, those that cut the rows of a batch first."""
BATCH_AXES: tuple[str, ...] = ("replica", "fsdp", "expert")
EXPERT_AXIS = "expert"
TENSOR_AXIS = "tensor"
CONTEXT_AXIS = "context"

RULES: Mapping[str, str | tuple[str, ...] | None] = {
    "batch": BATCH_AXES,
    "looked_up_batch": "replica",
    "looked_up_d_model": ("fsdp", "expert"),
    "position": CONTEXT_AXIS,
    "layer": None,
    "d_model": ("fsdp", "expert", CONTEXT_AXIS),
    "query_heads": "tensor",
    "kv_heads": "tensor",
    "head_dim": None,
    "d_ff": "tensor",
    "vocab": "tensor",
    "expert": EXPERT_AXIS,
    "expert_d_model": ("fsdp", CONTEXT_AXIS),
    "router_expert": None,
}
"""Logical axis → the mesh axes that cut it; None is whole on every device.

d_model of a weight that is no expert's is cut over `expert` too: whole along that axis, the dense weights and moments of a large sparse
model would be several times as large on a device (16 bytes a weight), and gathering them costs the same either way.

`context` cuts d_model of every weight for the same reason: each of its devices computes gradients of its own positions alone, and to sum
them into parts sends half of what summing them everywhere would.

`looked_up_batch` is the batch of rows that were just looked up in the embedding, which is cut along d_model: the devices of a replica first
look up their part of d_model for all positions of all rows of the replica, then exchange parts: first along `context`, each for its own
positions (`looked_up_d_model`), then along the other axes. In one step, XLA would gather the whole batch on every device.
"""

ACTIVATION_AXES: Mapping[str, str] = {
    "b": "batch",
    "t": "position",
    "s": "position",
    "h": "query_heads",
    "k": "kv_heads",
    "f": "d_ff",
    "v": "vocab",
}
"""Shape letter of what is computed from a batch → its logical axis. Other letters, such as d, stay whole: the batch has fsdp."""
WHOLE_POSITIONS = str.maketrans("ts", "..")
"""Takes the letters of positions away."""


def partition_spec(axes: Sequence[str | None]) -> PartitionSpec:
    """How an array with these logical axes is cut; None is a dimension that stays whole.

    Raises:
        ConfigError: an axis has no rule, or two dimensions would be cut over one mesh axis.
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
    """The devices (all of them, by default) as a mesh of Auto axes. Where they lie in several TPU slices, `replica` goes over the slices.

    Raises:
        ConfigError: the axes' product isn't the number of devices, or `replica` can't go over the slices.
    """
    found = list(jax.devices() if devices is None else devices)
    shape = _shape(mesh)
    if math.prod(shape) != len(found):
        raise ConfigError(
            f"execution.mesh must have as many places as there are devices, found {_said(mesh)} = {math.prod(shape)} places for "
            f"{len(found)} devices: change the mesh, or start on other devices."
        )
    return jax.sharding.Mesh(_device_grid(mesh, found), MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def _device_grid(mesh: Mesh, devices: list[Device]) -> np.ndarray:
    shape = _shape(mesh)
    slices = len({getattr(device, "slice_index", 0) for device in devices if device.platform == "tpu"})
    if slices <= 1:
        return mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    if mesh.replica % slices:
        raise ConfigError(
            f"execution.mesh.replica must be a multiple of the number of slices, found {_said(mesh)} for {slices} slices: weights cut "
            f"over the network between slices are slow to gather; take replica = {slices} and fsdp within a slice."
        )
    within = (mesh.replica // slices, *shape[1:])
    across = (slices, *(1 for _ in shape[1:]))
    return mesh_utils.create_hybrid_device_mesh(within, across, devices, allow_split_physical_axes=True)


def _shape(mesh: Mesh) -> tuple[int, ...]:
    return mesh.replica, mesh.fsdp, mesh.expert, mesh.tensor, mesh.context


def _said(mesh: Mesh) -> str:
    context = f" × context {mesh.context}" if mesh.context > 1 else ""
    return f"replica {mesh.replica} × fsdp {mesh.fsdp} × expert {mesh.expert} × tensor {mesh.tensor}{context}"


def run_mesh(run: RunConfig) -> jax.sharding.Mesh | None:
    """The mesh of a run; None where it uses one device (the first, if this process sees more).

    Raises:
        ConfigError: the mesh fits neither the devices nor the model nor the batches.
    """
    check_mesh(run.execution.mesh, run.model)
    for step, sequences in run.batch.within(run.start_step, run.stop_step):
        check_batch(run.execution.mesh, sequences, f"the batch from step {step}")
    if run.execution.microbatch_sequences is not None:
        check_batch(run.execution.mesh, run.execution.microbatch_sequences, "execution.microbatch_sequences")
    alone = run.execution.mesh.devices == 1 and jax.process_count() == 1
    return None if alone else build_mesh(run.execution.mesh)


def check_mesh(mesh: Mesh, model: ModelConfig) -> None:
    """Refuse a mesh that does not cut all weights and rows into equal parts, or deals out experts that are not there.

    Raises:
        ConfigError: see above.
    """
    if mesh.expert > 1 and model.experts is None:
        raise ConfigError(
            f"expert of execution.mesh needs a model with experts, found {_said(mesh)} for a model without: take fsdp in its place."
        )
    if mesh.context > 1 and model.seq_len % (2 * mesh.context):
        raise ConfigError(
            f"2 × context of execution.mesh must divide seq_len, for a device has two parts of each row in attention, found 2 × "
            f"{mesh.context} for {model.seq_len} positions: take a mesh whose context divides {model.seq_len // 2}."
        )
    sizes: dict[str, int] = dict(zip(MESH_AXES, _shape(mesh), strict=True))
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
    """Refuse a number of sequences that `replica` × `fsdp` × `expert` does not divide; `name` says where it is set.

    Raises:
        ConfigError: see above.
    """
    if sequences % (parts := mesh.batch_parts):
        raise ConfigError(
            f"replica × fsdp × expert of execution.mesh must divide {name}, found {mesh.replica} × {mesh.fsdp} × {mesh.expert} = {parts} "
            f"for {sequences} sequences: take a mesh whose replica × fsdp × expert divides {sequences}, or another batch."
        )


def state_shardings(state: T, model: ModelConfig, mesh: jax.sharding.Mesh) -> T:
    """The sharding of each leaf of a training state (arrays, shapes or tracers), in a tree like the state's.

    What mirrors a weight (its path ends as the weight's does, and its shape is the same) is cut as the weight is: moments, moving
    average. Counts, windows and other small leaves are whole on every device.
    """
    weights: dict[tuple[str, ...], ParamSpec] = {
        _keys(path): spec for path, spec in jax.tree_util.tree_leaves_with_path(param_specs(model))
    }

    def sharding(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        keys = _keys(path)
        spec = next((weights[keys[start:]] for start in range(len(keys)) if keys[start:] in weights), None)
        if spec is not None and spec.shape == leaf.shape:
            return NamedSharding(mesh, partition_spec(spec.axes))
        assert leaf.ndim <= 1, f"{jax.tree_util.keystr(path)} {leaf.shape} mirrors no weight: it would be whole on every device"
        return replicated(mesh)

    return jax.tree_util.tree_map_with_path(sharding, state)


def _keys(path: tuple[Any, ...]) -> tuple[str, ...]:
    keys: list[str] = []
    for entry in reversed(path):
        if not isinstance(entry, jax.tree_util.DictKey):
            break
        keys.append(str(entry.key))
    return tuple(reversed(keys))


def replicated(mesh: jax.sharding.Mesh) -> NamedSharding:
    """Whole on every device."""
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: jax.sharding.Mesh) -> NamedSharding:
    """Rows over `replica`, `fsdp` and `expert`; what belongs to a row stays together."""
    return NamedSharding(mesh, partition_spec(("batch",)))


def token_sharding(mesh: jax.sharding.Mesh) -> NamedSharding:
    """Rows as `batch_sharding`, and each row along its positions over `context`: a batch that is trained on."""
    return NamedSharding(mesh, partition_spec(("batch", "position")))


def parts_here(mesh: jax.sharding.Mesh | None) -> tuple[tuple[int, ...], int]:
    """Which of how many equal parts of a batch's rows the devices of this process hold, be it of some positions alone.

    On a torus they need not be neighbours.
    """
    if mesh is None:
        return (0,), 1
    places = mesh.devices.reshape(math.prod(mesh.shape[axis] for axis in BATCH_AXES), -1)
    here = jax.process_index()
    return tuple(part for part, devices in enumerate(places) if any(device.process_index == here for device in devices)), len(places)


def place_batch(rows: Int[np.ndarray, "b t"], mesh: jax.sharding.Mesh | None) -> Int[jax.Array | np.ndarray, "b t"]:
    """This process's rows (its parts one after the other) as a part of the whole batch, on the mesh. A device takes its positions."""
    if mesh is None:
        return rows
    parts, of = parts_here(mesh)
    size = len(rows) // len(parts)

    def part(index: tuple[slice, ...] | None) -> np.ndarray:
        assert index is not None
        place = parts.index((index[0].start or 0) // size)
        return rows[place * size : (place + 1) * size, index[1]]

    return jax.make_array_from_callback((size * of, *rows.shape[1:]), token_sharding(mesh), part)


def constrain_activation(x: T, letters: str) -> T:
    """What is computed from a batch, cut as its shape letters say.

    Without this the compiler may cut activations along d_model, where the weights are cut, and keep the whole batch on every device.
    """
    return constrain(x, *(ACTIVATION_AXES.get(letter) for letter in letters))


def constrain(x: T, *axes: str | None) -> T:
    """`x`, cut as its logical axes say, within what `on_mesh` compiles; elsewhere `x` as it is.

    A dimension that its mesh axes don't divide stays whole: a few rows of held-out text may be too few to be cut.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return x
    return jax.lax.with_sharding_constraint(x, _fitting_spec(cast(jax.Array, x).shape, axes))


def activation_spec(shape: Sequence[int], letters: str) -> PartitionSpec:
    """How what is computed from a batch is cut on the mesh in sight, by its shape letters."""
    return _fitting_spec(shape, [ACTIVATION_AXES.get(letter) for letter in letters])


def _fitting_spec(shape: Sequence[int], axes: Sequence[str | None]) -> PartitionSpec:
    sizes: Mapping[str, int] = jax.sharding.get_abstract_mesh().shape
    fits = [length % math.prod(sizes[name] for name in _mesh_axes(axis)) == 0 for axis, length in zip(axes, shape, strict=True)]
    return partition_spec([axis if fit else None for axis, fit in zip(axes, fits, strict=True)])


def map_shards(function: Callable[..., jax.Array], *arrays: jax.Array | None, letters: Sequence[str]) -> jax.Array:
    """`function` of what each device has of the arrays, for kernels that the compiler can't cut. The result is cut as the first array is.

    Right where the dimensions that are cut don't meet one another, as rows and heads in attention. Positions do: they stay whole. Without
    a mesh it is `function`.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return function(*arrays)
    specs = [
        None if array is None else activation_spec(array.shape, of.translate(WHOLE_POSITIONS))
        for array, of in zip(arrays, letters, strict=True)
    ]
    return jax.shard_map(function, in_specs=tuple(specs), out_specs=specs[0], check_vma=False)(*arrays)


def constrain_params(params: T, model: ModelConfig) -> T:
    """The weights, cut as the table says, and so their gradients: a sharding constraint holds for what comes back through it, too."""
    if jax.sharding.get_abstract_mesh().empty:
        return params
    return jax.tree.map(lambda spec, weight: constrain(weight, *spec.axes), param_specs(model), params)


def on_mesh(function: Callable[..., T], mesh: jax.sharding.Mesh | None) -> Callable[..., T]:
    """`function`, traced with the mesh in sight of `constrain` and of kernels that map over shards."""
    if mesh is None:
        return function

    def traced(*arguments: Any, **named: Any) -> T:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return function(*arguments, **named)

    return traced


def compile_step(
    step: Callable[..., tuple[Any, Any]], model: ModelConfig, mesh: jax.sharding.Mesh | None
) -> Callable[..., tuple[Any, Any]]:
    """`step` compiled: it takes the state's memory. On a mesh the state stays cut as it was, and what is measured is whole everywhere."""
    if mesh is None:
        return jax.jit(step, donate_argnums=0)

    def placed(state: Any, *arguments: Any) -> tuple[Any, Any]:
        after, measured = step(state, *arguments)
        after = jax.lax.with_sharding_constraint(after, state_shardings(after, model, mesh))
        return after, jax.tree.map(lambda value: jax.lax.with_sharding_constraint(value, replicated(mesh)), measured)

    return jax.jit(on_mesh(placed, mesh), donate_argnums=0)
