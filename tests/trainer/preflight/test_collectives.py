import pytest

from phasewise.trainer.config import Mesh
from phasewise.trainer.preflight.hlo import Module
from phasewise.trainer.preflight.module_costs import first_group, read_collectives, traffic_bytes
from tests.trainer.preflight.snippets import EXPERT_ROWS, LOOP, OFFLOADED

MESH = Mesh(replica=2, fsdp=4)


def test_kinds_axes_links_and_loops() -> None:
    """An asynchronous gather in three fusions counts once."""
    found = {(each.kind, each.axis, each.link): (each.count, each.bytes) for each in read_collectives(Module(LOOP), MESH, 2)}
    gathered, reduced, between = 8 * 64 * 2, 4 * 128 * 4, 224 * 8 * 128 * 2
    assert found == {
        ("all-gather", "fsdp", "ici"): (62, 62 * gathered * 3 // 4),
        ("all-reduce", "fsdp", "ici"): (16, 16 * reduced * 2 * 3 // 4),
        ("all-reduce", "replica", "dcn"): (1, between),
    }


def count(text: str, kind: str) -> int:
    return sum(each.count for each in read_collectives(Module(text), MESH, 2) if (each.kind, each.axis) == (kind, "fsdp"))


def test_what_was_taken_out_of_a_loop_counts_there_too() -> None:
    """It keeps its channel; the second is asynchronous."""
    line = next(line for line in LOOP.splitlines() if "%all-reduce.1 =" in line)
    outside = line.replace("%all-reduce.1", "%all-reduce.2").replace("%get-tuple-element.3", "%param.2")
    text = LOOP.replace("  %send.21", f"{outside}\n  %send.21")
    assert count(text, "all-reduce") == 17
    start = LOOP[LOOP.index("%fused_computation.start") : LOOP.index("%async_collective_fusion.532 (")]
    text = start.replace("%fused_computation.start", "%fused_computation.peeled") + LOOP.replace(
        "  %send.21",
        "  %fusion.8 = (bf16[2,64]{1,0}, bf16[8,64]{1,0}) fusion(%param.1), kind=kCustom, calls=%fused_computation.peeled\n  %send.21",
    )
    assert count(text, "all-gather") == 63


@pytest.mark.parametrize(
    ("text", "group"),
    [
        ("replica_groups={{0,4},{1,5}}, to_apply=%add", [0, 4]),
        ("replica_groups=[2,4]<=[8], use_global", [0, 1, 2, 3]),
        ("replica_groups=[4,2]<=[2,4]T(1,0), dimensions={0}", [0, 4]),
        ("replica_groups=mesh['axis_0'=8] {'axis_0'}, use_global", list(range(8))),
        ("replica_groups=mesh['a'=2,'b'=4] {'a'}, use_global", [0, 4]),
        ("replica_groups=mesh['a'=2,'b'=4] {'b'}, use_global", [0, 1, 2, 3]),
        ("to_apply=%add", list(range(8))),
        ("source_target_pairs={{0,0},{1,2},{2,1}}, channel_id=1", [1, 2]),
        ("source_target_pairs={{0,0},{1,1}}, channel_id=1", []),
    ],
)
def test_groups_in_every_way_that_they_are_written(text: str, group: list[int]) -> None:
    assert first_group(text, MESH) == group


FOUR, LONG = Mesh(replica=2, fsdp=2, expert=2, tensor=2), Mesh(fsdp=2, tensor=2, context=2)


@pytest.mark.parametrize(
    ("mesh", "slices", "group", "axis", "link"),
    [
        (MESH, 2, "0,4", "replica", "dcn"),
        (MESH, 2, "1,2", "fsdp", "ici"),
        (MESH, 2, "0,1,4,5", "replica×fsdp", "dcn"),
        (Mesh(replica=1, fsdp=2, tensor=2), 1, "0,1", "tensor", "ici"),
        (Mesh(replica=1, fsdp=2, tensor=2), 1, "0,2", "fsdp", "ici"),
        (FOUR, 1, "0,1", "tensor", "ici"),
        (FOUR, 1, "0,2", "expert", "ici"),
        (FOUR, 1, "0,4", "fsdp", "ici"),
        (FOUR, 1, "0,8", "replica", "ici"),
        (FOUR, 1, "0,2,4,6", "fsdp×expert", "ici"),
        # four copies over two slices of four chips: the first two copies are in one slice
        (Mesh(replica=4, fsdp=2), 2, "0,2", "replica", "ici"),
        (Mesh(replica=4, fsdp=2), 2, "0,4", "replica", "dcn"),
        (Mesh(replica=4, fsdp=2), 2, "0,2,4,6", "replica", "dcn"),
        (Mesh(replica=4, fsdp=2), 1, "0,2,4,6", "replica", "ici"),
        (Mesh(replica=2, expert=4), 2, "0,1,2,3", "expert", "ici"),
        # devices of one row are neighbours along context
        (LONG, 1, "0,1", "context", "ici"),
        (LONG, 1, "0,2", "tensor", "ici"),
        (LONG, 1, "0,1,4,5", "fsdp×context", "ici"),
    ],
)
def test_axes_and_link_of_a_group(mesh: Mesh, slices: int, group: str, axis: str, link: str) -> None:
    (found,) = read_collectives(Module(one_operation("all-gather", f"replica_groups={{{{{group}}}}}")), mesh, slices)
    assert (found.axis, found.link) == (axis, link)


def one_operation(kind: str, groups: str) -> str:
    """A module with one operation, whose result has 100 bytes."""
    result = f"  ROOT %r.1 = f32[25]{{0}} {kind}(%p), {groups}"
    return f"ENTRY %main (p: f32[25]) -> f32[25] {{\n  %p = f32[25]{{0}} parameter(0)\n{result}\n}}\n"


@pytest.mark.parametrize(
    ("kind", "sent"), [("all-gather", 75), ("all-reduce", 150), ("reduce-scatter", 300), ("all-to-all", 75), ("collective-permute", 100)]
)
def test_what_a_chip_sends(kind: str, sent: int) -> None:
    """Of a result of 100 bytes, among four chips. One device sends nothing."""
    assert read_collectives(Module(one_operation(kind, "replica_groups={{3}}")), MESH, 2) == ()
    groups = "source_target_pairs={{0,1},{1,0}}" if kind == "collective-permute" else "replica_groups={{0,1,2,3},{4,5,6,7}}"
    (found,) = read_collectives(Module(one_operation(kind, groups)), MESH, 2)
    assert (found.kind, found.count, found.bytes) == (kind, 1, sent)


@pytest.mark.parametrize(("scope", "count"), [("further_rounds", 2), ("other", 3)])
def test_rows_of_experts_count_without_the_room_for_more_and_without_further_rounds(scope: str, count: int) -> None:
    """2,048 rows have room for 2,560; half of them stay."""
    [found] = read_collectives(Module(EXPERT_ROWS.replace("SCOPE", scope)), Mesh(fsdp=2, expert=2), 1)
    assert (found.kind, found.axis, found.link) == ("all-to-all", "expert", "ici")
    assert (found.count, found.bytes) == (count, count * 2048 * 256 * 2 // 2)


def test_what_the_sparse_cores_send_is_read_where_their_call_says_it() -> None:
    """As on tpu7x: a gather in the background, inside a call. It is sent once, and moved through the memory once."""
    module = Module(OFFLOADED)
    sent = 3 * 2 * 128 * 64 * 2
    (found,) = read_collectives(module, Mesh(fsdp=2, expert=2), 1)
    assert (found.kind, found.axis, found.count, found.bytes) == ("all-gather", "fsdp×expert", 1, sent)
    assert traffic_bytes(module) == 5 * 2 * 128 * 64 * 2
