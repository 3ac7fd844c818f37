import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.trainer.config import ATTENTION, BLOCK_INPUT, Kept
from phasewise.trainer.flops import step_flops
from phasewise.trainer.model.params import count_active_parameters
from phasewise.trainer.preflight import roofline as rooflines
from phasewise.trainer.preflight.spec import Speeds
from tests.trainer.preflight.models import LLAMA_8B, SPARSE

SPEEDS = Speeds(flops=197e12, hbm_bytes=819e9, ici_bytes=200e9, dcn_bytes=3.125e9, host_bytes=16e9)
amounts = st.floats(min_value=0, max_value=1e20)


@given(flops=amounts, hbm=amounts, ici=amounts, dcn=amounts, host=amounts)
def test_the_largest_term_is_the_step_and_is_named(flops: float, hbm: float, ici: float, dcn: float, host: float) -> None:
    roofline = rooflines.project(rooflines.StepWork(flops=flops, hbm_bytes=hbm, ici_seconds=ici, dcn_bytes=dcn, host_bytes=host), SPEEDS)
    terms = [flops / (197e12 * rooflines.UTILISATION), hbm / 819e9, ici, dcn / 3.125e9, host / 16e9]
    assert roofline.step_seconds == max(terms)
    assert getattr(roofline, roofline.binds) == max(terms)
    assert roofline.ranking_seconds == pytest.approx(max(terms) + 0.1 * (sum(terms) - max(terms)), rel=1e-6)


def test_figures_by_hand() -> None:
    """Marin 8B's step of 1,024 rows on 512 v5e: 2.5e17 FLOPs with its blocks computed again, 4.9e14 a chip, 1.2e14 a second."""
    again = rooflines.recomputed_flops(LLAMA_8B, 1024, "full")
    executed = step_flops(LLAMA_8B, 1024).total + again
    roofline = rooflines.project(rooflines.StepWork(flops=executed / 512, hbm_bytes=0, ici_seconds=0, dcn_bytes=0, host_bytes=0), SPEEDS)
    assert 4.05 < roofline.step_seconds < 4.2
    assert roofline.binds == "compute"


def test_what_is_computed_again() -> None:
    """Of six FLOPs a parameter two are the forward pass. The head and each block's last product are left out, attention is not."""
    flops = step_flops(LLAMA_8B, 8)
    tokens = 8 * 4096
    blocks = flops.matrices - 6 * 4096 * 128_256 * tokens
    down = 6 * 32 * 4096 * 14_336 * tokens
    assert (
        rooflines.recomputed_flops(LLAMA_8B, 8, "full")
        == rooflines.recomputed_flops(LLAMA_8B, 8, "offload")
        == (blocks - down + flops.attention) // 3
    )
    assert rooflines.recomputed_flops(LLAMA_8B, 8, "dots") == flops.attention // 3
    assert rooflines.recomputed_flops(LLAMA_8B, 8, "none") == 0
    gate = 2 * 32 * 4096 * 14_336 * tokens
    full = rooflines.recomputed_flops(LLAMA_8B, 8, Kept())
    assert full == rooflines.recomputed_flops(LLAMA_8B, 8, "full")
    everything = Kept(on_device=("query", "key", "value", "output", "gate", "up"), on_host=(ATTENTION,))
    policies = Kept(on_device=("gate",)), Kept(on_host=("gate", BLOCK_INPUT)), Kept(on_device=("down",)), everything
    assert [full - rooflines.recomputed_flops(LLAMA_8B, 8, kept) for kept in policies] == [gate, gate, 0, full]


@pytest.mark.parametrize(("chips", "share"), [(1, 1 / 3), (2, 1 / 6), (8, 1 / 3), (16, 1 / 3), (17, 2 / 3), (128, 2 / 3), (1024, 1.0)])
def test_the_links_that_a_ring_can_use(chips: int, share: float) -> None:
    assert rooflines.ring_share(chips, (8, 8, 16)) == pytest.approx(share)


@pytest.mark.parametrize(
    ("chips", "torus"), [(4, (4, 4)), (8, (8, 8, 8)), (16, (8, 8, 8)), (64, (8, 8, 4)), (256, (16, 16)), (1024, (8, 8, 16))]
)
def test_an_all_to_all_is_as_quick_as_its_busiest_axis(chips: int, torus: tuple[int, ...]) -> None:
    """Counted: the shortest way from one chip to each other one, and the steps of it along each axis, which has two links a chip."""
    sides, left = [], chips
    for length in sorted(torus, reverse=True):
        sides.append(min(length, left))
        left //= sides[-1]
    places = list(itertools.product(*map(range, sides)))
    along = [sum(min(place[axis], side - place[axis]) for place in places) / (chips - 1) for axis, side in enumerate(sides)]
    busiest = max(steps * (2 if side == 2 else 1) for steps, side in zip(along, sides, strict=True))
    assert rooflines.exchange_share(chips, torus) == pytest.approx(1 / busiest / len(torus))


def test_two_chips_have_one_link_between_them() -> None:
    assert rooflines.exchange_share(2, (8, 8, 16)) == rooflines.ring_share(2, (8, 8, 16)) == pytest.approx(1 / 6)
    assert rooflines.exchange_share(1, (8, 8, 16)) == rooflines.ring_share(1, (8, 8, 16))


def test_a_token_meets_its_own_experts_and_no_others() -> None:
    """With a norm behind each part every product of a block is needed again; of the experts, those that a token is routed to."""
    assert SPARSE.experts is not None
    found = rooflines.products(SPARSE)
    multiplied = sum(each.inputs * each.outputs * each.copies * each.layers for each in found.values())
    assert multiplied == count_active_parameters(SPARSE, only_matrices=True) - SPARSE.d_model * SPARSE.vocab_size
    assert found["expert_gate"].copies == SPARSE.experts.num_active
    doubled = SPARSE.but(experts=SPARSE.experts.but(num_experts=2 * SPARSE.experts.num_experts))
    assert found["expert_gate"] == rooflines.products(doubled)["expert_gate"]


def test_experts_are_computed_again_with_whatever_is_kept_by_name() -> None:
    assert SPARSE.experts is not None
    tokens = 8 * SPARSE.seq_len
    layers = SPARSE.num_layers - SPARSE.experts.num_dense_layers
    experts = 2 * 3 * SPARSE.d_model * SPARSE.experts.d_expert * SPARSE.experts.num_active * layers * tokens
    everything = Kept(on_device=(ATTENTION, *sorted(rooflines.NAMED)))
    assert rooflines.recomputed_flops(SPARSE, 8, everything) == experts
    assert rooflines.recomputed_flops(SPARSE, 8, "none") == 0
    flops = step_flops(SPARSE, 8)
    head = 6 * SPARSE.d_model * SPARSE.vocab_size * tokens
    assert rooflines.recomputed_flops(SPARSE, 8, "full") == (flops.total - head) // 3
