import math

import numpy as np
import pytest

from phasewise.flows.recipes.trinity.large import PHASE_1 as LARGE
from phasewise.flows.recipes.trinity.small import TRINITY_MINI as MINI_RECIPE
from phasewise.flows.recipes.trinity.small import TRINITY_NANO as TRINITY_NANO_RECIPE
from phasewise.tasks.preflight import estimate as module
from phasewise.tasks.preflight.estimate import Table, estimate, ici_speed, kept_a_token, measure_policies, roofline_of, state_bytes
from phasewise.tasks.preflight.plan import GIB, Setting, policies_for, settings_for
from phasewise.tasks.preflight.slices import find_slice
from phasewise.trainer.config import ATTENTION, BLOCK_INPUT, Kept, Mesh
from phasewise.trainer.preflight.roofline import EXPOSED, UTILISATION
from phasewise.trainer.preflight.spec import Collective
from tests.tasks.preflight.steps import result_of
from tests.trainer.preflight.models import LLAMA_8B, LLAMA_32B, step_of

TRINITY_NANO, MINI = TRINITY_NANO_RECIPE.phases[0], MINI_RECIPE.phases[0]
MODEL = TRINITY_NANO.model
EXPERTS = 54 * 128 * 3 * 1024 * 256
V4 = find_slice("v4-2048")
STEP = step_of(LLAMA_32B, 8192)
NANO = step_of(TRINITY_NANO.model, 4096, keeps_average=False).but(optimizer=TRINITY_NANO.optimizer)
V5P = find_slice("v5p-1024")


def test_state_and_what_is_kept_by_hand():
    """8.03 B parameters, four copies of 4 bytes; 4,096 × 2 bytes a layer and token go from block to block."""
    assert 16 * 8.029e9 < state_bytes(step_of(LLAMA_8B, 1024)) < 16 * 8.031e9
    assert state_bytes(step_of(LLAMA_8B, 1024, keeps_average=False)) * 4 == state_bytes(step_of(LLAMA_8B, 1024)) * 3
    carry = 32 * 4096 * 2
    assert (kept_a_token(LLAMA_8B, "full"), kept_a_token(LLAMA_8B, "offload")) == ((carry, 0), (0, carry))
    assert kept_a_token(LLAMA_8B, "dots") == (carry + 32 * 2 * (6144 + 4096 + 2 * 14_336), 0)
    attention = 32 * (4096 * 2 + 32 * 4)
    assert kept_a_token(LLAMA_8B, Kept(on_device=(ATTENTION, "output"))) == (2 * carry + attention, 0)
    assert kept_a_token(LLAMA_8B, Kept(on_device=("query",), on_host=(BLOCK_INPUT, "up"))) == (carry, carry + 32 * 2 * 14_336)


def test_over_tensor_heads_are_cut_and_parts_halve_what_is_kept():
    cut = Kept(on_device=("query", "key", "value", "gate", "up", ATTENTION))
    carry = 32 * 4096 * 2
    whole, halved = (kept_a_token(LLAMA_8B, cut, tensor)[0] - carry for tensor in (1, 2))
    assert (halved, kept_a_token(LLAMA_8B, Kept(on_device=("output",)), 2)) == (whole / 2, (2 * carry, 0))
    assert module.block_a_token(LLAMA_8B, 2) < module.block_a_token(LLAMA_8B, 1)
    policies = measure_policies(STEP, V4, ["dots"], 1)
    mesh = Mesh(replica=8, fsdp=128)
    one, two = (estimate(STEP, V4, Setting(mesh, parts, 2048), policies) for parts in (4, 8))
    assert one.amounts[0, 1] == 2 * two.amounts[0, 1]
    compute, _, ici, _, _ = two.terms[0]
    assert compute == one.terms[0, 0]
    assert 1.3 < ici / one.terms[0, 2] < 2


def test_rows_that_are_cut_along_positions_by_hand_and_a_window_within_a_part_gathers_no_keys():
    """Four chips have four rows, one each or a quarter of each. Then each has the keys and values of four rows, of 8 heads, in one layer at
    a time, and their gradients; and sends three quarters of them, and of its queries and their results, three times in each layer."""
    where, step = find_slice("v5p-128"), step_of(LLAMA_8B.but(seq_len=32_768), 64)
    policies = measure_policies(step, where, ["full", "none"], 1)
    apart, cut = Mesh(fsdp=64), Mesh(fsdp=16, context=4)
    one, other = (estimate(step, where, Setting(mesh, 1, 2048), policies) for mesh in (apart, cut))
    keys = 32_768 * 4 * 2 * 2 * 8 * 128
    assert (other.known - one.known) * GIB == pytest.approx([2 * keys, 2 * keys])
    assert other.amounts[:, 1] - one.amounts[:, 1] == pytest.approx([0, 32 * keys / GIB])
    assert np.delete(other.amounts, 1, axis=1) == pytest.approx(np.delete(one.amounts, 1, axis=1))
    dealt = 32_768 * 2 * 2 * 32 * 128
    sent = 32 * (keys + dealt) * 3 / 4 / ici_speed("context", cut, where)
    assert other.terms[:, 2] - one.terms[:, 2] == pytest.approx([3 * sent, 2 * sent])
    assert np.delete(other.terms, 2, axis=1) == pytest.approx(np.delete(one.terms, 2, axis=1))
    offloaded = measure_policies(step, where, ["full", "offload"], 1)  # the compiler failed on it where rows are cut
    hosts = [np.isfinite(estimate(step, where, Setting(mesh, 1, 2048), offloaded).host).tolist() for mesh in (apart, cut)]
    assert hosts == [[True, True], [True, False]]
    model, mesh = LLAMA_8B.but(seq_len=32_768, sliding_window=4096, global_attention_every=4), Mesh(fsdp=16, context=4)
    assert (module.gathering_layers(model, mesh), module.gathering_layers(model.but(sliding_window=8193), mesh)) == (8, 8)
    assert (module.gathering_layers(model.but(sliding_window=8194), mesh), module.gathering_layers(model, Mesh(fsdp=64))) == (32, 0)


def test_the_projection_counts_every_link_once():
    where, step, setting = find_slice("2x v5e-256"), step_of(LLAMA_8B, 1024), Setting(Mesh(replica=4, fsdp=128), 1, 2048)
    gathered = Collective(kind="all-gather", axis="fsdp", link="ici", count=1, bytes=200 * 10**9)
    reduced = gathered.but(kind="all-reduce", axis="replica", bytes=50 * 10**9)
    collectives = (gathered, reduced, reduced.but(link="dcn", bytes=3_125_000_000))
    result = result_of(6.0).but(collectives=collectives, host_traffic_bytes=16 * 10**9)
    roofline = roofline_of(step, where, setting.plan("full", where), result)
    assert (roofline.ici, roofline.dcn, roofline.host) == pytest.approx((2.0, 1.0, 1.0))
    others = roofline.hbm + roofline.ici + roofline.dcn + roofline.host
    assert roofline.ranking_seconds == pytest.approx(roofline.compute + EXPOSED * others)


def test_estimates_of_memory_and_time_move_to_what_was_compiled():
    table = Table(STEP, V4, settings_for(STEP, V4), list(policies_for(STEP.model)))
    numbers = [0, 100, 5_000, 20_000, 40_000]
    truth = table.known + table.amounts @ np.array([2.0, 1.3, 1.9, 0.8])
    before = np.abs(table.gib() - truth)
    for number in numbers:
        table.learn(number, result_of(float(truth[number]), limit_gib=1e6), None)
    after = np.abs(table.gib() - truth)
    assert after[numbers].max() < 1.0
    assert np.median(after) < 0.2 * np.median(before)
    # Twice the traffic of HBM than was thought doubles the estimate of every plan.
    expected = dict(zip(("compute", "hbm", "ici", "dcn", "host"), table.terms[0], strict=True))
    plan = table.plan(0)
    result = result_of(20.0).but(hbm_bytes=round(2 * expected["hbm"] * 1200e9), collectives=())
    before = table.seconds()[1000]
    table.learn(0, result, roofline_of(STEP, V4, plan, result))
    assert table.seconds()[1000] - before == pytest.approx(EXPOSED * table.terms[1000, 1])


def test_experts_over_devices_are_cut_not_copied_and_rows_travel_again_where_blocks_are_computed_again():
    """64 devices hold the state, however many of them deal out the experts. An axis forgotten would make it eightfold."""
    policies = measure_policies(NANO, V5P, ["full"], 1)
    settings = (Setting(Mesh(replica=8, fsdp=64 // expert, expert=expert), 1, 2048) for expert in (1, 8))
    gathered, dealt = (estimate(NANO, V5P, setting, policies) for setting in settings)
    layers = [2 * 2 * 128 * 3 * 1024 * 256 / expert / GIB for expert in (1, 8)]
    assert gathered.known[0] - layers[0] == pytest.approx(dealt.known[0] - layers[1])
    assert gathered.known[0] - layers[0] == pytest.approx((state_bytes(NANO) + 4 * 6_120_003_328) / 64 / GIB)
    assert (gathered.amounts == dealt.amounts).all()
    policies = measure_policies(NANO, V5P, ["full", "none"], 1)
    full, kept = estimate(NANO, V5P, Setting(Mesh(replica=8, fsdp=8, expert=8), 1, 2048), policies).terms[:, 2]
    again, once = (module.exchanged_a_token(NANO.model, expert=8, again=again) for again in (True, False))
    assert full - kept == pytest.approx(8 * 4096 * (again - once) * 16 / 7 / 200e9, rel=0.05)
    alone = estimate(NANO, V5P, Setting(Mesh(replica=8, fsdp=64), 1, 2048), policies).terms[:, 2]
    assert alone[0] == alone[1]


def test_a_byte_loads_the_links_that_it_passes_and_torn_tiles_are_sent_twice():
    """Eight chips of a ring: 16 / 7 links at the mean; what is gathered goes to the neighbour. Sixteen, eight by two: as long a
    way on one axis."""
    mesh = Mesh(replica=8, fsdp=8, expert=8)
    gathered, sent = (Collective(kind=kind, axis="expert", link="ici", count=1, bytes=200 * 10**9) for kind in ("all-gather", "all-to-all"))
    assert [module.ici_seconds(one, mesh, V5P) for one in (gathered, sent)] == pytest.approx([1.0, 16 / 7])
    assert module.ici_seconds(sent, Mesh(replica=8, fsdp=4, expert=16), V5P) == pytest.approx(2 * 16 / 15)
    setting = Setting(Mesh(replica=8, fsdp=64), 1, 2048)
    plain, with_muon = (roofline_of(NANO, V5P, setting.plan("full", V5P), result_of(20.0).but(update_flops=flops)) for flops in (0, 10**14))
    assert with_muon.compute - plain.compute == pytest.approx(1e14 / (459e12 * UTILISATION))
    # Ironwood: four devices along an axis are two chips, with the one link between them for both; a device has half of a chip's.
    where = find_slice("tpu7x-128")
    assert ici_speed("expert", Mesh(fsdp=32, expert=4), where) == pytest.approx(300e9 / 3 / 2)
    assert ici_speed("fsdp", where.mesh, where) == 300e9
    policies = measure_policies(STEP, V4, ["full"], 1)
    # 32B over 1,024 chips: 5 rows of d_model a chip; over 128: 40.
    meshes = (Mesh(replica=8, fsdp=128), Mesh(fsdp=1024))
    fine, torn = (estimate(STEP, V4, Setting(one, 1, 2048), policies).terms[0, 2] * ici_speed("fsdp", one, V4) for one in meshes)
    assert torn > 1.5 * fine
    # v4-2048 is 8 × 8 × 16: all 1,024 chips use six links, 128 those of two axes, 2 have one link between them.
    assert (ici_speed("fsdp", V4.mesh, V4), ici_speed("fsdp", Mesh(replica=8, fsdp=128), V4)) == (300e9, pytest.approx(200e9))
    assert ici_speed("tensor", Mesh(fsdp=256, tensor=4), V4) == pytest.approx(100e9)
    assert ici_speed("tensor", Mesh(fsdp=512, tensor=2), V4) == pytest.approx(50e9)
    assert ici_speed("fsdp×tensor", Mesh(fsdp=512, tensor=2), V4) == 300e9
    two = find_slice("2x v5e-256")
    assert ici_speed("replica", Mesh(replica=4, fsdp=128), two) == pytest.approx(50e9)


@pytest.mark.parametrize(("phase", "total", "experts"), [
    (TRINITY_NANO, 6.12e9, EXPERTS), (MINI, 26.12e9, 30 * 128 * 3 * 2048 * 1024), (LARGE, 398.6e9, 54 * 256 * 3 * 3072 * 3072),
], ids=["nano", "mini", "large"])  # fmt: skip
def test_memory_counts_every_expert(phase: object, total: float, experts: int):
    found = module.count_weights(phase.model)  # type: ignore[attr-defined]
    assert (found.experts, sum(found)) == (experts, pytest.approx(total, rel=1e-3))


def test_muon_has_one_moment_for_its_matrices_and_two_for_all_else_and_its_steps_are_shared():
    """AdamW's weights: embedding, head, gains and the routers' biases. All else is Muon's, each expert too."""
    adam = 2 * 200_192 * 1024 + 56 * (4 * 1024 + 2 * 128) + 1024 + 54 * 128
    assert state_bytes(NANO) == 4 * (2 * sum(module.count_weights(MODEL)) + adam)
    assert state_bytes(NANO.but(optimizer=step_of(MODEL, 1).optimizer)) == 12 * sum(module.count_weights(MODEL))
    assert state_bytes(NANO.but(keeps_average=True)) - state_bytes(NANO) == 4 * sum(module.count_weights(MODEL))
    once, twice = (module.muon_flops(NANO, fsdp=fsdp, expert=8, tensor=1) for fsdp in (8, 16))
    assert once / 2 < twice < once
    assert module.muon_flops(NANO, fsdp=8, expert=16, tensor=1) < 0.9 * once
    assert module.muon_flops(step_of(LLAMA_8B, 8), fsdp=8, expert=1, tensor=1) == 0
    assert math.isfinite(once)


def test_what_is_exchanged_and_gathered_is_what_was_compiled():
    """On v5p-1024, eight rows a device: Trinity Nano with experts over 8 and blocks computed again, Mini with 16 and everything kept."""
    tokens = 8 * 4096
    assert tokens * module.exchanged_a_token(MODEL, expert=8, again=True) == 171_228_266_496
    assert tokens * module.exchanged_a_token(MINI.model, expert=16, again=False) == 128_345_702_400
    row, gate = 7 / 8 * 8 * 2 * 1024, 7 / 8 * 8 * 512
    assert module.exchanged_a_token(MODEL, expert=8, again=False) == 54 * (4 * row + 2 * gate)
    assert module.exchanged_a_token(MODEL.but(post_norms=False), expert=8, again=True) == 54 * (5 * row + 3 * gate)
    assert module.exchanged_a_token(MODEL, expert=1, again=True) == module.exchanged_a_token(LLAMA_8B, expert=8, again=True) == 0
    # 128 experts of a layer, and their gradients, two bytes a number; a quarter of them where four devices share.
    assert module.gathered_bytes(MODEL, expert=1, tensor=1) == 2 * 2 * 128 * 3 * 1024 * 256
    assert module.gathered_bytes(MODEL, expert=4, tensor=2) == module.gathered_bytes(MODEL, expert=1, tensor=1) / 8
    assert module.gathered_bytes(LLAMA_8B, expert=1, tensor=1) == 0


def test_what_is_kept_is_counted_in_the_layers_that_have_it():
    """Two dense layers, 54 with a shared expert, 56 with attention. Experts' products come with everything or not at all."""
    carry = 56 * 2 * 1024
    assert (kept_a_token(MODEL, "full"), kept_a_token(MODEL, "offload")) == ((carry, 0), (0, carry))
    assert kept_a_token(MODEL, Kept(on_device=("gate",)))[0] - carry == 2 * 2 * 3072
    assert kept_a_token(MODEL, Kept(on_device=("shared_gate",)))[0] - carry == 54 * 2 * 256
    assert kept_a_token(MODEL, Kept(on_device=("attention_gate",)), 2)[0] - carry == 56 * 1024
    assert kept_a_token(MODEL, Kept(on_device=(ATTENTION,)))[0] - carry == 56 * 8 * (2 * 128 + 4)
    experts = 54 * 2 * 8 * (2 * 256 + 1024)
    assert kept_a_token(MODEL, "none")[0] > kept_a_token(MODEL, "dots")[0] + experts
    assert MODEL.experts is not None
    more = MODEL.but(experts=MODEL.experts.but(num_active=9))
    assert module.block_a_token(more, 1) - module.block_a_token(MODEL, 1) == 2 * (2 * 256 + 1024) + 3 * 2 * 1024
