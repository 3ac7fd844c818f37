import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.preflight.models import LLAMA_8B
from trainer.config import ATTENTION, BLOCK_INPUT, Kept
from trainer.flops import step_flops
from trainer.preflight.roofline import UTILISATION, Speeds, StepWork, project, recomputed_flops, ring_share

SPEEDS = Speeds(flops=197e12, hbm_bytes=819e9, ici_bytes=200e9, dcn_bytes=3.125e9, host_bytes=16e9)
amounts = st.floats(min_value=0, max_value=1e20)


@given(flops=amounts, hbm=amounts, ici=amounts, dcn=amounts, host=amounts)
def test_the_largest_term_is_the_step_and_is_named(flops: float, hbm: float, ici: float, dcn: float, host: float) -> None:
    roofline = project(StepWork(flops=flops, hbm_bytes=hbm, ici_seconds=ici, dcn_bytes=dcn, host_bytes=host), SPEEDS)
    terms = [flops / (197e12 * UTILISATION), hbm / 819e9, ici, dcn / 3.125e9, host / 16e9]
    assert roofline.step_seconds == max(terms)
    assert getattr(roofline, roofline.binds) == max(terms)
    assert roofline.ranking_seconds == pytest.approx(max(terms) + 0.1 * (sum(terms) - max(terms)), rel=1e-6)


def test_figures_by_hand() -> None:
    """Marin 8B's step of 1,024 rows on 512 v5e: 2.5e17 FLOPs with its blocks computed again, 4.9e14 a chip, 1.2e14 a second."""
    again = recomputed_flops(LLAMA_8B, 1024, "full")
    executed = step_flops(LLAMA_8B, 1024).total + again
    roofline = project(StepWork(flops=executed / 512, hbm_bytes=0, ici_seconds=0, dcn_bytes=0, host_bytes=0), SPEEDS)
    assert 4.05 < roofline.step_seconds < 4.2
    assert roofline.binds == "compute"


def test_what_is_computed_again() -> None:
    """Of six FLOPs a parameter two are the forward pass. The head and each block's last product are left out, attention is not."""
    flops = step_flops(LLAMA_8B, 8)
    tokens = 8 * 4096
    blocks = flops.matrices - 6 * 4096 * 128_256 * tokens
    down = 6 * 32 * 4096 * 14_336 * tokens
    assert recomputed_flops(LLAMA_8B, 8, "full") == recomputed_flops(LLAMA_8B, 8, "offload") == (blocks - down + flops.attention) // 3
    assert recomputed_flops(LLAMA_8B, 8, "dots") == flops.attention // 3
    assert recomputed_flops(LLAMA_8B, 8, "none") == 0
    gate = 2 * 32 * 4096 * 14_336 * tokens
    full = recomputed_flops(LLAMA_8B, 8, Kept())
    assert full == recomputed_flops(LLAMA_8B, 8, "full")
    assert full - recomputed_flops(LLAMA_8B, 8, Kept(on_device=("gate",))) == gate
    assert full - recomputed_flops(LLAMA_8B, 8, Kept(on_host=("gate", BLOCK_INPUT))) == gate
    assert full - recomputed_flops(LLAMA_8B, 8, Kept(on_device=("down",))) == 0
    everything = Kept(on_device=("query", "key", "value", "output", "gate", "up"), on_host=(ATTENTION,))
    assert recomputed_flops(LLAMA_8B, 8, everything) == 0


@pytest.mark.parametrize(("chips", "share"), [(1, 1 / 3), (2, 1 / 6), (8, 1 / 3), (16, 1 / 3), (17, 2 / 3), (128, 2 / 3), (1024, 1.0)])
def test_the_links_that_a_ring_can_use(chips: int, share: float) -> None:
    assert ring_share(chips, (8, 8, 16)) == pytest.approx(share)
