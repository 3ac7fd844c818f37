"""What a step moves between a chip and its memory, and between a chip and its host, read from the compiled module."""

from phasewise.trainer.preflight.hlo import HOST, RAGGED, Instruction, Module, arrays, hbm_bytes, total_bytes

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
    """A copy that starts has both ends in its shape."""
    spaces = {array.space == HOST for array in arrays(instruction.shape)[:2]}
    return instruction.opcode == "copy-start" and len(spaces) > 1


def _moved(module: Module, here: dict[str, Instruction], instruction: Instruction) -> int:
    if instruction.opcode in NO_TRAFFIC or instruction.opcode.endswith("-done"):
        return 0
    shapes = [here[name].shape for name in instruction.operands if name in here]
    if instruction.opcode == "fusion":
        return _moved_by_fusion(module, instruction, shapes)
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


def _moved_by_fusion(module: Module, fusion: Instruction, shapes: list[str]) -> int:
    inside = _inside(module, fusion)
    parameters = _parameters(inside)
    read = sum(
        _read(module, inside, parameters[number], hbm_bytes(shape)) if number in parameters else hbm_bytes(shape)
        for number, shape in enumerate(shapes)
    )
    roots = [each for each in inside.values() if each.is_root]
    return read + (_written(module, inside, roots[0], fusion) if roots else hbm_bytes(fusion.shape))


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
    """All of the result, or the slice of it that is changed."""
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
