"""Rows that are cut along their positions, in a process that has eight devices, against the same run on one device."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.storage import read_json, write_json
from phasewise.trainer.config import Mesh, ModelConfig, RunConfig
from phasewise.trainer.kernels.attention import check_kernel
from phasewise.trainer.sharding import check_mesh
from tests.trainer import on_eight_devices
from tests.trainer.eight_devices import run_on_eight_devices
from tests.trainer.test_expert_sharding import EXPERTS, MakeRun, worst

WORKER = Path(on_eight_devices.__file__)
pytestmark = pytest.mark.timeout(600)  # four programs are compiled; a busy machine may need minutes

LAYERS = {"num_layers": 2, "sliding_window": 6, "global_attention_every": 2, "attention_gate": True, "post_norms": True, "qk_norm": True}
FAMILIES: dict[str, tuple[Mesh, dict[str, Any]]] = {
    "dense, documents apart": (Mesh(context=4, tensor=2), {}),
    "experts, windows and global layers": (Mesh(context=2, expert=2, fsdp=2), {**LAYERS, "experts": EXPERTS}),
}


class Case(NamedTuple):
    """A mesh, and what training on it gave."""

    mesh: Mesh
    found: dict[str, Any]


@pytest.fixture(scope="module", params=FAMILIES)
def case(request: pytest.FixtureRequest, make_run: MakeRun, model: ModelConfig, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """The batch is two microbatches, and the loss comes in chunks that do not divide a device's part of a row."""
    mesh, changes = FAMILIES[request.param]
    folder = tmp_path_factory.mktemp("context")
    execution = {"mesh": mesh, "microbatch_sequences": 8, "loss_chunk_tokens": 8 * mesh.context * 3}
    run: RunConfig = make_run(request.param, model={**model.model_dump(), **changes}, stop_step=3, batch=[[0, 16]], execution=execution)
    write_json(folder / "cases.json", [run.model_dump(mode="json")])
    run_on_eight_devices(WORKER, folder / "cases.json", folder / "found.json")
    [found] = read_json(folder / "found.json")
    return Case(mesh, found)


def test_batches_and_losses_are_those_of_one_device(case: Case):
    assert case.found["same_batches"]
    for alone, together in case.found["losses"]:
        assert together == pytest.approx(alone, rel=1e-6)


def test_gradients_weights_and_all_that_is_measured_are_too(case: Case):
    """Moments after one update are a tenth of the gradients; weights are of 0.02, after updates of up to 3e-3."""
    assert worst(case.found["first"], "optimizer.mu") < 1e-8
    for part in ("params", "ema", "optimizer"):
        assert worst(case.found["last"], part) < 5e-7
    assert worst(case.found["measured"]) < 2e-4


def test_routers_chose_alike(case: Case):
    exact = ("router_bias", "expert_loads", "max_violations", "dead_experts", "overflowed")
    compared = {name: found for kind in ("first", "last", "measured") for name, found in case.found[kind].items() if name.endswith(exact)}
    assert bool(compared) == (case.mesh.expert > 1)
    assert {name: difference for name, difference in compared.items() if difference} == {}


def test_weights_and_moments_are_cut_over_context_as_over_fsdp(case: Case):
    mesh = case.mesh
    placed: dict[str, Any] = case.found["placed"]
    assert [name for name, leaf in placed.items() if not leaf["as_declared"]] == []
    on_one, whole = case.found["bytes"]
    assert on_one / whole == pytest.approx(1 / (mesh.weight_parts * mesh.tensor), rel=0.03)
    assert placed["params.embedding"]["shard"] == [256 // mesh.tensor, 32 // mesh.weight_parts]


def test_no_device_has_a_whole_row_of_the_residual_stream(case: Case):
    """Of 8 rows of 32 positions; what is gathered along positions are keys and values of kv heads."""
    mesh = case.mesh
    rows, kv_heads = 8 // mesh.batch_parts, 2 // mesh.tensor
    collectives: Mapping[str, list[str]] = case.found["collectives"]
    assert f"f32[{rows},32,{kv_heads},8]" in collectives["all-gather"]
    exchanged = {shape for shapes in collectives.values() for shape in shapes}
    assert not exchanged & {f"f32[{of},32,{size}]" for of in (rows, 8) for size in (32, 48 // mesh.tensor, 16)}
    assert mesh.expert == 1 or not exchanged & {f"f32[{rows},32,8]", "f32[8,32,8]"}  # scores of eight experts


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        (
            Mesh(context=32),
            "2 × context of execution.mesh must divide seq_len, .* found 2 × 32 for 32 positions: take a mesh whose context",
        ),
        (Mesh(fsdp=4, context=16), "fsdp × context of execution.mesh must divide d_model, found 64 for 32"),
    ],
)
def test_a_mesh_that_does_not_divide_rows_or_weights_is_refused(model: ModelConfig, mesh: Mesh, message: str):
    with pytest.raises(ConfigError, match=message):
        check_mesh(mesh, model)


@pytest.mark.parametrize(
    ("kernel", "platform", "message"),
    [
        ("cudnn", "gpu", "cudnn has no mask for queries that are a part of a row, found context 2 in execution.mesh. Take another kernel"),
        (
            "splash",
            "tpu",
            r"splash needs 2 × context parts of a row, each a multiple of 128 tokens, found 2 × 2 of 32 \(execution.mesh, seq_len",
        ),
    ],
)
def test_kernels_that_cannot_are_refused_by_name(model: ModelConfig, kernel: str, platform: str, message: str):
    with pytest.raises(ConfigError, match=message):
        check_kernel(kernel, platform, model.but(compute_dtype="bfloat16"), context=2)
    assert check_kernel("splash", "tpu", model.but(seq_len=1024), context=4) == "splash"
    assert check_kernel("auto", "gpu", model.but(compute_dtype="bfloat16"), context=2) == "xla"
