from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.preflight.models import LLAMA_8B
from trainer.flops import step_flops
from trainer.preflight.roofline import UTILISATION, Speeds, StepWork, project, recomputed_flops

SPEEDS = Speeds(flops=197e12, hbm_bytes=819e9, ici_bytes=200e9, dcn_bytes=3.125e9)
amounts = st.floats(min_value=0, max_value=1e20)


@given(flops=amounts, hbm=amounts, ici=amounts, dcn=amounts)
def test_the_largest_term_is_the_step_and_is_named(flops: float, hbm: float, ici: float, dcn: float) -> None:
    roofline = project(StepWork(flops=flops, hbm_bytes=hbm, ici_bytes=ici, dcn_bytes=dcn), SPEEDS)
    terms = [flops / 197e12 / UTILISATION, hbm / 819e9, ici / 200e9, dcn / 3.125e9]
    assert roofline.step_seconds == max(terms)
    assert getattr(roofline, roofline.binds) == max(terms)


def test_figures_by_hand() -> None:
    """Marin 8B's step of 1,024 rows on 512 v5e: 2.65e17 FLOPs with its blocks computed again, 5.2e14 a chip, 1.2e14 a second."""
    again = recomputed_flops(LLAMA_8B, 1024, "full")
    executed = step_flops(LLAMA_8B, 1024).total + again
    roofline = project(StepWork(flops=executed / 512, hbm_bytes=0, ici_bytes=0, dcn_bytes=0), SPEEDS)
    assert 4.3 < roofline.step_seconds < 4.5
    assert roofline.binds == "compute"


def test_what_is_computed_again() -> None:
    """A third of the blocks' arithmetic: of six FLOPs a parameter two are the forward pass. The head is left out."""
    flops = step_flops(LLAMA_8B, 8)
    blocks = flops.matrices - 6 * 4096 * 128_256 * 8 * 4096
    assert recomputed_flops(LLAMA_8B, 8, "full") == recomputed_flops(LLAMA_8B, 8, "offload") == (blocks + flops.attention) // 3
    assert recomputed_flops(LLAMA_8B, 8, "dots") == flops.attention // 3
    assert recomputed_flops(LLAMA_8B, 8, "none") == 0
