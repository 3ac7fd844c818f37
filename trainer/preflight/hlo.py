"""The compiled module as text (HLO): computations, instructions, shapes, and runs of each computation in a step."""

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
HBM, HOST = 0, 5  # memory spaces `S(n)` of a layout. HBM is the default. The others are small, fast memories on the chip
RAGGED = "ragged-all-to-all"  # exchange of rows into a larger buffer. The traffic is the rows, counted as an all-to-all
TYPE_BYTES = {"pred": 1, "token": 0, "opaque": 0}


class Array(NamedTuple):
    """Bytes without padding, and memory space of an array."""

    bytes: int
    space: int


class Instruction(NamedTuple):
    """One line of a computation. `rest` is the text after the opening bracket of the operands."""

    name: str
    opcode: str
    shape: str
    operands: tuple[str, ...]
    rest: str
    is_root: bool

    def attribute(self, name: str) -> str | None:
        """Return the computation in an attribute, such as `body`."""
        found = re.search(rf"\b{name}=%([\w.\-]+)", self.rest)
        return found.group(1) if found else None


class Module:
    """Named computations with their instructions."""

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
    def fusions(self) -> Mapping[str, tuple[str, Instruction]]:
        """Computation of a fusion → name of the calling computation, and the fusion."""
        return {
            called: (name, instruction)
            for name, instructions in self.computations.items()
            for instruction in instructions.values()
            if instruction.opcode == "fusion" and (called := instruction.attribute("calls"))
        }

    def executed(self) -> Iterator[tuple[str, int, dict[str, Instruction], Instruction]]:
        """Yield each instruction with the name, the runs and all instructions of its computation."""
        for name, times in self.count_runs().items():
            here = self.computations.get(name, {})
            for instruction in here.values():
                yield name, times, here, instruction

    def fused(self, fusion: Instruction) -> tuple[dict[str, Instruction], dict[int, Instruction]]:
        """Return the instructions of a fusion, and its parameters by number."""
        inside = self.computations.get(fusion.attribute("calls") or "", {})
        return inside, {int(each.rest.split(")")[0]): each for each in inside.values() if each.opcode == "parameter"}

    def count_runs(self, *, with_offloaded: bool = False) -> Mapping[str, int]:
        """Return computation → runs in a step, of a fusion as often as the fusion. `with_offloaded`: also of the sparse cores (tpu7x)."""
        counts: defaultdict[str, int] = defaultdict(int)
        waiting = [(self.entry, 1)]
        while waiting:
            name, times = waiting.pop()
            counts[name] += times
            calls: list[tuple[str | None, int]] = []
            for instruction in self.computations.get(name, {}).values():
                opcode, rest = instruction.opcode, instruction.rest
                if opcode == "while":
                    calls.append((instruction.attribute("body"), self.trip_count(name, instruction)))
                elif opcode == "conditional":
                    branches = re.search(r"branch_computations=\{([^}]*)\}", rest)
                    named = re.findall(r"(?:true|false)_computation=%([\w.\-]+)", rest)
                    named += NAME.findall(branches.group(1)) if branches else []
                    calls += [(branch, 1) for branch in named]
                elif opcode in ("fusion", "call", "async-start"):
                    calls.append((instruction.attribute("calls") or instruction.attribute("to_apply"), 1))
                elif with_offloaded and opcode == "custom-call" and (inside := OFFLOADED.search(rest)):
                    calls.append((inside.group(1), 1))
            waiting += [(called, times * factor) for called, factor in reversed(calls) if called is not None]
        return counts

    def trip_count(self, computation: str, loop: Instruction) -> int:
        """Return the runs of a loop's body by its counter, 1 if unknown, 0 for further rounds of experts' rows (unbalanced loads)."""
        if FURTHER.search(loop.rest):
            return 0
        if known := TRIP_COUNT.search(loop.rest):
            return int(known.group(1))
        condition = self.computations.get(loop.attribute("condition") or "", {})
        limits = [value for each in condition.values() if (value := constant_of(each)) is not None]
        counters = [each for each in condition.values() if each.opcode == "get-tuple-element"]
        if len(limits) != 1 or len(counters) != 1:
            return 1
        index = re.search(r"index=(\d+)", counters[0].rest)
        here = self.computations[computation]
        carried = here.get(loop.operands[0]) if loop.operands else None
        start = here.get(carried.operands[int(index.group(1)) if index else 0]) if carried and carried.opcode == "tuple" else None
        while start is not None and start.opcode in ("copy", "bitcast", "copy-done", "copy-start"):
            start = here.get(start.operands[0])
        return max(limits[0] - ((constant_of(start) or 0) if start else 0), 0)


def constant_of(instruction: Instruction) -> int | None:
    """Return the value of an integer constant."""
    found = re.match(r"(-?\d+)\)", instruction.rest) if instruction.opcode == "constant" else None
    return int(found.group(1)) if found else None


def arrays(shape: str) -> list[Array]:
    """Return the arrays of a shape, or of a tuple of shapes."""
    found: list[Array] = []
    for dtype, dimensions, layout in ARRAY.findall(shape):
        sizes = [int(size.removeprefix("<=")) for size in dimensions.split(",") if size]
        space = SPACE.search(layout)
        bits = re.search(r"\d+", dtype)
        of_each = TYPE_BYTES.get(dtype, max(int(bits.group()) // 8, 1) if bits else 0)
        found.append(Array(math.prod(sizes) * of_each, int(space.group(1)) if space else HBM))
    return found


def total_bytes(shape: str) -> int:
    """Return the bytes of a shape in all memory spaces."""
    return sum(array.bytes for array in arrays(shape))


def hbm_bytes(shape: str) -> int:
    """Return the bytes of a shape in HBM."""
    return sum(array.bytes for array in arrays(shape) if array.space == HBM)
