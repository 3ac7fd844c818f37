import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.preflight.plan import (
    GIB,
    PLANS,
    Plan,
    batch_refusal,
    carry_a_token,
    estimate_refusal,
    kept_a_token,
    least_bytes,
    plans_for,
    spec_for,
    state_bytes,
)
from tasks.preflight.slices import find_slice
from tests.trainer.preflight.models import LLAMA_8B, LLAMA_32B, step_of
from trainer.config import Mesh
from trainer.preflight.spec import run_of


def test_why_the_record_took_7680_sequences_on_three_slices() -> None:
    reason = batch_refusal(8192, find_slice("3x v5p-512"))
    assert reason is not None
    assert "8,192 sequences" in reason
    assert "3 × 256 = 768 chips" in reason
    assert "7,680" in reason
    assert batch_refusal(7680, find_slice("3x v5p-512")) is None
    assert batch_refusal(8192, find_slice("4x v5p-512")) is None


@given(batch=st.integers(1, 20_000), name=st.sampled_from(["3x v5p-512", "2x v5e-256", "v4-2048", "v6e-128"]))
def test_a_batch_is_refused_exactly_where_the_chips_do_not_divide_it(batch: int, name: str) -> None:
    where = find_slice(name)
    reason = batch_refusal(batch, where)
    assert (reason is None) == (batch % where.chips == 0)
    if reason and batch > where.chips:
        assert f"{batch // where.chips * where.chips:,} or" in reason


def test_plans_go_from_the_least_arithmetic_to_the_least_memory() -> None:
    where = find_slice("v4-2048")
    step = step_of(LLAMA_32B, 8192)
    bounds = [least_bytes(step, where, plan) for plan in PLANS]
    assert bounds == sorted(bounds, reverse=True)
    assert [plan.remat for plan in PLANS[:3]] == ["dots", "full", "offload"]
    assert all(plan.parts > 1 for plan in PLANS[3:])


@given(batch=st.integers(1, 64).map(lambda times: times * 256), fsdp=st.sampled_from([64, 128, 256]))
def test_every_plan_makes_a_run_that_the_trainer_takes(batch: int, fsdp: int) -> None:
    mesh = Mesh(replica=1, fsdp=fsdp)
    where = find_slice({64: "v4-128", 128: "v6e-128", 256: "v5e-256"}[fsdp])
    step = step_of(LLAMA_8B, batch)
    plans = list(plans_for(batch, mesh))
    assert plans[:3] == list(PLANS[:3])
    for plan in plans:
        spec = spec_for(step, where, plan)
        run_of(spec.step, spec.execution)
        part = spec.execution.microbatch_sequences or batch
        assert part * plan.parts == batch
        assert part % (mesh.replica * mesh.fsdp) == 0


def test_state_and_carries_by_hand() -> None:
    """8.03 B parameters, four copies of 4 bytes, and 4,096 × 2 bytes a layer and token."""
    assert 16 * 8.029e9 < state_bytes(step_of(LLAMA_8B, 1024)) < 16 * 8.031e9
    assert state_bytes(step_of(LLAMA_8B, 1024, keeps_average=False)) * 4 == state_bytes(step_of(LLAMA_8B, 1024)) * 3
    assert carry_a_token(LLAMA_8B) == 32 * 4096 * 2
    assert kept_a_token(LLAMA_8B) == 32 * 2 * (4096 + 6144 + 2 * 4096 + 2 * 14_336)


def test_a_hopeless_plan_is_not_compiled_and_says_so() -> None:
    where = find_slice("v4-2048")
    step = step_of(LLAMA_32B, 8192)
    reason = estimate_refusal(step, where, Plan(remat="dots"))
    assert reason is not None
    assert "estimated" in reason
    assert estimate_refusal(step, where, Plan(remat="full")) is None
    assert least_bytes(step, where, Plan(remat="full")) > 20 * GIB


@pytest.mark.parametrize(("batch", "chunk"), [(1024, 2048 * 512), (512, 2048 * 512)])
def test_logits_exist_for_2048_tokens_a_chip(batch: int, chunk: int) -> None:
    spec = spec_for(step_of(LLAMA_8B, batch), find_slice("2x v5e-256"), Plan(remat="full"))
    assert spec.execution.loss_chunk_tokens == chunk
    assert spec.execution.attention == "splash"
