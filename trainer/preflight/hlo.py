"""The compiled module as text (HLO): computations, instructions, shapes, and how often each computation runs in a step."""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

from phasewise.trainer.kernels.expert_parallel import FURTHER_ROUNDS

COMPUTATION = re.compile(r"^(ENTRY )?%([\w.\-]+) \(.*\{$")
INSTRUCTION = re.compile(r"^\s+(ROOT )?%([\w.\-]+) = (.+?) ([a-z][a-z0-9\-]*)\((.*)$")
ARRAY = re.compile(r"([a-z]+[a-z0-9]*)\[([\d,<=]*)\](?:\{([^}]*)\})?")
NAME = re.compile(r"%([\w.\-]+)")
SPACE = re.compile(r"S\((\d+)\)")
FURTHER = re.compile(rf'op_name="[^"]*{FURTHER_ROUNDS}/while"')
TRIP_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
OFFLOADED = re.compile(r"called_computations=\{%([\w.\-]+)\}")
HBM, HOST = 0, 5
"""Memory spaces of a layout, `S(n)`; the chip's own memory is not written. The others are small and fast, on the chip."""
RAGGED = "ragged-all-to-all"
"""Between rows and the room for them, which is larger: what goes is the rows. Counted as an all-to-all."""
TYPE_BYTES = {"pred": 1, "token": 0, "opaque": 0}


class Array(NamedTuple):
    """One array of a shape: its bytes without padding, and the memory space it lies in."""

    bytes: int
    space: int


class Instruction(NamedTuple):
    """One line of a computation. `rest` is everything behind the opening bracket of the operands."""

    name: str
    opcode: str
    shape: str
    operands: tuple[str, ...]
    rest: str
    is_root: bool

    def attribute(self, name: str) -> str | None:
        """A computation that the instruction names, such as its `body`."""
        found = re.search(rf"\b{name}=%([\w.\-]+)", self.rest)
        return found.group(1) if found else None


class Module:
    """Computations by name, with the instructions of each."""

    def __init__(self, text: str) -> None:
        self.entry = ""
        self.computations: dict[str, dict[str, Instruction]] = {}
        current: dict[str, Instruction] = {}
        for line in text.splitlines():
            if header := COMPUTATION.match(line):
                current = self.computations.setdefault(header.group(2), {})
                self.entry = header.group(2) if header.group(1) else self.entry
            elif found := INSTRUCTION.match(line):
                root, name, shape, opcode, rest = found.groups()
                operands = tuple(NAME.findall(rest[: rest.find(")")]))
                current[name] = Instruction(name, opcode, shape, operands, rest, root is not None)

    @cached_property
    def runs(self) -> Mapping[str, int]:
        """Computation → how often it runs in a step. One that a fusion is made of runs as often as the fusion."""
        return self._count(with_offloaded=False)

    @cached_property
    def runs_offloaded(self) -> Mapping[str, int]:
        """As `runs`, with what is handed to the sparse cores: a call names what they do. On tpu7x it is nearly all that chips send."""
        return self._count(with_offloaded=True)

    def _count(self, *, with_offloaded: bool) -> Mapping[str, int]:
        counts: defaultdict[str, int] = defaultdict(int)

        def visit(name: str, times: int) -> None:
            counts[name] += times
            for instruction in self.computations.get(name, {}).values():
                for called, factor in self._calls(name, instruction):
                    visit(called, times * factor)
                if with_offloaded and instruction.opcode == "custom-call" and (inside := OFFLOADED.search(instruction.rest)):
                    visit(inside.group(1), times)

        visit(self.entry, 1)
        return counts

    @cached_property
    def fusions(self) -> Mapping[str, tuple[str, Instruction]]:
        """Computation that a fusion is made of → the computation that the fusion is in, and the fusion."""
        return {
            called: (name, instruction)
            for name, instructions in self.computations.items()
            for instruction in instructions.values()
            if instruction.opcode == "fusion" and (called := instruction.attribute("calls"))
        }

    def _calls(self, name: str, instruction: Instruction) -> Iterator[tuple[str, int]]:
        if instruction.opcode == "while":
            body = instruction.attribute("body")
            if body:
                yield body, self.trip_count(name, instruction)
        elif instruction.opcode == "conditional":
            for branch in re.findall(r"(?:true|false)_computation=%([\w.\-]+)", instruction.rest):
                yield branch, 1
            if branches := re.search(r"branch_computations=\{([^}]*)\}", instruction.rest):
                yield from ((branch, 1) for branch in NAME.findall(branches.group(1)))
        elif instruction.opcode in ("fusion", "call", "async-start"):
            called = instruction.attribute("calls") or instruction.attribute("to_apply")
            if called:
                yield called, 1

    def trip_count(self, computation: str, loop: Instruction) -> int:
        """How often a loop's body runs: from where its counter starts to the constant it is compared with; 1 where that is not seen.

        Further rounds of experts' rows are for loads that are not balanced: none.
        """
        if FURTHER.search(loop.rest):
            return 0
        if known := TRIP_COUNT.search(loop.rest):
            return int(known.group(1))
        condition = self.computations.get(loop.attribute("condition") or "", {})
        limits = [value for each in condition.values() if (value := constant_of(each)) is not None]
        counters = [each for each in condition.values() if each.opcode == "get-tuple-element"]
        if len(limits) != 1 or len(counters) != 1:
            return 1
        place = re.search(r"index=(\d+)", counters[0].rest)
        return max(limits[0] - self._start(computation, loop, int(place.group(1)) if place else 0), 0)

    def _start(self, computation: str, loop: Instruction, place: int) -> int:
        here = self.computations[computation]
        carried = here.get(loop.operands[0]) if loop.operands else None
        value = here.get(carried.operands[place]) if carried and carried.opcode == "tuple" else None
        while value is not None and value.opcode in ("copy", "bitcast", "copy-done", "copy-start"):
            value = here.get(value.operands[0])
        return (constant_of(value) or 0) if value else 0


def constant_of(instruction: Instruction) -> int | None:
    """The value of a whole constant."""
    found = re.match(r"(-?\d+)\)", instruction.rest) if instruction.opcode == "constant" else None
    return int(found.group(1)) if found else None


def arrays(shape: str) -> list[Array]:
    """The arrays of a shape, or of a tuple of shapes."""
    return [_array(*found.groups()) for found in ARRAY.finditer(shape)]


def _array(dtype: str, dimensions: str, layout: str | None) -> Array:
    sizes = [int(size.removeprefix("<=")) for size in dimensions.split(",") if size]
    space = SPACE.search(layout or "")
    return Array(math.prod(sizes) * type_bytes(dtype), int(space.group(1)) if space else HBM)


def type_bytes(dtype: str) -> int:
    """Bytes of one number: `bf16` has 2."""
    if dtype in TYPE_BYTES:
        return TYPE_BYTES[dtype]
    bits = re.search(r"\d+", dtype)
    return max(int(bits.group()) // 8, 1) if bits else 0


def total_bytes(shape: str) -> int:
    """Bytes of a shape, wherever they lie."""
    return sum(array.bytes for array in arrays(shape))


def hbm_bytes(shape: str) -> int:
    """Bytes of a shape that lie in the chip's memory."""
    return sum(array.bytes for array in arrays(shape) if array.space == HBM)
