"""The rules table and what it refuses, here; what happens on eight devices, in processes that have eight (`on_eight_devices.py`)."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.storage import read_json, write_json
from phasewise.trainer.config import Kept, Mesh, ModelConfig, RunConfig
from phasewise.trainer.model.params import param_specs
from phasewise.trainer.sharding import (
    MESH_AXES,
    RULES,
    build_mesh,
    check_batch,
    check_mesh,
    constrain,
    on_mesh,
    partition_spec,
    parts_here,
    place_batch,
    run_mesh,
)
from tests.trainer.eight_devices import run_on_eight_devices

MakeRun = Callable[..., RunConfig]
Found = dict[str, dict[str, Any]]
WORKER = Path(__file__).with_name("on_eight_devices.py")
# a process with eight devices compiles five programs; a busy machine may need minutes
pytestmark = pytest.mark.timeout(600)

MESHES = {"8": Mesh(fsdp=8), "2x4": Mesh(replica=2, fsdp=4), "1x4x2": Mesh(fsdp=4, tensor=2), "2x2x2": Mesh(replica=2, fsdp=2, tensor=2)}
FAMILIES: dict[str, dict[str, Any]] = {"llama": {}, "qwen": {"qk_norm": True, "tied_head": True}, "buffered": {}}
REMATS = {("qwen", "2x2x2"): Kept(on_device=("query", "value", "gate"))}
"""What is kept by name on a mesh; the run on one device keeps everything."""
CASES = [*(("llama", mesh) for mesh in MESHES), ("qwen", "2x4"), ("qwen", "2x2x2"), ("buffered", "2x2x2")]


def test_each_logical_axis_of_a_weight_has_a_rule_and_each_rule_names_axes_of_the_mesh(model: ModelConfig):
    used = {axis for spec in jax.tree.leaves(param_specs(model)) for axis in spec.axes}
    assert used <= set(RULES)
    named = {name for rule in RULES.values() for name in ((rule,) if isinstance(rule, str) else rule or ())}
    assert named == set(MESH_AXES)


@pytest.mark.parametrize(
    ("axes", "spec"),
    [
        (("layer", "d_model", "query_heads", "head_dim"), (None, ("fsdp", "expert", "context"), "tensor", None)),
        (("layer", "d_model", "kv_heads", "head_dim"), (None, ("fsdp", "expert", "context"), "tensor", None)),
        (("layer", "query_heads", "head_dim", "d_model"), (None, "tensor", None, ("fsdp", "expert", "context"))),
        (("layer", "d_ff", "d_model"), (None, "tensor", ("fsdp", "expert", "context"))),
        (("vocab", "d_model"), ("tensor", ("fsdp", "expert", "context"))),
        (("layer", "expert", "expert_d_model", "d_ff"), (None, "expert", ("fsdp", "context"), "tensor")),
        (("layer", "d_model", "router_expert"), (None, ("fsdp", "expert", "context"), None)),
        (("batch", "position", None), (("replica", "fsdp", "expert"), "context", None)),
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
        ConfigError, match=r"replica × fsdp × expert of execution.mesh must divide the batch, found 1 × 3 × 1 = 3 for 8192 sequences: take"
    ):
        check_batch(Mesh(fsdp=3), 8192, "the batch")
    check_batch(Mesh(replica=2, fsdp=4, tensor=3), 8192, "the batch")


def test_a_run_is_refused_at_the_batch_that_its_mesh_does_not_divide(make_run: MakeRun):
    run = make_run("over eight", batch=[[0, 8], [10, 12]], execution={"mesh": {"fsdp": 8}})
    with pytest.raises(ConfigError, match="must divide the batch from step 10, found 1 × 8 × 1 = 8 for 12 sequences"):
        run_mesh(run)
    run = make_run("over eight", batch=[[0, 8]], execution={"mesh": {"fsdp": 8}, "microbatch_sequences": 4})
    with pytest.raises(ConfigError, match=r"must divide execution.microbatch_sequences, found 1 × 8 × 1 = 8 for 4 sequences"):
        run_mesh(run)


def test_a_mesh_of_another_size_than_the_devices_is_refused(make_run: MakeRun):
    with pytest.raises(
        ConfigError, match=r"found replica 2 × fsdp 2 × expert 1 × tensor 1 = 4 places for 1 devices: change the mesh, or start on other"
    ):
        run_mesh(make_run("four", execution={"mesh": {"replica": 2, "fsdp": 2}}))


def test_one_device_has_no_mesh_and_nothing_is_done_to_what_runs_on_it(make_run: MakeRun):
    assert run_mesh(make_run("one")) is None
    rows = np.zeros((4, 8), np.int32)
    x = np.ones(3)
    assert place_batch(rows, None) is rows
    assert constrain(x, "batch") is x
    assert on_mesh(len, None) is len
    assert parts_here(None) == ((0,), 1)


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
    with pytest.raises(
        ConfigError, match="replica must be a multiple of the number of slices, found replica 1 × fsdp 8 × expert 1 × tensor 1 for 2"
    ):
        build_mesh(Mesh(fsdp=8), [device(number, slice_index=number // 4) for number in range(8)])


def train_on_eight_devices(runs: list[RunConfig], folder: Path) -> list[dict[str, Any]]:
    """What `on_eight_devices.py` finds of each run."""
    write_json(folder / "cases.json", [run.model_dump(mode="json") for run in runs])
    run_on_eight_devices(WORKER, folder / "cases.json", folder / "found.json")
    return read_json(folder / "found.json")


@pytest.fixture(scope="module")
def train_family(make_run: MakeRun, model: ModelConfig, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Found]:
    """Family → mesh → what training on it gave. Everything that a run can have is on; the batch is two microbatches."""

    @cache
    def train(family: str) -> Found:
        changes: dict[str, Any] = {
            "model": {**model.model_dump(), **FAMILIES[family]},
            "stop_step": 5,
            "batch": [[0, 16]],
            "stability": {
                "max_grad_norm": [[0, 0.5]],
                "z_loss": [[0, 1e-3]],
                "ema_decay": [[0, 0.9]],
                "max_update_rms": [[0, 0.9]],
                "max_update_norm": [[0, {"window": 4, "min_samples": 2, "sigmas": 0.5}]],
                "skip_step": [[0, {"window": 4, "min_samples": 2, "sigmas": 6.0}]],
            },
        }
        meshes = [mesh for of, mesh in CASES if of == family]
        parts = {"microbatch_sequences": 8}
        remats = [REMATS.get((family, mesh), "none") for mesh in meshes]
        executions = [{**parts, "mesh": MESHES[mesh], "remat": remat} for mesh, remat in zip(meshes, remats, strict=True)]
        if family == "buffered":
            changes["order"] = {"seed": 11, "permutation": "feistel", "block_sequences": 16, "cut_blocks": True, "buffer_documents": 8}
        runs = [make_run(f"{family} {mesh}", **changes, execution=each) for mesh, each in zip(meshes, executions, strict=True)]
        return dict(zip(meshes, train_on_eight_devices(runs, tmp_path_factory.mktemp(family)), strict=True))

    return train


class Case(NamedTuple):
    """A mesh, and what training on it gave."""

    mesh: Mesh
    found: dict[str, Any]


@pytest.fixture(params=CASES, ids=" ".join)
def case(request: pytest.FixtureRequest, train_family: Callable[[str], Found]) -> Case:
    family, mesh = request.param
    return Case(MESHES[mesh], train_family(family)[mesh])


def test_sharded_is_unsharded(case: Case):
    """Losses, what else is measured, gradients (first moments after one update are a tenth of them), weights, averages, windows."""
    assert case.found["same_batches"]
    for alone, together in case.found["losses"]:
        assert together == pytest.approx(alone, rel=1e-6)
    assert worst(case.found["measured"]) < 2e-4  # the largest are norms of directions, about 200
    assert worst(case.found["first"], "optimizer.mu") < 1e-8  # of gradients that are clipped to a norm of 0.5
    for part in ("params", "ema", "optimizer"):
        assert worst(case.found["last"], part) < 5e-7  # weights of 0.02, after updates of 3e-3


def worst(differences: dict[str, float], prefix: str = "") -> float:
    return max(difference for name, difference in differences.items() if name.startswith(prefix))


def test_every_leaf_lies_as_the_table_says_also_after_updates(case: Case):
    placed: dict[str, Any] = case.found["placed"]
    assert [name for name, leaf in placed.items() if not leaf["as_declared"]] == []
    fsdp = case.mesh.fsdp
    tensor = case.mesh.tensor
    for name in ("params.blocks.gate", "ema.blocks.gate", "optimizer.mu.blocks.gate", "optimizer.nu.blocks.gate"):
        assert (placed[name]["shape"], placed[name]["shard"]) == ([2, 32, 48], [2, 32 // fsdp, 48 // tensor])
        assert placed[name]["pieces"] == fsdp * tensor
    assert placed["params.embedding"]["shard"] == [256 // tensor, 32 // fsdp]
    assert placed["params.blocks.key"]["shard"] == [2, 32 // fsdp, 2 // tensor, 8]
    assert placed["rolling.losses.values"]["shard"] == [4]


def test_memory_is_divided_among_the_devices_of_a_replica(case: Case):
    on_one, whole = case.found["bytes"]
    assert on_one / whole == pytest.approx(1 / (case.mesh.fsdp * case.mesh.tensor), rel=0.02)


def test_weights_are_gathered_and_activations_are_summed_over_tensor_alone(case: Case):
    """Of eight rows of 32 positions a device has some, with all of d_model and its part of d_ff; never all eight."""
    collectives: dict[str, list[str]] = case.found["collectives"]
    rows = 8 // (case.mesh.replica * case.mesh.fsdp)
    d_ff = 48 // case.mesh.tensor
    assert f"f32[32,{d_ff}]" in collectives["all-gather"]  # a layer's gate
    exchanged = {shape for shapes in collectives.values() for shape in shapes}
    assert not exchanged & {"f32[8,32,32]", f"f32[8,32,{d_ff}]"}
    assert (f"f32[{rows},32,32]" in collectives["all-reduce"]) == (case.mesh.tensor > 1)
