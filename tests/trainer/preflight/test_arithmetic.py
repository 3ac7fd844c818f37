from phasewise.trainer.preflight.hlo import Module
from phasewise.trainer.preflight.module_costs import product_flops, update_flops
from tests.trainer.preflight.snippets import PRODUCTS


def test_muons_products_count_and_the_models_do_not() -> None:
    """16 matrices of 256 × 256, each by itself, five times. The convolution's window is 16 long, and 15 of it meet nothing."""
    assert update_flops(Module(PRODUCTS)) == 5 * 16 * 2 * 256**3


def test_a_product_of_tokens_with_heads_of_a_weight() -> None:
    """8 × 4,096 tokens of 1,024, with 8 heads of 128; the window is filled up with 7 on both sides."""
    here = Module(PRODUCTS).computations["main"]
    assert product_flops(here, here["convolution.2"]) == 2 * (8 * 4096) * 1024 * (8 * 128)


def test_what_is_differentiated_is_not_the_optimizers_even_if_it_is_the_same() -> None:
    inside = PRODUCTS.replace("jit(traced)/while/body", "jit(traced)/transpose(jvp())/while/body")
    assert update_flops(Module(inside)) == 0
