"""What the chips of a step send one another, read from the compiled module: kind, axis of the mesh, link, and bytes."""

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from phasewise.trainer.config import Mesh
from phasewise.trainer.preflight.hlo import RAGGED, Instruction, Module, arrays, total_bytes
from phasewise.trainer.preflight.spec import Collective, Link

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
        return _on_links(instruction, kind, place, mesh, num_slices)
    between = BETWEEN_SLICES.search(instruction.rest) if instruction.opcode == "send" else None
    if between is None:
        return None
    kind = between.group(1).lower().replace("_", "-")
    kind = kind if kind in KINDS else "collective-permute"
    return Found(kind, "replica", "dcn", arrays(instruction.shape)[0].bytes, num_slices, 1)


def _on_links(instruction: Instruction, kind: str, place: str, mesh: Mesh, num_slices: int) -> Found | None:
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
