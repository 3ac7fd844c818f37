import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.flows.recipes.trinity.small import TRINITY_NANO as TRINITY_NANO_RECIPE
from phasewise.tasks.preflight.plan import (
    SPARSE_GROUPS,
    Plan,
    batch_refusal,
    contexts_for,
    mesh_refusal,
    meshes_for,
    parts_for,
    policies_for,
    settings_for,
    spec_for,
)
from phasewise.tasks.preflight.slices import find_slice
from phasewise.trainer.config import ATTENTION, BLOCK_INPUT, Kept, Mesh
from phasewise.trainer.model.remat import check_names
from phasewise.trainer.preflight.spec import StepShape, run_of
from phasewise.trainer.sharding import check_batch, check_mesh
from tests.trainer.preflight.models import LLAMA_8B, LLAMA_32B, SPARSE, step_of

TRINITY_NANO = TRINITY_NANO_RECIPE.phases[0]


def test_why_the_record_took_7680_sequences_on_three_slices() -> None:
    reason = batch_refusal(8192, find_slice("3x v5p-512"))
    assert reason is not None
    assert "8,192 sequences" in reason
    assert "3 × 256 = 768 chips" in reason
    assert "7,680" in reason
    assert batch_refusal(7680, find_slice("3x v5p-512")) is None
    assert batch_refusal(8192, find_slice("4x v5p-512")) is None
    assert settings_for(step_of(LLAMA_32B, 8192), find_slice("3x v5p-512")) == []


@given(batch=st.integers(1, 20_000), name=st.sampled_from(["3x v5p-512", "2x v5e-256", "v4-2048", "v6e-128"]))
def test_a_batch_is_refused_exactly_where_the_chips_do_not_divide_it(batch: int, name: str) -> None:
    where = find_slice(name)
    reason = batch_refusal(batch, where)
    assert (reason is None) == (batch % where.chips == 0)
    if reason and batch > where.chips:
        assert f"{batch // where.chips * where.chips:,} or" in reason


@pytest.mark.parametrize("name", ["v4-2048", "4x v5p-512", "2x v5e-256", "v5e-4", "v6e-128"])
@pytest.mark.parametrize(("model", "batch"), [(LLAMA_8B, 1024), (LLAMA_32B, 8192)], ids=["8b", "32b"])
def test_every_setting_is_one_that_the_trainer_takes(name: str, model: object, batch: int) -> None:
    where = find_slice(name)
    step = step_of(model, batch)  # type: ignore[arg-type]
    found = settings_for(step, where)
    assert (found[0].mesh, found[0].parts) == (where.mesh, 1)
    assert len(set(found)) == len(found)
    for setting in found:
        mesh = setting.mesh
        assert mesh.replica * mesh.fsdp * mesh.expert * mesh.tensor == where.devices
        assert mesh.replica % where.count == 0
        check_mesh(mesh, step.model)
        spec = spec_for(step, where, setting.plan("full", where))
        run_of(spec.step, spec.execution)
        check_batch(mesh, spec.execution.microbatch_sequences or batch, "a part")
        assert (spec.execution.microbatch_sequences or batch) * setting.parts == batch


def test_heads_are_cut_only_where_every_head_is_whole() -> None:
    """Llama's 8 kv heads: over 8 at most. A model with 3 of them is not cut."""
    where = find_slice("v5e-256")
    assert {mesh.tensor for mesh in meshes_for(LLAMA_8B, where)} == {1, 2, 4, 8}
    assert {mesh.tensor for mesh in meshes_for(LLAMA_8B.but(num_query_heads=24, num_kv_heads=3), where)} == {1}


@given(batch=st.integers(1, 4096), rows=st.sampled_from([1, 4, 256]))
def test_parts_are_equal_and_cut_over_the_rows(batch: int, rows: int) -> None:
    for parts in parts_for(batch, rows):
        assert batch % (parts * rows) == 0
    assert (1 in parts_for(batch, rows)) == (batch % rows == 0)


def test_policies_are_different_and_begin_with_those_of_the_rule() -> None:
    found = list(policies_for(LLAMA_8B))
    assert found[:2] == ["full", "offload"]
    assert len(set(found)) == len(found)
    assert Kept(on_device=(ATTENTION, "query", "key", "value", "output", "gate", "up")) in found


def test_words() -> None:
    assert Plan(remat="full").words == "blocks computed again"
    everything = (ATTENTION, "query", "key", "value", "output", "gate", "up")
    assert Plan(remat=Kept(on_device=everything)).words == "products and attention kept"
    assert Plan(remat=Kept(on_device=everything[1:])).words == "query key value output gate up kept"
    assert Plan(remat=Kept(on_device=everything, on_host=(BLOCK_INPUT,))).words == "products and attention kept, carries offloaded"
    kept = Plan(
        remat=Kept(on_device=("query", "gate"), on_host=(BLOCK_INPUT, "up")),
        parts=4,
        mesh=Mesh(replica=8, fsdp=64, tensor=2),
        loss_tokens_a_chip=8192,
    )
    assert kept.words == ("query gate kept, carries up offloaded, gradients over 4 parts, mesh 8 × 64 × 2, loss of 8,192 tokens at a time")


@pytest.mark.parametrize(("batch", "chunk"), [(1024, 2048 * 512), (512, 2048 * 512)])
def test_logits_exist_for_2048_tokens_a_chip(batch: int, chunk: int) -> None:
    spec = spec_for(step_of(LLAMA_8B, batch), find_slice("2x v5e-256"), Plan(remat="full"))
    assert spec.execution.loss_chunk_tokens == chunk
    assert spec.execution.attention == "splash"


NANO = step_of(TRINITY_NANO.model, 4096).but(optimizer=TRINITY_NANO.optimizer)


@pytest.mark.parametrize("name", ["v5p-1024", "2x tpu7x-128", "v5p-8"])
def test_every_mesh_of_a_sparse_model_is_one_that_the_trainer_takes(name: str) -> None:
    """Experts are dealt out in equal parts, weights and batch cut over fsdp and expert."""
    where = find_slice(name)
    found = settings_for(NANO, where)
    assert len(set(found)) == len(found)
    assert {setting.mesh.expert for setting in found} == {size for size in (1, 2, 4, 8, 16) if size <= where.devices_of_each}
    for setting in {setting.mesh: setting for setting in found}.values():
        mesh = setting.mesh
        assert mesh.replica * mesh.fsdp * mesh.expert * mesh.tensor == where.devices
        assert mesh.replica % where.count == 0
        check_mesh(mesh, NANO.model)
        spec = spec_for(NANO, where, setting.plan("full", where))
        check_batch(mesh, spec.execution.microbatch_sequences or 4096, "a part")


def test_experts_that_an_axis_does_not_divide_are_not_dealt_out_over_it() -> None:
    assert NANO.model.experts is not None
    ten = NANO.model.but(experts=NANO.model.experts.but(num_experts=10))
    assert {mesh.expert for mesh in meshes_for(ten, find_slice("v5p-64"))} == {1, 2}
    assert {mesh.expert for mesh in meshes_for(LLAMA_8B, find_slice("v5p-64"))} == {1}


LONG = NANO.but(model=NANO.model.but(seq_len=262_144), batch_sequences=128)


def test_long_rows_are_cut_along_positions_and_short_ones_and_those_of_gpus_are_not() -> None:
    where = find_slice("v5p-1024")
    assert contexts_for(NANO.model, where) == [1]
    assert contexts_for(LONG.model.but(seq_len=8192), where) == [1]
    assert contexts_for(LONG.model.but(seq_len=65_536), where) == [1, 2, 4, 8]
    assert contexts_for(LONG.model.but(seq_len=65_536 + 256), where) == [1]
    assert contexts_for(LONG.model, where) == [1, 2, 4, 8, 16]
    assert contexts_for(LONG.model, find_slice("h200-8")) == [1]


@pytest.mark.parametrize("step", [LONG, step_of(LLAMA_8B.but(seq_len=262_144), 128)], ids=["sparse", "dense"])
def test_fewer_rows_than_devices_are_cut_along_positions(step: StepShape) -> None:
    """128 rows on 512 chips: at least four chips a row, of which `tensor` may be a part."""
    where = find_slice("v5p-1024")
    found = settings_for(step, where)
    assert len(set(found)) == len(found)
    assert {setting.mesh.context * setting.mesh.tensor >= 4 for setting in found} == {True}
    assert {setting.mesh.context for setting in found} >= {2, 4, 8, 16}
    for setting in {setting.mesh: setting for setting in found}.values():
        mesh = setting.mesh
        assert mesh.devices == where.devices
        check_mesh(mesh, step.model)
        execution = spec_for(step, where, setting.plan("full", where)).execution
        assert execution.attention == "splash"
        check_batch(mesh, execution.microbatch_sequences or 128, "a part")
    assert "positions over 4" in Plan(remat="full", mesh=Mesh(fsdp=128, context=4)).words


def test_where_no_mesh_cuts_a_sparse_model_the_sizes_are_said() -> None:
    odd = NANO.but(model=NANO.model.but(d_model=1001))
    where = find_slice("v5p-1024")
    assert settings_for(odd, where) == []
    said = mesh_refusal(odd, where)
    assert "128 experts, d_model 1,001 and a batch of 4,096 sequences" in said
    assert "1 × 512 devices of v5p-1024" in said


def test_a_sparse_plan_names_the_kernel_and_the_exchange_that_only_tpus_have() -> None:
    where = find_slice("v5p-64")
    plan = Plan(remat="none", mesh=Mesh(fsdp=4, expert=8))
    assert spec_for(NANO, where, plan).execution.expert_kernel == "megablox"
    assert spec_for(step_of(LLAMA_8B, 1024), where, Plan(remat="full")).execution.expert_kernel == "auto"
    assert plan.words == "everything kept, mesh 1 × 4 × 1, experts over 8"


def test_every_policy_of_a_sparse_model_names_what_it_computes() -> None:
    """A model without gates on attention, without dense layers or without shared experts has no such products to keep."""
    assert NANO.model.experts is not None
    for model in (NANO.model, SPARSE, NANO.model.but(experts=NANO.model.experts.but(num_shared=0, num_dense_layers=0))):
        found = list(policies_for(model))
        assert found[:3] == ["full", "offload", "none"]
        assert len(set(found)) == len(found)
        for policy in found:
            if isinstance(policy, Kept):
                check_names(policy, model)
    most = Kept(on_device=tuple(name for group in SPARSE_GROUPS for name in group))
    assert most in list(policies_for(NANO.model))
    assert Plan(remat=most).words == "all products but the experts', and attention kept"
