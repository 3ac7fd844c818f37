"""A sparse model on meshes that deal out experts, in a process that has eight devices, against the same run on one device.

It learns the answers of packed conversations: rows have padding, and parts of a batch have more to predict than others.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import pytest

from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.storage import read_json, write_json
from phasewise.trainer.config import Mesh, ModelConfig, RunConfig
from phasewise.trainer.model.params import param_specs
from phasewise.trainer.sharding import RULES, check_mesh
from tests.trainer import on_eight_devices
from tests.trainer.conftest import write_documents
from tests.trainer.eight_devices import run_on_eight_devices
from tests.trainer.token_caches import write_conversations

MakeRun = Callable[..., RunConfig]
WORKER = Path(on_eight_devices.__file__)
pytestmark = pytest.mark.timeout(600)  # five programs are compiled; a busy machine may need minutes

EXPERTS = {
    "num_experts": 8,
    "num_active": 2,
    "num_shared": 1,
    "d_expert": 16,
    "route_scale": 2.0,
    "num_dense_layers": 0,
    "balancing": {"kind": "smebu", "rate": 1e-2, "sharpness": 2.0, "momentum": 0.5},
    "sequence_loss": 1e-2,
}
MESHES = {
    "expert 8": Mesh(expert=8),
    "expert 2 × fsdp 2 × replica 2": Mesh(expert=2, fsdp=2, replica=2),
    "expert 2 × tensor 2 × fsdp 2": Mesh(expert=2, tensor=2, fsdp=2),
}


@pytest.fixture(scope="module")
def sparse(model: ModelConfig) -> ModelConfig:
    """One layer."""
    return ModelConfig.model_validate({**model.model_dump(), "num_layers": 1, "experts": EXPERTS})


@pytest.fixture(scope="module")
def found(make_run: MakeRun, sparse: ModelConfig, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, dict[str, Any]]:
    """Mesh → what training on it gave. The batch is two microbatches."""
    folder = tmp_path_factory.mktemp("sparse")
    cut = [document[:20] for document in write_documents(3, 200)]
    documents = [(document, [(2, len(document) - 1 - number % 3)]) for number, document in enumerate(cut)]
    of_answers = {"packing": "greedy", "loss_on": "answers", "mixture": [[0, {"talk": 100}]]}
    caches = {"talk": str(write_conversations(folder / "talk", [documents]))}
    changes: dict[str, Any] = {"model": sparse.model_dump(), "stop_step": 4, "batch": [[0, 16]], "caches": caches, **of_answers}
    runs = [make_run(name, **changes, execution={"mesh": mesh, "microbatch_sequences": 8}) for name, mesh in MESHES.items()]
    write_json(folder / "cases.json", [run.model_dump(mode="json") for run in runs])
    run_on_eight_devices(WORKER, folder / "cases.json", folder / "found.json")
    return dict(zip(MESHES, read_json(folder / "found.json"), strict=True))


class Case(NamedTuple):
    """A mesh, and what training on it gave."""

    mesh: Mesh
    found: dict[str, Any]


@pytest.fixture(params=MESHES)
def case(request: pytest.FixtureRequest, found: Mapping[str, dict[str, Any]]) -> Case:
    return Case(MESHES[request.param], found[request.param])


def test_batches_and_losses_are_those_of_one_device(case: Case):
    assert case.found["same_batches"]
    losses = case.found["losses"]
    assert losses[-1][0] < losses[0][0] - 0.02
    for alone, together in losses:
        assert together == pytest.approx(alone, rel=1e-6)


def test_the_state_after_the_first_update_and_after_all(case: Case):
    """Moments after one update are a tenth of the gradients; weights are of 0.02, after updates of up to 3e-3."""
    assert worst(case.found["first"], "optimizer.mu") < 1e-8
    for part in ("params", "ema", "optimizer"):
        assert worst(case.found["last"], part) < 5e-7
    assert worst(case.found["measured"]) < 2e-4


def test_routers_chose_alike_and_their_biases_have_the_same_bits(case: Case):
    """A token more or less would move a load by 1 / 1024, and with it the bias."""
    exact = ("router_bias", "expert_loads", "max_violations", "dead_experts", "overflowed")
    kinds = ("first", "last", "measured")
    compared = {name: difference for kind in kinds for name, difference in case.found[kind].items() if name.endswith(exact)}
    assert {name.split(".")[0] for name in compared} >= {"params", "balancing"}
    assert {name: difference for name, difference in compared.items() if difference} == {}


def worst(differences: Mapping[str, float], prefix: str = "") -> float:
    return max(difference for name, difference in differences.items() if name.startswith(prefix))


def test_experts_lie_where_the_mesh_deals_them_and_all_else_as_if_expert_were_fsdp(case: Case):
    placed: dict[str, Any] = case.found["placed"]
    assert [name for name, leaf in placed.items() if not leaf["as_declared"]] == []
    mesh = case.mesh
    for prefix in ("params", "ema", "optimizer.mu", "optimizer.nu"):
        gate = placed[f"{prefix}.blocks.expert_gate"]
        assert (gate["shape"], gate["shard"]) == ([1, 8, 32, 16], [1, 8 // mesh.expert, 32 // mesh.fsdp, 16 // mesh.tensor])
        assert placed[f"{prefix}.blocks.shared_gate"]["shard"] == [1, 32 // mesh.fsdp // mesh.expert, 16 // mesh.tensor]
        assert placed[f"{prefix}.blocks.router"]["shard"] == [1, 32 // mesh.fsdp // mesh.expert, 8]
    assert placed["balancing.blocks.router_bias"]["shard"] == [1, 8]
    on_one, whole = case.found["bytes"]
    assert on_one / whole == pytest.approx(1 / (mesh.fsdp * mesh.expert * mesh.tensor), rel=0.02)


def test_rows_go_along_expert_and_no_device_has_the_whole_batch(case: Case):
    """Of 8 rows of 32 positions a device has some, and 2 experts a token: room for 1.25 of them, in equal parts."""
    mesh = case.mesh
    collectives: dict[str, list[str]] = case.found["collectives"]
    rows = 8 // (mesh.replica * mesh.fsdp * mesh.expert) * 32 * 2
    assert f"f32[{math.ceil(1.25 * rows / mesh.expert)},32]" in collectives["all-to-all"]  # to each device
    exchanged = {shape for shapes in collectives.values() for shape in shapes}
    assert not exchanged & {"f32[8,32,32]", "f32[256,32]", "f32[512,32]", "f32[8,32,16]", "f32[256,16]"}


def test_each_axis_of_a_sparse_models_weights_has_a_rule(sparse: ModelConfig):
    assert {axis for spec in jax.tree.leaves(param_specs(sparse)) for axis in spec.axes} <= set(RULES)


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        (Mesh(expert=16), r"expert of execution.mesh must divide expert, found 16 for 8 in the weight \['blocks'\]\['expert_down'\]"),
        (Mesh(tensor=2, fsdp=3), "fsdp of execution.mesh must divide d_model, found 3 for 32"),
        (Mesh(expert=8, fsdp=8), "fsdp × expert of execution.mesh must divide d_model, found 64 for 32"),
    ],
)
def test_a_mesh_that_does_not_divide_the_experts_is_refused(sparse: ModelConfig, mesh: Mesh, message: str):
    with pytest.raises(ConfigError, match=message):
        check_mesh(mesh, sparse)


def test_experts_for_a_model_without_them_are_refused(model: ModelConfig):
    with pytest.raises(
        ConfigError, match=r"expert of execution.mesh needs a model with experts, found replica 1 × fsdp 1 × expert 2 × tensor 1"
    ):
        check_mesh(Mesh(expert=2), model)
