import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.flows.recipes.trinity.small import TRINITY_NANO as TRINITY_NANO_RECIPE
from phasewise.tasks.preflight import plan as module
from phasewise.tasks.preflight.plan import Plan, Setting, batch_refusal, policies_for, settings_for, spec_for
from phasewise.tasks.preflight.slices import Slice, find_slice
from phasewise.trainer.config import ATTENTION, BLOCK_INPUT, Kept, Mesh
from phasewise.trainer.model.decoder import check_names
from phasewise.trainer.preflight.spec import StepShape, run_of
from phasewise.trainer.sharding import check_batch, check_mesh
from tests.trainer.preflight.models import LLAMA_8B, LLAMA_32B, SPARSE, step_of

TRINITY_NANO = TRINITY_NANO_RECIPE.phases[0]
NANO = step_of(TRINITY_NANO.model, 4096).but(optimizer=TRINITY_NANO.optimizer)
LONG = NANO.but(model=NANO.model.but(seq_len=262_144), batch_sequences=128)


def test_why_the_record_took_7680_sequences_on_three_slices():
    reason = batch_refusal(8192, find_slice("3x v5p-512"))
    assert all(part in (reason or "") for part in ("8,192 sequences", "3 × 256 = 768 chips", "7,680"))
    assert batch_refusal(7680, find_slice("3x v5p-512")) is None
    assert batch_refusal(8192, find_slice("4x v5p-512")) is None
    assert settings_for(step_of(LLAMA_32B, 8192), find_slice("3x v5p-512")) == []


@given(batch=st.integers(1, 20_000), name=st.sampled_from(["3x v5p-512", "2x v5e-256", "v4-2048", "v6e-128"]))
def test_a_batch_is_refused_exactly_where_the_chips_do_not_divide_it(batch: int, name: str):
    where = find_slice(name)
    reason = batch_refusal(batch, where)
    assert (reason is None) == (batch % where.chips == 0)
    if reason and batch > where.chips:
        assert f"{batch // where.chips * where.chips:,} or" in reason


def check_settings(step: StepShape, where: Slice) -> list[Setting]:
    found = settings_for(step, where)
    assert len(set(found)) == len(found)
    for setting in {(setting.mesh, setting.parts): setting for setting in found}.values():
        mesh = setting.mesh
        assert mesh.devices == mesh.replica * mesh.fsdp * mesh.expert * mesh.tensor * mesh.context == where.devices
        assert mesh.replica % where.count == 0
        check_mesh(mesh, step.model)
        execution = spec_for(step, where, setting.plan("full", where)).execution
        check_batch(mesh, execution.microbatch_sequences or step.batch_sequences, "a part")
    return found


@pytest.mark.parametrize("name", ["v4-2048", "4x v5p-512", "2x v5e-256", "v5e-4", "v6e-128"])
@pytest.mark.parametrize(("model", "batch"), [(LLAMA_8B, 1024), (LLAMA_32B, 8192)], ids=["8b", "32b"])
def test_every_setting_is_one_that_the_trainer_takes(name: str, model: object, batch: int):
    where = find_slice(name)
    step = step_of(model, batch)  # type: ignore[arg-type]
    found = check_settings(step, where)
    assert (found[0].mesh, found[0].parts) == (where.mesh, 1)
    for setting in found:
        spec = spec_for(step, where, setting.plan("full", where))
        run_of(spec.step, spec.execution)
        assert (spec.execution.microbatch_sequences or batch) * setting.parts == batch


def test_policies_are_different_name_what_the_model_computes_and_plans_have_words():
    found = list(policies_for(LLAMA_8B))
    assert (found[:2], len(set(found))) == (["full", "offload"], len(found))
    assert Kept(on_device=(ATTENTION, "query", "key", "value", "output", "gate", "up")) in found
    assert Plan(remat="full").words == "blocks computed again"
    everything = (ATTENTION, "query", "key", "value", "output", "gate", "up")
    assert Plan(remat=Kept(on_device=everything)).words == "products and attention kept"
    assert Plan(remat=Kept(on_device=everything[1:])).words == "query key value output gate up kept"
    assert Plan(remat=Kept(on_device=everything, on_host=(BLOCK_INPUT,))).words == "products and attention kept, carries offloaded"
    remat = Kept(on_device=("query", "gate"), on_host=(BLOCK_INPUT, "up"))
    kept = Plan(remat=remat, parts=4, mesh=Mesh(replica=8, fsdp=64, tensor=2), loss_tokens_a_chip=8192)
    assert kept.words == ("query gate kept, carries up offloaded, gradients over 4 parts, mesh 8 × 64 × 2, loss of 8,192 tokens at a time")
    assert NANO.model.experts is not None
    for model in (NANO.model, SPARSE, NANO.model.but(experts=NANO.model.experts.but(num_shared=0, num_dense_layers=0))):
        found = list(policies_for(model))
        assert (found[:3], len(set(found))) == (["full", "offload", "none"], len(found))
        for policy in found:
            if isinstance(policy, Kept):
                check_names(policy, model)
    most = Kept(on_device=tuple(name for group in module.SPARSE_GROUPS for name in group))
    assert most in list(policies_for(NANO.model))
    assert Plan(remat=most).words == "all products but the experts', and attention kept"


@pytest.mark.parametrize("name", ["v5p-1024", "2x tpu7x-128", "v5p-8"])
def test_every_mesh_of_a_sparse_model_is_one_that_the_trainer_takes(name: str):
    where = find_slice(name)
    found = check_settings(NANO, where)
    assert {setting.mesh.expert for setting in found} == {size for size in (1, 2, 4, 8, 16) if size <= where.devices_of_each}


def test_heads_experts_and_positions_are_dealt_out_only_in_equal_parts():
    assert NANO.model.experts is not None
    ten = NANO.model.but(experts=NANO.model.experts.but(num_experts=10))
    assert {mesh.expert for mesh in module.meshes_for(ten, find_slice("v5p-64"))} == {1, 2}
    assert {mesh.expert for mesh in module.meshes_for(LLAMA_8B, find_slice("v5p-64"))} == {1}
    where = find_slice("v5p-1024")
    assert (module.contexts_for(NANO.model, where), module.contexts_for(LONG.model.but(seq_len=8192), where)) == ([1], [1])
    assert module.contexts_for(LONG.model.but(seq_len=65_536), where) == [1, 2, 4, 8]
    assert module.contexts_for(LONG.model.but(seq_len=65_536 + 256), where) == [1]
    assert (module.contexts_for(LONG.model, where), module.contexts_for(LONG.model, find_slice("h200-8"))) == ([1, 2, 4, 8, 16], [1])
    where = find_slice("v5e-256")
    assert {mesh.tensor for mesh in module.meshes_for(LLAMA_8B, where)} == {1, 2, 4, 8}
    assert {mesh.tensor for mesh in module.meshes_for(LLAMA_8B.but(num_query_heads=24, num_kv_heads=3), where)} == {1}


@pytest.mark.parametrize("step", [LONG, step_of(LLAMA_8B.but(seq_len=262_144), 128)], ids=["sparse", "dense"])
def test_fewer_rows_than_devices_are_cut_along_positions(step: StepShape):
    """128 rows on 512 chips: at least four chips a row, of which `tensor` may be a part."""
    where = find_slice("v5p-1024")
    found = check_settings(step, where)
    assert {setting.mesh.context * setting.mesh.tensor >= 4 for setting in found} == {True}
    assert {setting.mesh.context for setting in found} >= {2, 4, 8, 16}
    for setting in {setting.mesh: setting for setting in found}.values():
        assert spec_for(step, where, setting.plan("full", where)).execution.attention == "splash"
    assert "positions over 4" in Plan(remat="full", mesh=Mesh(fsdp=128, context=4)).words


def test_logits_exist_for_2048_tokens_a_chip_a_sparse_plan_names_its_kernel_and_sizes_that_no_mesh_cuts_are_said():
    odd = NANO.but(model=NANO.model.but(d_model=1001))
    where = find_slice("v5p-1024")
    assert settings_for(odd, where) == []
    said = module.mesh_refusal(odd, where)
    assert "128 experts, d_model 1,001 and a batch of 4,096 sequences" in said
    assert "1 × 512 devices of v5p-1024" in said
    where = find_slice("v5p-64")
    plan = Plan(remat="none", mesh=Mesh(fsdp=4, expert=8))
    assert spec_for(NANO, where, plan).execution.expert_kernel == "megablox"
    assert spec_for(step_of(LLAMA_8B, 1024), where, Plan(remat="full")).execution.expert_kernel == "auto"
    assert plan.words == "everything kept, mesh 1 × 4 × 1, experts over 8"
    for batch in (1024, 512):
        execution = spec_for(step_of(LLAMA_8B, batch), find_slice("2x v5e-256"), Plan(remat="full")).execution
        assert (execution.loss_chunk_tokens, execution.attention) == (2048 * 512, "splash")
