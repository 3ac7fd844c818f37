import numpy as np
import pytest

from tasks.preflight.candidates import Setting, policies_for, settings_for
from tasks.preflight.estimate import Table, estimate, measure_policies
from tasks.preflight.projection import ici_speed, roofline_of
from tasks.preflight.sizes import block_a_token, kept_a_token, state_bytes
from tasks.preflight.slices import find_slice
from tests.tasks.preflight.steps import result_of
from tests.trainer.preflight.models import LLAMA_8B, LLAMA_32B, step_of
from trainer.config import ATTENTION, BLOCK_INPUT, Kept, Mesh
from trainer.preflight.roofline import EXPOSED
from trainer.preflight.spec import Collective

V4 = find_slice("v4-2048")
STEP = step_of(LLAMA_32B, 8192)


def test_state_and_what_is_kept_by_hand() -> None:
    """8.03 B parameters, four copies of 4 bytes; 4,096 × 2 bytes a layer and token go from block to block."""
    assert 16 * 8.029e9 < state_bytes(step_of(LLAMA_8B, 1024)) < 16 * 8.031e9
    assert state_bytes(step_of(LLAMA_8B, 1024, keeps_average=False)) * 4 == state_bytes(step_of(LLAMA_8B, 1024)) * 3
    carry = 32 * 4096 * 2
    assert kept_a_token(LLAMA_8B, "full") == (carry, 0)
    assert kept_a_token(LLAMA_8B, "offload") == (0, carry)
    assert kept_a_token(LLAMA_8B, "dots") == (carry + 32 * 2 * (6144 + 4096 + 2 * 14_336), 0)
    attention = 32 * (4096 * 2 + 32 * 4)
    assert kept_a_token(LLAMA_8B, Kept(on_device=(ATTENTION, "output"))) == (2 * carry + attention, 0)
    assert kept_a_token(LLAMA_8B, Kept(on_device=("query",), on_host=(BLOCK_INPUT, "up"))) == (carry, carry + 32 * 2 * 14_336)


def test_over_tensor_heads_and_d_ff_are_cut_and_the_residual_stream_is_not() -> None:
    cut = Kept(on_device=("query", "key", "value", "gate", "up", ATTENTION))
    carry = 32 * 4096 * 2
    whole, halved = (kept_a_token(LLAMA_8B, cut, tensor)[0] - carry for tensor in (1, 2))
    assert halved == whole / 2
    assert kept_a_token(LLAMA_8B, Kept(on_device=("output",)), 2) == (2 * carry, 0)
    assert block_a_token(LLAMA_8B, 2) < block_a_token(LLAMA_8B, 1)


def test_parts_halve_what_is_kept_and_double_what_is_sent() -> None:
    policies = measure_policies(STEP, V4, ["dots"], 1)
    mesh = Mesh(replica=8, fsdp=128)
    one, two = (estimate(STEP, V4, Setting(mesh, parts, 2048), policies) for parts in (4, 8))
    assert one.amounts[0, 1] == 2 * two.amounts[0, 1]
    compute, _, ici, _, _ = two.terms[0]
    assert compute == one.terms[0, 0]
    assert 1.3 < ici / one.terms[0, 2] < 2


def test_a_part_of_d_model_that_is_not_whole_tiles_sends_twice() -> None:
    """32B over 1,024 chips: 5 rows of d_model a chip; over 128: 40."""
    policies = measure_policies(STEP, V4, ["full"], 1)
    fine, torn = (
        estimate(STEP, V4, Setting(mesh, 1, 2048), policies).terms[0, 2] * ici_speed("fsdp", mesh, V4)
        for mesh in (Mesh(replica=8, fsdp=128), Mesh(fsdp=1024))
    )
    assert torn > 1.5 * fine


def test_a_ring_uses_the_links_along_the_axes_that_it_spans() -> None:
    """v4-2048 is 8 × 8 × 16: all 1,024 chips use six links, 128 those of two axes, 2 have one link between them."""
    assert ici_speed("fsdp", V4.mesh, V4) == 300e9
    assert ici_speed("fsdp", Mesh(replica=8, fsdp=128), V4) == pytest.approx(200e9)
    assert ici_speed("tensor", Mesh(fsdp=256, tensor=4), V4) == pytest.approx(100e9)
    assert ici_speed("tensor", Mesh(fsdp=512, tensor=2), V4) == pytest.approx(50e9)
    assert ici_speed("fsdp×tensor", Mesh(fsdp=512, tensor=2), V4) == 300e9
    two = find_slice("2x v5e-256")
    assert ici_speed("replica", Mesh(replica=4, fsdp=128), two) == pytest.approx(50e9)


def test_the_projection_counts_every_link_once() -> None:
    where = find_slice("2x v5e-256")
    step = step_of(LLAMA_8B, 1024)
    setting = Setting(Mesh(replica=4, fsdp=128), 1, 2048)
    result = result_of(6.0).but(
        collectives=(
            Collective(kind="all-gather", axis="fsdp", link="ici", count=1, bytes=200 * 10**9),
            Collective(kind="all-reduce", axis="replica", link="ici", count=1, bytes=50 * 10**9),
            Collective(kind="all-reduce", axis="replica", link="dcn", count=1, bytes=3_125_000_000),
        ),
        host_traffic_bytes=16 * 10**9,
    )
    roofline = roofline_of(step, where, setting.plan("full", where), result)
    assert roofline.ici == pytest.approx(2.0)
    assert roofline.dcn == pytest.approx(1.0)
    assert roofline.host == pytest.approx(1.0)
    others = roofline.hbm + roofline.ici + roofline.dcn + roofline.host
    assert roofline.ranking_seconds == pytest.approx(roofline.compute + EXPOSED * others)


def test_estimates_move_to_what_was_compiled() -> None:
    table = Table(STEP, V4, settings_for(STEP, V4), list(policies_for(STEP.model)))
    numbers = [0, 100, 5_000, 20_000, 40_000]
    truth = table.known + table.amounts @ np.array([2.0, 1.3, 1.9, 0.8])
    before = np.abs(table.gib() - truth)
    for number in numbers:
        table.learn(number, result_of(float(truth[number]), limit_gib=1e6), None)
    after = np.abs(table.gib() - truth)
    assert after[numbers].max() < 1.0
    assert np.median(after) < 0.2 * np.median(before)


def test_times_move_to_what_was_compiled() -> None:
    """Twice the traffic of HBM than was thought doubles the estimate of every plan."""
    table = Table(STEP, V4, settings_for(STEP, V4), list(policies_for(STEP.model)))
    expected = dict(zip(("compute", "hbm", "ici", "dcn", "host"), table.terms[0], strict=True))
    plan = table.plan(0)
    result = result_of(20.0).but(hbm_bytes=round(2 * expected["hbm"] * 1200e9), collectives=())
    before = table.seconds()[1000]
    table.learn(0, result, roofline_of(STEP, V4, plan, result))
    assert table.seconds()[1000] - before == pytest.approx(EXPOSED * table.terms[1000, 1])
