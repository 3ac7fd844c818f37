"""The rules table and what it refuses, here; what happens on eight devices, in processes that have eight (`on_eight_devices.py`)."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from trainer.config import Mesh, ModelConfig, RunConfig
from trainer.errors import ConfigError
from trainer.model.params import param_specs
from trainer.sharding import (
    MESH_AXES,
    RULES,
    build_mesh,
    build_sharded,
    check_batch,
    check_mesh,
    constrain,
    on_mesh,
    partition_spec,
    parts_here,
    place_batch,
    run_mesh,
)

MakeRun = Callable[..., RunConfig]


def test_each_logical_axis_of_a_weight_has_a_rule_and_each_rule_names_axes_of_the_mesh(model: ModelConfig):
    used = {axis for spec in jax.tree.leaves(param_specs(model)) for axis in spec.axes}
    assert used <= set(RULES)
    named = {name for rule in RULES.values() for name in ((rule,) if isinstance(rule, str) else rule or ())}
    assert named == set(MESH_AXES)


@pytest.mark.parametrize(
    ("axes", "spec"),
    [
        (("layer", "d_model", "query_heads", "head_dim"), (None, "fsdp", "tensor", None)),
        (("layer", "d_model", "kv_heads", "head_dim"), (None, "fsdp", "tensor", None)),
        (("layer", "query_heads", "head_dim", "d_model"), (None, "tensor", None, "fsdp")),
        (("layer", "d_ff", "d_model"), (None, "tensor", "fsdp")),
        (("vocab", "d_model"), ("tensor", "fsdp")),
        (("batch", "position", None), (("replica", "fsdp"), "context", None)),
        ((), ()),
    ],
)
def test_the_table_says_how_an_array_is_cut(axes: tuple[str | None, ...], spec: tuple[Any, ...]):
    assert partition_spec(axes) == PartitionSpec(*spec)


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        (("d_model", "d_model"), "found fsdp for both d_model and d_model of"),
        (("query_heads", "d_ff"), "found tensor for both query_heads and d_ff"),
        (("batch", "d_model"), "found fsdp for both batch and d_model"),
        (("d_modle",), "found none for 'd_modle'"),
    ],
)
def test_two_dimensions_on_one_mesh_axis_are_refused(axes: tuple[str, ...], message: str):
    with pytest.raises(ConfigError, match=message):
        partition_spec(axes)


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        (Mesh(fsdp=3), r"fsdp of execution.mesh must divide d_model, found 3 for 32 in the weight \['blocks'\]\['attention_norm'\]"),
        (Mesh(tensor=4), r"tensor of execution.mesh must divide kv_heads, found 4 for 2 in the weight \['blocks'\]\['key'\]"),
    ],
)
def test_a_mesh_that_does_not_divide_a_weight_is_refused(model: ModelConfig, mesh: Mesh, message: str):
    with pytest.raises(ConfigError, match=message):
        check_mesh(mesh, model)


def test_a_mesh_that_divides_every_weight_is_taken(model: ModelConfig):
    check_mesh(Mesh(replica=3, fsdp=16, tensor=2), model)


def test_a_batch_of_8192_over_3_is_refused():
    with pytest.raises(
        ConfigError, match=r"replica × fsdp of execution.mesh must divide the batch, found 1 × 3 = 3 for 8192 sequences: take"
    ):
        check_batch(Mesh(fsdp=3), 8192, "the batch")
    check_batch(Mesh(replica=2, fsdp=4, tensor=3), 8192, "the batch")


def test_a_run_is_refused_at_the_batch_that_its_mesh_does_not_divide(make_run: MakeRun):
    run = make_run("over eight", batch=[[0, 8], [10, 12]], execution={"mesh": {"fsdp": 8}})
    with pytest.raises(ConfigError, match="must divide the batch from step 10, found 1 × 8 = 8 for 12 sequences"):
        run_mesh(run)
    run = make_run("over eight", batch=[[0, 8]], execution={"mesh": {"fsdp": 8}, "microbatch_sequences": 4})
    with pytest.raises(ConfigError, match=r"must divide execution.microbatch_sequences, found 1 × 8 = 8 for 4 sequences"):
        run_mesh(run)


def test_a_mesh_of_another_size_than_the_devices_is_refused(make_run: MakeRun):
    with pytest.raises(
        ConfigError, match="found replica 2 × fsdp 2 × tensor 1 = 4 places for 1 devices: change the mesh, or start on other"
    ):
        run_mesh(make_run("four", execution={"mesh": {"replica": 2, "fsdp": 2}}))


def test_one_device_has_no_mesh_and_nothing_is_done_to_what_runs_on_it(make_run: MakeRun):
    assert run_mesh(make_run("one")) is None
    rows, x = np.zeros((4, 8), np.int32), np.ones(3)
    assert place_batch(rows, None) is rows
    assert constrain(x, "batch") is x
    assert on_mesh(len, None) is len
    assert parts_here(None) == ((0,), 1)
    assert build_sharded(lambda: x, make_run("one").model, None) is x


def device(number: int, *, slice_index: int) -> SimpleNamespace:
    """What `mesh_utils` asks of a device of a slice."""
    return SimpleNamespace(
        id=number,
        platform="tpu",
        device_kind="stand-in",
        slice_index=slice_index,
        process_index=slice_index,
        coords=(number // 2, 0, 0),
        core_on_chip=0,
    )


def test_replicas_go_over_the_slices_and_fsdp_stays_within_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jax.sharding, "Mesh", lambda devices, axes, **_: SimpleNamespace(devices=devices, axes=axes))
    shuffled = [device(number, slice_index=number % 2) for number in (5, 0, 3, 6, 1, 4, 7, 2)]
    places: np.ndarray = build_mesh(Mesh(replica=4, fsdp=2), shuffled).devices  # pyright: ignore[reportArgumentType]
    slices = np.vectorize(lambda place: place.slice_index)(places)
    assert slices.reshape(4, 2).tolist() in ([[0, 0], [0, 0], [1, 1], [1, 1]], [[1, 1], [1, 1], [0, 0], [0, 0]])


def test_weights_cut_over_slices_are_refused():
    with pytest.raises(ConfigError, match="replica must be a multiple of the number of slices, found replica 1 × fsdp 8 × tensor 1 for 2"):
        build_mesh(Mesh(fsdp=8), [device(number, slice_index=number // 4) for number in range(8)])
