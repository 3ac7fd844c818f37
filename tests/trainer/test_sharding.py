import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from phasewise.trainer import sharding
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.storage import read_json, write_json
from phasewise.trainer.config import Kept, Mesh, ModelConfig
from phasewise.trainer.config.execution import check_kernel
from phasewise.trainer.model.params import param_specs
from phasewise.trainer.sharding import build_mesh, check_batch, check_mesh, partition_spec, run_mesh
from tests.trainer.conftest import MakeRun, write_documents
from tests.trainer.eight_devices import run_on_eight_devices
from tests.trainer.token_caches import write_conversations

WORKER = Path(__file__).with_name("on_eight_devices.py")
pytestmark = pytest.mark.timeout(600)  # a process with eight devices compiles some programs; a busy machine may need minutes

EXPERTS = {
    "num_experts": 8, "num_active": 2, "num_shared": 1, "d_expert": 16, "route_scale": 2.0, "num_dense_layers": 0, "sequence_loss": 1e-2,
    "balancing": {"kind": "smebu", "rate": 1e-2, "sharpness": 2.0, "momentum": 0.5},
}  # fmt: skip
SPARSE = {"num_layers": 1, "experts": EXPERTS}
LAYERS = {"num_layers": 2, "sliding_window": 6, "global_attention_every": 2, "attention_gate": True, "post_norms": True, "qk_norm": True}
LIMIT = {"window": 4, "min_samples": 2, "sigmas": 0.5}
EVERYTHING = {
    "stop_step": 5,
    "stability": {
        "max_grad_norm": [[0, 0.5]], "z_loss": [[0, 1e-3]], "ema_decay": [[0, 0.9]], "max_update_rms": [[0, 0.9]],
        "max_update_norm": [[0, LIMIT]], "skip_step": [[0, LIMIT | {"sigmas": 6.0}]],
    },
}  # fmt: skip
BUFFERED = {"order": {"seed": 11, "permutation": "feistel", "block_sequences": 16, "cut_blocks": True, "buffer_documents": 8}}
ANSWERS = {"stop_step": 4, "packing": "greedy", "loss_on": "answers", "mixture": [[0, {"talk": 100}]]}


class Family(NamedTuple):
    meshes: tuple[Mesh, ...]
    run: dict[str, Any]
    model: dict[str, Any]
    execution: dict[str, Any]


FAMILIES = {
    "llama": Family((Mesh(fsdp=8), Mesh(replica=2, fsdp=2, tensor=2)), EVERYTHING, {}, {}),
    "qwen": Family(
        (Mesh(replica=2, fsdp=4),), EVERYTHING, {"qk_norm": True, "tied_head": True}, {"remat": Kept(on_device=("query", "value", "gate"))}
    ),
    "buffered": Family((Mesh(fsdp=4, tensor=2),), EVERYTHING | BUFFERED, {}, {}),
    "experts": Family((Mesh(expert=8), Mesh(expert=2, fsdp=2, replica=2), Mesh(expert=2, tensor=2, fsdp=2)), ANSWERS, SPARSE, {}),
    "context": Family((Mesh(context=4, tensor=2),), {"stop_step": 3}, {}, {"loss_chunk_tokens": 96}),
    "context, experts": Family(
        (Mesh(context=2, expert=2, fsdp=2),), {"stop_step": 3}, {**LAYERS, "experts": EXPERTS}, {"loss_chunk_tokens": 48}
    ),
}
MESHES = [(name, number) for name, family in FAMILIES.items() for number in range(len(family.meshes))]
Found = dict[tuple[str, int], dict[str, Any]]


def test_each_logical_axis_of_a_weight_has_a_rule_and_each_rule_names_axes_of_the_mesh(model: ModelConfig):
    sparse = ModelConfig.model_validate({**model.model_dump(), **SPARSE})
    assert {axis for of in (model, sparse) for spec in jax.tree.leaves(param_specs(of)) for axis in spec.axes} <= set(sharding.RULES)
    named = {name for rule in sharding.RULES.values() for name in ((rule,) if isinstance(rule, str) else rule or ())}
    assert named == set(sharding.MESH_AXES)


def test_two_dimensions_on_one_mesh_axis_are_refused():
    for axes, message in {
        ("d_model", "d_model"): "found fsdp for both d_model and d_model of",
        ("query_heads", "d_ff"): "found tensor for both query_heads and d_ff",
        ("batch", "d_model"): "found fsdp for both batch and d_model", ("d_modle",): "found none for 'd_modle'",
    }.items():  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            partition_spec(axes)


@pytest.mark.parametrize(
    ("changes", "mesh", "message"),
    [
        ({}, Mesh(fsdp=3), r"fsdp of execution.mesh must divide d_model, found 3 for 32 in the weight \['blocks'\]\['attention_norm'\]"),
        ({}, Mesh(tensor=4), r"tensor of execution.mesh must divide kv_heads, found 4 for 2 in the weight \['blocks'\]\['key'\]"),
        ({}, Mesh(expert=2), "expert of execution.mesh needs a model with experts, found replica 1 × fsdp 1 × expert 2 × tensor 1"),
        ({}, Mesh(context=32), "2 × context of execution.mesh must divide seq_len, .* found 2 × 32 for 32 positions: take a mesh whose c"),
        ({}, Mesh(fsdp=4, context=16), "fsdp × context of execution.mesh must divide d_model, found 64 for 32"),
        (SPARSE, Mesh(expert=16), r"must divide expert, found 16 for 8 in the weight \['blocks'\]\['expert_down'\]"),
        (SPARSE, Mesh(tensor=2, fsdp=3), "fsdp of execution.mesh must divide d_model, found 3 for 32"),
        (SPARSE, Mesh(expert=8, fsdp=8), "fsdp × expert of execution.mesh must divide d_model, found 64 for 32"),
    ],
)
def test_a_mesh_that_does_not_divide_the_model_is_refused(model: ModelConfig, changes: dict[str, Any], mesh: Mesh, message: str):
    with pytest.raises(ConfigError, match=message):
        check_mesh(mesh, ModelConfig.model_validate({**model.model_dump(), **changes}))
    check_mesh(Mesh(replica=3, fsdp=16, tensor=2), model)


def test_kernels_that_cannot_cut_rows_are_refused(model: ModelConfig):
    narrow = model.but(compute_dtype="bfloat16")
    for kernel, platform, message in (
        ("cudnn", "gpu", "cudnn has no mask for queries that are a part of a row, found context 2 in execution.mesh. Take another kernel"),
        ("splash", "tpu", r"splash needs 2 × context parts of a row, each a multiple of 128 tokens, found 2 × 2 of 32 \(execution.mesh, s"),
    ):
        with pytest.raises(ConfigError, match=message):
            check_kernel(kernel, platform, narrow, context=2)
    assert check_kernel("splash", "tpu", model.but(seq_len=1024), context=4) == "splash"
    assert check_kernel("auto", "gpu", narrow, context=2) == "xla"


def test_batches_that_the_mesh_does_not_divide_and_a_mesh_of_another_size_than_the_devices_are_refused(make_run: MakeRun):
    check_batch(Mesh(replica=2, fsdp=4, tensor=3), 8192, "the batch")
    message = r"replica × fsdp × expert of execution.mesh must divide the batch, found 1 × 3 × 1 = 3 for 8192 sequences: take"
    with pytest.raises(ConfigError, match=message):
        check_batch(Mesh(fsdp=3), 8192, "the batch")
    eight: dict[str, Any] = {"mesh": {"fsdp": 8}}
    parts = eight | {"microbatch_sequences": 4}
    for changes, message in (
        ({"batch": [[0, 8], [10, 12]], "execution": eight}, "must divide the batch from step 10, found 1 × 8 × 1 = 8 for 12 sequences"),
        ({"batch": [[0, 8]], "execution": parts}, "must divide execution.microbatch_sequences, found 1 × 8 × 1 = 8 for 4 sequences"),
        ({"execution": {"mesh": {"replica": 2, "fsdp": 2}}}, r"2 × fsdp 2 × expert 1 × tensor 1 = 4 places for 1 devices: change the mesh"),
    ):
        with pytest.raises(ConfigError, match=message):
            run_mesh(make_run("over eight", **changes))


def test_one_device_has_no_mesh_and_nothing_is_done_to_what_runs_on_it(make_run: MakeRun):
    assert run_mesh(make_run("one")) is None
    rows, x = np.zeros((4, 8), np.int32), np.ones(3)
    assert sharding.place_batch(rows, None) is rows
    assert sharding.constrain(x, "batch") is x
    assert sharding.on_mesh(len, None) is len
    assert sharding.parts_here(None) == ((0,), 1)


def device(number: int, *, slice_index: int) -> SimpleNamespace:
    return SimpleNamespace(
        id=number, platform="tpu", device_kind="stand-in", slice_index=slice_index, process_index=slice_index, coords=(number // 2, 0, 0),
        core_on_chip=0,
    )  # fmt: skip


def test_replicas_go_over_the_slices_and_fsdp_stays_within_one(monkeypatch: pytest.MonkeyPatch):
    message = "replica must be a multiple of the number of slices, found replica 1 × fsdp 8 × expert 1 × tensor 1 for 2"
    with pytest.raises(ConfigError, match=message):
        build_mesh(Mesh(fsdp=8), [device(number, slice_index=number // 4) for number in range(8)])
    monkeypatch.setattr(jax.sharding, "Mesh", lambda devices, axes, **_: SimpleNamespace(devices=devices, axes=axes))
    shuffled = [device(number, slice_index=number % 2) for number in (5, 0, 3, 6, 1, 4, 7, 2)]
    places: np.ndarray = build_mesh(Mesh(replica=4, fsdp=2), shuffled).devices  # pyright: ignore[reportArgumentType]
    slices = np.vectorize(lambda place: place.slice_index)(places)
    assert slices.reshape(4, 2).tolist() in ([[0, 0], [0, 0], [1, 1], [1, 1]], [[1, 1], [1, 1], [0, 0], [0, 0]])


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest, make_run: MakeRun, model: ModelConfig, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Family and number of its mesh → what training gave, for all that are asked for. The batch is two microbatches."""
    folder, cases = tmp_path_factory.mktemp("families"), list[tuple[str, dict[str, Any]]]()
    asked: list[tuple[str, int]] = [one for one in MESHES if any(one == chosen_by(item) for item in request.session.items)]
    for name, number in asked:
        family = FAMILIES[name]
        changes: dict[str, Any] = {"model": {**model.model_dump(), **family.model}, "batch": [[0, 16]], **family.run}
        if "loss_on" in family.run:  # rows have padding, and parts of a batch have more to predict than others
            cut = [document[:20] for document in write_documents(3, 200)]
            documents = [(document, [(2, len(document) - 1 - number % 3)]) for number, document in enumerate(cut)]
            changes["caches"] = {"talk": str(write_conversations(folder / f"{name} {number}" / "talk", [documents]))}
        execution = {"microbatch_sequences": 8, "mesh": family.meshes[number], **family.execution}
        cases.append((name, make_run(f"{name} {number}", **changes, execution=execution).model_dump(mode="json")))
    write_json(folder / "cases.json", cases)
    run_on_eight_devices(WORKER, folder / "cases.json", folder / "found.json")
    return dict(zip(asked, read_json(folder / "found.json"), strict=True))


def chosen_by(item: pytest.Item) -> object:
    return item.callspec.params.get("case") if isinstance(item, pytest.Function) and hasattr(item, "callspec") else None


class Case(NamedTuple):
    family: str
    mesh: Mesh
    found: dict[str, Any]

    def worst(self, kind: str, prefix: str = "") -> float:
        return max(difference for name, difference in self.found[kind].items() if name.startswith(prefix))


QUICK = [("llama", 1), ("experts", 1), ("context", 0)]


@pytest.fixture(params=[pytest.param(one, marks=() if one in QUICK else pytest.mark.long) for one in MESHES], ids=str)
def case(request: pytest.FixtureRequest, found: Found) -> Case:
    name, number = request.param
    return Case(name, FAMILIES[name].meshes[number], found[name, number])


def test_sharded_is_unsharded(case: Case):
    assert case.found["same_batches"]
    for alone, together in case.found["losses"]:
        assert together == pytest.approx(alone, rel=1e-6)
    assert case.worst("measured") < 2e-4  # the largest are norms of directions, about 200
    assert case.worst("first", "optimizer.mu") < 1e-8  # a tenth of the gradients
    for part in ("params", "ema", "optimizer"):
        assert case.worst("last", part) < 5e-7  # weights of 0.02, after updates of 3e-3


def test_routers_choose_alike_and_their_biases_have_the_same_bits(case: Case):
    exact = ("router_bias", "expert_loads", "max_violations", "dead_experts", "overflowed")
    compared = {name: found for kind in ("first", "last", "measured") for name, found in case.found[kind].items() if name.endswith(exact)}
    assert bool(compared) == ("experts" in FAMILIES[case.family].model)
    assert {name: difference for name, difference in compared.items() if difference} == {}


def test_every_leaf_lies_as_the_table_says_and_memory_is_divided(case: Case):
    placed: dict[str, Any] = case.found["placed"]
    assert [name for name, leaf in placed.items() if not leaf["as_declared"]] == []
    mesh, parts = case.mesh, case.mesh.weight_parts
    on_one, whole = case.found["bytes"]
    assert on_one / whole == pytest.approx(1 / (parts * mesh.tensor), rel=0.03)
    assert placed["params.embedding"]["shard"] == [256 // mesh.tensor, 32 // parts]
    for prefix in ("params", "ema", "optimizer.mu", "optimizer.nu"):
        if case.family == "experts":
            gate = placed[f"{prefix}.blocks.expert_gate"]
            assert (gate["shape"], gate["shard"]) == ([1, 8, 32, 16], [1, 8 // mesh.expert, 32 // mesh.fsdp, 16 // mesh.tensor])
            assert placed[f"{prefix}.blocks.router"]["shard"] == [1, 32 // parts, 8]
        elif case.family != "context, experts":
            gate = placed[f"{prefix}.blocks.gate"]
            assert (gate["shape"], gate["shard"]) == ([2, 32, 48], [2, 32 // parts, 48 // mesh.tensor])
            assert gate["pieces"] == parts * mesh.tensor


def test_weights_are_gathered_and_no_device_has_the_whole_batch(case: Case):
    """Of eight rows of 32 positions a device has some, with all of d_model and its part of d_ff."""
    mesh = case.mesh
    rows, d_ff = 8 // mesh.batch_parts, 48 // mesh.tensor
    collectives: dict[str, list[str]] = case.found["collectives"]
    exchanged = {shape for shapes in collectives.values() for shape in shapes}
    assert not exchanged & {"f32[8,32,32]", f"f32[8,32,{d_ff}]", "f32[8,32,16]"}
    if mesh.context > 1:  # what is gathered along positions are keys and values of kv heads
        assert f"f32[{rows},32,{2 // mesh.tensor},8]" in collectives["all-gather"]
        assert not exchanged & {f"f32[{rows},32,{size}]" for size in (32, d_ff, 16)}
        assert mesh.expert == 1 or not exchanged & {f"f32[{rows},32,8]", "f32[8,32,8]"}  # scores of eight experts
    elif case.family == "experts":  # two experts a token: room for 1.25 of the rows, in equal parts
        assert not exchanged & {"f32[256,32]", "f32[512,32]", "f32[256,16]"}
        assert f"f32[{math.ceil(1.25 * rows * 32 * 2 / mesh.expert)},32]" in collectives["all-to-all"]
    else:
        assert f"f32[32,{d_ff}]" in collectives["all-gather"]  # a layer's gate
        assert (f"f32[{rows},32,32]" in collectives["all-reduce"]) == (mesh.tensor > 1)
