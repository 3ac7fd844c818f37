"""What the chips of a step send one another, read from the compiled module: kind, axis of the mesh, link, and bytes."""

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from phasewise.trainer.config import Mesh
from phasewise.trainer.preflight.hlo import ARRAY, HOST, RAGGED, Instruction, Module, arrays, hbm_bytes, total_bytes
from phasewise.trainer.preflight.spec import Collective, Link

NO_TRAFFIC = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call", "async-start", "async-update",
    "after-all", "partition-id",
}  # fmt: skip
"""They name bytes, or run other computations, which are counted themselves."""
OWN_KERNEL = 'custom_call_target="tpu_custom_call"'


def traffic_bytes(module: Module) -> int:
    """Bytes read and written in a step: each operation's operands and results once, of a slice only the slice, loops multiplied in.

    What lies in the fast memory on the chip is not counted, nor is what a fusion keeps inside.
    """
    total = 0
    for name, times in module.runs.items():
        if name not in module.fusions:
            here = module.computations.get(name, {})
            total += times * sum(_moved(module, here, instruction) for instruction in here.values())
    return total


def host_traffic_bytes(module: Module) -> int:
    """Bytes that a chip sends to its host's memory and reads from it in a step, loops multiplied in: of a slice only the slice."""
    total = 0
    for name, times in module.runs.items():
        here = module.computations.get(name, {})
        total += times * sum(_sent_to_host(here, instruction) for instruction in here.values())
    return total


def _sent_to_host(here: dict[str, Instruction], instruction: Instruction) -> int:
    shapes = [here[name].shape for name in instruction.operands if name in here]
    if not shapes:
        return 0
    match instruction.opcode:
        case "dynamic-update-slice" if len(shapes) > 1 and _is_on_host(instruction.shape):
            return total_bytes(shapes[1])
        case "dynamic-slice" if _is_on_host(shapes[0]):
            return total_bytes(instruction.shape)
        case "copy" | "copy-start" if _is_on_host(shapes[0]) != _is_on_host(instruction.shape) or _crosses(instruction):
            return total_bytes(shapes[0])
        case _:
            return 0


def _is_on_host(shape: str) -> bool:
    return all(array.space == HOST for array in arrays(shape))


def _crosses(instruction: Instruction) -> bool:
    spaces = {array.space == HOST for array in arrays(instruction.shape)[:2]}
    return instruction.opcode == "copy-start" and len(spaces) > 1


def _moved(module: Module, here: dict[str, Instruction], instruction: Instruction) -> int:
    if instruction.opcode in NO_TRAFFIC or instruction.opcode.endswith("-done"):
        return 0
    shapes = [here[name].shape for name in instruction.operands if name in here]
    if instruction.opcode == "fusion":
        inside = _inside(module, instruction)
        parameters = _parameters(inside)
        read = sum(
            _read(module, inside, parameters[number], hbm_bytes(shape)) if number in parameters else hbm_bytes(shape)
            for number, shape in enumerate(shapes)
        )
        roots = [each for each in inside.values() if each.is_root]
        return read + (_written(module, inside, roots[0], instruction) if roots else hbm_bytes(instruction.shape))
    if instruction.opcode in ("slice", "dynamic-slice") or _is_gather(here, instruction):
        return 2 * hbm_bytes(instruction.shape)
    if instruction.opcode == RAGGED and shapes:
        return 2 * min(hbm_bytes(shapes[0]), hbm_bytes(instruction.shape))
    if instruction.opcode == "dynamic-update-slice":
        return 2 * hbm_bytes(shapes[1]) if len(shapes) > 1 else 0
    if instruction.opcode.endswith("-start"):
        return 2 * sum(hbm_bytes(shape) for shape in shapes)
    return sum(hbm_bytes(shape) for shape in shapes) + hbm_bytes(instruction.shape)


def _is_gather(here: dict[str, Instruction], instruction: Instruction) -> bool:
    """Rows by their numbers: also what the compiler hands to the sparse cores, a call with values and numbers and a row for each number."""
    if instruction.opcode == "gather":
        return True
    if instruction.opcode != "custom-call" or OWN_KERNEL in instruction.rest or len(instruction.operands) != 2:
        return False
    values, numbers = (here[name].shape if name in here else "" for name in instruction.operands)
    return numbers.startswith("s32[") and values.partition("[")[0] == instruction.shape.partition("[")[0]


def _inside(module: Module, fusion: Instruction) -> dict[str, Instruction]:
    return module.computations.get(fusion.attribute("calls") or "", {})


def _parameters(inside: dict[str, Instruction]) -> dict[int, Instruction]:
    return {int(each.rest.split(")")[0]): each for each in inside.values() if each.opcode == "parameter"}


def _read(module: Module, inside: dict[str, Instruction], value: Instruction, whole: int) -> int:
    """All of an operand, or the slices of it that are used, also by fusions within the fusion."""
    users = [each for each in inside.values() if value.name in each.operands]
    return min(whole, sum(_read_by(module, inside, value, user, whole) for user in users)) if users else whole


def _read_by(module: Module, inside: dict[str, Instruction], value: Instruction, user: Instruction, whole: int) -> int:
    if user.opcode in ("slice", "dynamic-slice", "gather") and user.operands[0] == value.name:
        return hbm_bytes(user.shape)
    if user.opcode == "dynamic-update-slice" and user.operands[0] == value.name:
        return 0
    if user.opcode == "bitcast" and not user.is_root:
        return _read(module, inside, user, whole)
    if user.opcode == "fusion":
        nested = _inside(module, user)
        parameters = _parameters(nested)
        places = [number for number, name in enumerate(user.operands) if name == value.name]
        return sum(_read(module, nested, parameters[place], whole) if place in parameters else whole for place in places)
    return whole


def _written(module: Module, inside: dict[str, Instruction], root: Instruction, fusion: Instruction) -> int:
    parts = [inside[name] for name in root.operands if name in inside] if root.opcode == "tuple" else [root]
    changed = [_update(module, inside, part) for part in parts]
    if any(update is not None for update in changed):
        pairs = zip(parts, changed, strict=True)
        return min(hbm_bytes(fusion.shape), sum(hbm_bytes(part.shape) if update is None else update for part, update in pairs))
    return hbm_bytes(fusion.shape)


def _update(module: Module, inside: dict[str, Instruction], part: Instruction) -> int | None:
    while part.opcode == "bitcast" and part.operands and part.operands[0] in inside:
        part = inside[part.operands[0]]
    if part.opcode == "fusion":
        nested = _inside(module, part)
        roots = [each for each in nested.values() if each.is_root and each.opcode != "tuple"]
        return _update(module, nested, roots[0]) if roots else None
    if part.opcode != "dynamic-update-slice" or len(part.operands) < 2 or part.operands[1] not in inside:
        return None
    return hbm_bytes(inside[part.operands[1]].shape)


LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
OP_NAME = re.compile(r'op_name="([^"]*)"')
OF_THE_MODEL = ("jvp(", "checkpoint")
"""In the names of what is differentiated. What the compiler made without a name is not counted."""


def update_flops(module: Module) -> int:
    """FLOPs on a chip of the products that no gradient goes through, loops multiplied in.

    They are read, and not worked out from the model: which of the chips share a product is the compiler's choice.
    """
    total = 0
    for name, times in module.runs.items():
        here = module.computations.get(name, {})
        total += times * sum(product_flops(here, each) for each in here.values() if _is_of_update(each))
    return total


def _is_of_update(instruction: Instruction) -> bool:
    if instruction.opcode != "convolution":
        return False
    named = OP_NAME.search(instruction.rest)
    return named is not None and not any(part in named.group(1) for part in OF_THE_MODEL)


def product_flops(here: dict[str, Instruction], product: Instruction) -> int:
    """FLOPs of a product of matrices, which the compiler for TPUs writes as a convolution.

    A dimension that both matrices have, that one has, or that is summed over may be a spatial one (a digit in the labels): each takes as
    many multiplications as the longest of its three lengths, whatever the window is padded with.
    """
    labels = LABELS.search(product.rest)
    if labels is None or any(name not in here for name in product.operands[:2]):
        return 0
    left, right, result = (
        dict(zip(letters, _sizes(shape), strict=True))
        for letters, shape in zip(
            labels.groups(), (here[product.operands[0]].shape, here[product.operands[1]].shape, product.shape), strict=True
        )
    )
    spatial = [max(left[letter], right[letter], result[letter]) for letter in result if letter.isdigit()]
    return 2 * result["b"] * right["i"] * right["o"] * math.prod(spatial)


def _sizes(shape: str) -> list[int]:
    found = ARRAY.search(shape)
    return [int(size) for size in found.group(2).split(",") if size] if found else []


KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
AXES = ("replica", "fsdp", "expert", "tensor", "context")
BETWEEN_SLICES = re.compile(r'_xla_megascale_transfer_type="(\w+)"')


class Found(NamedTuple):
    """One operation: `payload` bytes of its result (for a reduce-scatter: of what goes in), among `group` chips along `axis`."""

    kind: str
    axis: str
    link: Link
    payload: int
    group: int
    times: int

    @property
    def sent_bytes(self) -> int:
        """What one chip sends in a step, by the ring, which sends the least (Thakur et al., 2005)."""
        share = 1.0 if self.kind == "collective-permute" else (self.group - 1) / self.group
        return round(self.times * self.payload * share * (2 if self.kind == "all-reduce" else 1))


def read_collectives(module: Module, mesh: Mesh, num_slices: int) -> tuple[Collective, ...]:
    """All of a step's, by kind and axis, loops multiplied in; the largest first."""
    sums: defaultdict[tuple[str, str, Link], list[int]] = defaultdict(lambda: [0, 0])
    for found in find_collectives(module, mesh, num_slices):
        entry = sums[found.kind, found.axis, found.link]
        entry[0] += found.times
        entry[1] += found.sent_bytes
    collectives = [Collective(kind=k, axis=a, link=link, count=n, bytes=sent) for (k, a, link), (n, sent) in sums.items() if sent]
    return tuple(sorted(collectives, key=lambda each: -each.bytes))


def find_collectives(module: Module, mesh: Mesh, num_slices: int) -> Iterator[Found]:
    """Each operation of the module once, with how often it runs.

    An asynchronous one is in several fusions that share its channel: where it starts, beside what it overlaps with, and where it ends.
    """
    seen: set[tuple[str, str]] = set()
    for name, times in module.runs_offloaded.items():
        outer = module.fusions.get(name)
        instructions = module.computations.get(name, {})
        for instruction in instructions.values():
            channel = re.search(r"channel_id=(\d+)", instruction.rest)
            if outer and channel:
                if (place := (outer[0], channel.group(1))) in seen:
                    continue
                seen.add(place)
            found = _found(instruction, name if outer is None else f"{name} {outer[1].name}", mesh, num_slices)
            if found and instruction.opcode == RAGGED:
                found = found._replace(payload=min(found.payload, total_bytes(instructions[instruction.operands[0]].shape)))
            if found:
                yield found._replace(times=times)


def _found(instruction: Instruction, place: str, mesh: Mesh, num_slices: int) -> Found | None:
    kind = "all-to-all" if instruction.opcode == RAGGED else instruction.opcode.removesuffix("-start")
    if kind in KINDS:
        group = first_group(instruction.rest, mesh) if kind != "collective-permute" else first_pair(instruction.rest)
        if len(group) < 2:
            return None
        payload = total_bytes(instruction.shape)
        if instruction.opcode.endswith("-start"):
            payload = max(array.bytes for array in arrays(instruction.shape))
        if kind == "reduce-scatter":
            payload *= len(group)
        if kind == "all-reduce" and "reduce-scatter" in place:
            kind = "reduce-scatter"
        return Found(kind, "×".join(axes_of(group, mesh)), link_of(group, mesh, num_slices), payload, len(group), 1)
    between = BETWEEN_SLICES.search(instruction.rest) if instruction.opcode == "send" else None
    if between is None:
        return None
    kind = between.group(1).lower().replace("_", "-")
    kind = kind if kind in KINDS else "collective-permute"
    return Found(kind, "replica", "dcn", arrays(instruction.shape)[0].bytes, num_slices, 1)


def link_of(group: list[int], mesh: Mesh, num_slices: int) -> Link:
    """The network that these devices need. The first part of `replica` goes over the slices: their devices have numbers that follow."""
    of_each = math.prod(_shape(mesh)) // num_slices
    return "dcn" if len({device // of_each for device in group}) > 1 else "ici"


def first_pair(text: str) -> list[int]:
    """The first pair of a permutation that leaves its place."""
    pairs = re.search(r"source_target_pairs=\{(.*?)\}\}", text)
    found = re.findall(r"\{(\d+),(\d+)", pairs.group(1) + "}") if pairs else []
    return next(([int(source), int(target)] for source, target in found if source != target), [])


def first_group(text: str, mesh: Mesh) -> list[int]:
    """The devices of the first group, in any of the ways that HLO writes groups; all devices where none is written."""
    if listed := re.search(r"replica_groups=\{\{([\d,]*)\}", text):
        return [int(device) for device in listed.group(1).split(",") if device]
    if tiled := re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text):
        return _tiled(*tiled.groups())
    if named := re.search(r"replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}", text):
        sizes = {axis: int(size) for axis, size in re.findall(r"'([^']+)'=(\d+)", named.group(1))}
        places = np.arange(math.prod(sizes.values())).reshape(tuple(sizes.values()))
        along = set(re.findall(r"'([^']+)'", named.group(2)))
        return [int(device) for device in places[tuple(slice(None) if axis in along else 0 for axis in sizes)].ravel()]
    return list(range(math.prod(_shape(mesh))))


def _tiled(shape: str, dimensions: str, order: str | None) -> list[int]:
    """The first row of devices 0 … n - 1 laid out in `dimensions`, turned by `order`, and cut into rows of `shape`."""
    sizes = [int(size) for size in dimensions.split(",")]
    devices = np.arange(math.prod(sizes)).reshape(sizes)
    if order:
        devices = devices.transpose([int(axis) for axis in order.split(",")])
    groups = devices.reshape([int(size) for size in shape.split(",")])
    return [int(device) for device in groups.reshape(len(groups), -1)[0]]


def axes_of(group: list[int], mesh: Mesh) -> tuple[str, ...]:
    """The axes of the mesh along which the places of these devices differ; devices are numbered along the last axis first."""
    places = np.unravel_index(np.asarray(group), _shape(mesh))
    return tuple(axis for axis, along in zip(AXES, places, strict=True) if len(set(along.tolist())) > 1)


def _shape(mesh: Mesh) -> tuple[int, ...]:
    return mesh.replica, mesh.fsdp, mesh.expert, mesh.tensor, mesh.context
