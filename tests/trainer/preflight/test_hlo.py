import pytest

from phasewise.trainer.preflight.hlo import Module, arrays, hbm_bytes, total_bytes
from phasewise.trainer.preflight.module_costs import host_traffic_bytes, product_flops, traffic_bytes, update_flops
from tests.trainer.preflight.snippets import LOOP, NESTED, PRODUCTS, TAKEN, UPDATE


def test_a_loop_runs_from_where_its_counter_starts_to_its_limit() -> None:
    """The compiler took the first of 64 passes out of the loop: its counter starts at 1, through a copy, and 63 is the limit."""
    expected = {"wide.body": 62, "inner.body": 16, "fused_computation.start": 62, "main.143_spmd": 1}
    assert expected.items() <= Module(LOOP).count_runs().items()


def test_a_trip_count_that_is_written_down_counts_and_a_loop_whose_limit_is_not_seen_runs_once() -> None:
    written = LOOP.replace("body=%inner.body", 'body=%inner.body, backend_config={"known_trip_count":{"n":"5"}}')
    unseen = LOOP.replace("s32[]{:T(128)} constant(16)", "s32[]{:T(128)} parameter(1)")
    assert [Module(text).count_runs()["inner.body"] for text in (written, unseen)] == [5, 1]


@pytest.mark.parametrize(
    ("shape", "total", "in_hbm"),
    [
        ("bf16[8,64]{1,0:T(8,128)(2,1)}", 1024, 1024),
        ("f32[2,3]{1,0:T(8,128)S(1)}", 24, 0),
        ("(f32[4]{0}, /*index=5*/pred[8]{0:T(512)}, u32[]{:S(2)})", 28, 24),
        ("s4[16]{0:T(128)}", 16, 16),
        ("token[]", 0, 0),
    ],
)
def test_bytes_of_shapes(shape: str, total: int, in_hbm: int) -> None:
    assert (total_bytes(shape), hbm_bytes(shape)) == (total, in_hbm)


def test_types_and_memory_spaces() -> None:
    assert [total_bytes(f"{name}[1]") for name in ("pred", "s8", "bf16", "f32", "f64", "f8e4m3fn", "token")] == [1, 1, 2, 4, 8, 1, 0]
    assert [array.space for array in arrays("(f32[1]{0:S(5)}, f32[1]{0}, f32[1])")] == [5, 0, 0]


def test_traffic_counts_slices_as_slices_and_leaves_the_fast_memory_out() -> None:
    """One layer of 32 read and one written, a row read twice into the fast memory, and a row read and written on its way to the host."""
    layer, row = 16 * 128 * 4, 16 * 128 * 4
    assert traffic_bytes(Module(UPDATE)) == 2 * layer + 2 * row + 2 * row


LAYER = 8 * 128 * 2
STACKED, UPDATE_OF, INDEX, ON_HOST = "%param.1", "%param.2", "%param.3", "%param.4"


@pytest.mark.parametrize(
    ("line", "moved", "to_host"),
    [
        (f"%f.1 = bf16[8,128]{{1,0}} fusion({STACKED}, {INDEX}), kind=kLoop, calls=%outer.read", 2 * LAYER + 4, 0),
        (f"%f.2 = bf16[64,8,128]{{2,1,0}} fusion({STACKED}, {UPDATE_OF}, {INDEX}), kind=kLoop, calls=%outer.write", 2 * LAYER + 4, 0),
        (f"%a.1 = ((bf16[64,8,128]), bf16[1,8,128]{{2,1,0:S(1)}}, s32[]) async-start({STACKED}), calls=%async.slice", 0, 0),
        (
            f"%a.2 = ((bf16[64,8,128]{{2,1,0:S(5)}}), s32[]) async-start({ON_HOST}, {UPDATE_OF}, {INDEX}), calls=%async.out",
            2 * LAYER,
            LAYER,
        ),
        (f"%a.3 = ((bf16[64,8,128]{{2,1,0:S(5)}}), s32[]) async-start({ON_HOST}, {INDEX}), calls=%async.in", 2 * LAYER, LAYER),
        (f"%c.1 = (bf16[64,8,128]{{2,1,0:S(5)}}, bf16[64,8,128]{{2,1,0}}, u32[]) copy-start({STACKED})", 2 * 64 * LAYER, 64 * LAYER),
        (f"%c.2 = bf16[64,8,128]{{2,1,0}} copy({STACKED})", 2 * 64 * LAYER, 0),
    ],
    ids=["read within fusions", "written in one", "slice begun", "to the host", "from the host", "copied to the host", "copied here"],
)
def test_one_layer_of_a_stack_is_one_layer_however_it_is_taken(line: str, moved: int, to_host: int) -> None:
    module = Module(NESTED.replace("READ", line))
    assert traffic_bytes(module) == moved
    assert host_traffic_bytes(module) == to_host


ROWS_OF, NUMBERS, SORTED = "%param.5", "%param.6", "%param.7"
SPARSE_CORE = 'custom_call_target="TODO(b/522284627)"'


@pytest.mark.parametrize(
    ("line", "moved"),
    [
        (f"%g.1 = bf16[4,128]{{1,0}} gather({ROWS_OF}, {NUMBERS}), offset_dims={{1}}", 2 * 4 * 128 * 2),
        (f"%g.2 = ((), ()) async-start({ROWS_OF}, {NUMBERS}), calls=%async.gather", 2 * 4 * 128 * 2),
        (f"%g.3 = ((bf16[512,128], s32[4]), bf16[4,128]{{1,0}}) async-update({ROWS_OF}, {NUMBERS})", 0),
        (f"%g.4 = bf16[4,128]{{1,0}} custom-call({ROWS_OF}, {NUMBERS}), {SPARSE_CORE}", 2 * 4 * 128 * 2),
        (f'%k.1 = bf16[4,128]{{1,0}} custom-call({ROWS_OF}, {NUMBERS}), custom_call_target="tpu_custom_call"', 516 * 128 * 2 + 4 * 4),
        (f"%r.1 = bf16[640,128]{{1,0}} ragged-all-to-all({ROWS_OF}, {SORTED}, {NUMBERS})", 2 * 512 * 128 * 2),
        (f"%r.2 = bf16[512,128]{{1,0}} ragged-all-to-all({SORTED}, {ROWS_OF}, {NUMBERS})", 2 * 512 * 128 * 2),
    ],
    ids=["gather", "begun", "going on", "on a sparse core", "a kernel of our own", "rows sent", "rows returned"],
)
def test_rows_that_are_taken_by_number_are_those_rows_alone(line: str, moved: int) -> None:
    """Four rows of 512; and of the room for received rows those that come. What goes on is counted where it begins."""
    assert traffic_bytes(Module(TAKEN.replace("READ", line))) == moved


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
