"""Traffic, update FLOPs and collectives of a compiled step, read from its module."""

import math
import re
from collections import defaultdict
from typing import NamedTuple

import numpy as np

from phasewise.trainer.config import Mesh
from phasewise.trainer.preflight.hlo import ARRAY, HOST, RAGGED, Instruction, Module, arrays, hbm_bytes, total_bytes
from phasewise.trainer.preflight.spec import Collective, Link
from phasewise.trainer.sharding import MESH_AXES

NO_TRAFFIC = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call", "async-start", "async-update",
    "after-all", "partition-id",
}  # fmt: skip
"""Operations that move no bytes, or that run computations which are counted separately."""
OWN_KERNEL = 'custom_call_target="tpu_custom_call"'
LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
OP_NAME = re.compile(r'op_name="([^"]*)"')
OF_THE_MODEL = ("jvp(", "checkpoint")
"""Parts of the names of differentiated operations. Operations without a name, from the compiler, are not counted."""
KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
BETWEEN_SLICES = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
Instructions = dict[str, Instruction]


def traffic_bytes(module: Module) -> int:
    """Return bytes read from and written to HBM in a step, slices only in part, without fast memory and inner results of fusions."""
    return sum(times * _moved(module, here, each) for name, times, here, each in module.executed() if name not in module.fusions)


def _moved(module: Module, here: Instructions, instruction: Instruction) -> int:
    opcode, written = instruction.opcode, hbm_bytes(instruction.shape)
    if opcode in NO_TRAFFIC or opcode.endswith("-done"):
        return 0
    operands = [hbm_bytes(here[name].shape) for name in instruction.operands if name in here]
    if opcode == "fusion":
        inside, parameters = module.fused(instruction)
        read = [_read(module, inside, parameters[number], size) if number in parameters else size for number, size in enumerate(operands)]
        root = next((each for each in inside.values() if each.is_root), None)
        parts = [] if root is None else [root]
        if root is not None and root.opcode == "tuple":
            parts = [inside[name] for name in root.operands if name in inside]
        updates = [_update(module, inside, part) for part in parts]
        if any(update is not None for update in updates):
            in_place = [hbm_bytes(part.shape) if update is None else update for part, update in zip(parts, updates, strict=True)]
            written = min(written, sum(in_place))
        return sum(read) + written

    is_gather = opcode == "gather"
    if opcode == "custom-call" and OWN_KERNEL not in instruction.rest and len(instruction.operands) == 2:
        # sparse cores gather rows by a custom call with values and row numbers
        values, numbers = (here[name].shape if name in here else "" for name in instruction.operands)
        is_gather = numbers.startswith("s32[") and values.partition("[")[0] == instruction.shape.partition("[")[0]
    if is_gather or opcode in ("slice", "dynamic-slice"):
        return 2 * written
    if opcode == RAGGED and operands:
        return 2 * min(operands[0], written)
    if opcode == "dynamic-update-slice":
        return 2 * operands[1] if len(operands) > 1 else 0
    if opcode.endswith("-start"):
        return 2 * sum(operands)
    return sum(operands) + written


def _read(module: Module, inside: Instructions, value: Instruction, whole: int) -> int:
    """Bytes of an operand that a fusion reads: the operand, or its slices, also in nested fusions."""
    read, is_used = 0, False
    for user in inside.values():
        if value.name not in user.operands:
            continue
        is_used = True
        is_source = user.operands[0] == value.name
        if user.opcode in ("slice", "dynamic-slice", "gather") and is_source:
            read += hbm_bytes(user.shape)
        elif user.opcode == "dynamic-update-slice" and is_source:
            continue
        elif user.opcode == "bitcast" and not user.is_root:
            read += _read(module, inside, user, whole)
        elif user.opcode == "fusion":
            nested, parameters = module.fused(user)
            numbers = [number for number, name in enumerate(user.operands) if name == value.name]
            read += sum(_read(module, nested, parameters[number], whole) if number in parameters else whole for number in numbers)
        else:
            read += whole
    return min(whole, read) if is_used else whole


def _update(module: Module, inside: Instructions, part: Instruction) -> int | None:
    """Bytes of the slice that an operation updates in place, or None."""
    while part.opcode == "bitcast" and part.operands and part.operands[0] in inside:
        part = inside[part.operands[0]]
    if part.opcode == "fusion":
        nested, _ = module.fused(part)
        root = next((each for each in nested.values() if each.is_root and each.opcode != "tuple"), None)
        return _update(module, nested, root) if root else None
    if part.opcode != "dynamic-update-slice" or len(part.operands) < 2 or part.operands[1] not in inside:
        return None
    return hbm_bytes(inside[part.operands[1]].shape)


def host_traffic_bytes(module: Module) -> int:
    """Return bytes that a chip exchanges with its host's memory in a step, slices only in part."""
    total = 0
    for _, times, here, instruction in module.executed():
        opcode, result = instruction.opcode, instruction.shape
        shapes = [here[name].shape for name in instruction.operands if name in here]
        if not shapes or opcode not in ("dynamic-update-slice", "dynamic-slice", "copy", "copy-start"):
            continue
        from_host, to_host = (all(array.space == HOST for array in arrays(shape)) for shape in (shapes[0], result))
        # the result of `copy-start` names source and target
        crosses = from_host != to_host or (opcode == "copy-start" and len({array.space == HOST for array in arrays(result)[:2]}) > 1)
        if opcode == "dynamic-update-slice":
            total += times * total_bytes(shapes[1]) if len(shapes) > 1 and to_host else 0
        elif opcode == "dynamic-slice":
            total += times * total_bytes(result) if from_host else 0
        elif crosses:
            total += times * total_bytes(shapes[0])
    return total


def update_flops(module: Module) -> int:
    """Return FLOPs per chip and step of products outside differentiation. The compiler chooses the chips that share a product."""
    total = 0
    for _, times, here, instruction in module.executed():
        named = OP_NAME.search(instruction.rest) if instruction.opcode == "convolution" else None
        if named is not None and not any(part in named.group(1) for part in OF_THE_MODEL):
            total += times * product_flops(here, instruction)
    return total


def product_flops(here: Instructions, product: Instruction) -> int:
    """Return the FLOPs of a matrix product, which the TPU compiler writes as a convolution.

    A batch, free or summed dimension may be spatial (a digit in the labels). It counts with the largest of its three lengths, because the
    window may be padded.
    """
    labels = LABELS.search(product.rest)
    if labels is None or any(name not in here for name in product.operands[:2]):
        return 0
    lengths: list[dict[str, int]] = []
    shapes = (here[product.operands[0]].shape, here[product.operands[1]].shape, product.shape)
    for letters, shape in zip(labels.groups(), shapes, strict=True):
        found = ARRAY.search(shape)
        sizes = [int(size) for size in found.group(2).split(",") if size] if found else []
        lengths.append(dict(zip(letters, sizes, strict=True)))
    left, right, result = lengths
    spatial = [max(left[letter], right[letter], result[letter]) for letter in result if letter.isdigit()]
    return 2 * result["b"] * right["i"] * right["o"] * math.prod(spatial)


class Found(NamedTuple):
    """A collective operation among `group` chips. `payload`: bytes of its result, for a reduce-scatter of its input."""

    kind: str
    axis: str
    link: Link
    payload: int
    group: int


def read_collectives(module: Module, mesh: Mesh, num_slices: int) -> tuple[Collective, ...]:
    """Return the collectives of a step by kind and axis, the largest first. Bytes are sent by the ring (Thakur et al., 2005)."""
    sums: defaultdict[tuple[str, str, Link], list[int]] = defaultdict(lambda: [0, 0])
    seen: set[tuple[str, str]] = set()
    for name, times in module.count_runs(with_offloaded=True).items():
        outer = module.fusions.get(name)
        instructions = module.computations.get(name, {})
        for instruction in instructions.values():
            channel = re.search(r"channel_id=(\d+)", instruction.rest)
            if outer and channel:  # several fusions can share an asynchronous operation, which counts once
                if (key := (outer[0], channel.group(1))) in seen:
                    continue
                seen.add(key)
            found = _found(instruction, name if outer is None else f"{name} {outer[1].name}", mesh, num_slices)
            if found is None:
                continue
            kind, axis, link, payload, group = found
            if instruction.opcode == RAGGED:
                payload = min(payload, total_bytes(instructions[instruction.operands[0]].shape))
            share = 1.0 if kind == "collective-permute" else (group - 1) / group
            entry = sums[kind, axis, link]
            entry[0] += times
            entry[1] += round(times * payload * share * (2 if kind == "all-reduce" else 1))
    collectives = [Collective(kind=k, axis=a, link=link, count=n, bytes=sent) for (k, a, link), (n, sent) in sums.items() if sent]
    return tuple(sorted(collectives, key=lambda each: -each.bytes))


def _found(instruction: Instruction, computation: str, mesh: Mesh, num_slices: int) -> Found | None:
    kind = "all-to-all" if instruction.opcode == RAGGED else instruction.opcode.removesuffix("-start")
    if kind in KINDS:
        group = first_group(instruction.rest, mesh)
        if len(group) < 2:
            return None
        payload = total_bytes(instruction.shape)
        if instruction.opcode.endswith("-start"):
            payload = max(array.bytes for array in arrays(instruction.shape))
        if kind == "reduce-scatter":
            payload *= len(group)
        if kind == "all-reduce" and "reduce-scatter" in computation:
            kind = "reduce-scatter"
        # device numbers run along the last axis of the mesh first
        places = zip(MESH_AXES, np.unravel_index(np.asarray(group), mesh.sizes), strict=True)
        axes = [axis for axis, along in places if len(set(along.tolist())) > 1]
        # slices have consecutive devices, along the first part of `replica`
        slices = {device // (mesh.devices // num_slices) for device in group}
        return Found(kind, "×".join(axes), "dcn" if len(slices) > 1 else "ici", payload, len(group))
    between = BETWEEN_SLICES.search(instruction.rest) if instruction.opcode == "send" else None
    if between is None:
        return None
    kind = between.group(1).lower().replace("_", "-")
    return Found(kind if kind in KINDS else "collective-permute", "replica", "dcn", arrays(instruction.shape)[0].bytes, num_slices)


def first_group(text: str, mesh: Mesh) -> list[int]:
    """Return the devices of the first group in any notation of HLO, the first different pair of a permutation, or all devices."""
    if permuted := re.search(r"source_target_pairs=\{(.*?)\}\}", text):
        pairs = re.findall(r"\{(\d+),(\d+)", permuted.group(1) + "}")
        return next(([int(source), int(target)] for source, target in pairs if source != target), [])
    if listed := re.search(r"replica_groups=\{\{([\d,]*)\}", text):
        return [int(device) for device in listed.group(1).split(",") if device]
    if tiled := re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text):
        shape, sizes, order = ([int(size) for size in part.split(",")] if part else [] for part in tiled.groups())
        devices = np.arange(math.prod(sizes)).reshape(sizes)
        groups = (devices.transpose(order) if order else devices).reshape(shape)
        return groups.reshape(len(groups), -1)[0].tolist()
    if named := re.search(r"replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}", text):
        lengths = {axis: int(size) for axis, size in re.findall(r"'([^']+)'=(\d+)", named.group(1))}
        devices = np.arange(math.prod(lengths.values())).reshape(tuple(lengths.values()))
        along = set(re.findall(r"'([^']+)'", named.group(2)))
        return devices[tuple(slice(None) if axis in along else 0 for axis in lengths)].ravel().tolist()
    return list(range(mesh.devices))
