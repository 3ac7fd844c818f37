"""Pieces of modules that the compiler for TPUs wrote (libtpu 0.0.52), shortened: names and layouts are its own."""

import re
from pathlib import Path


def snippet(name: str) -> str:
    return (Path(__file__).parent / "hlo" / name).read_text()


def with_parameters(text: str) -> str:
    """With a line for each parameter in the head of its computation."""

    def declare(head: re.Match[str]) -> str:
        parameters = re.findall(r"([\w.]+): (\w+\[[\d,]*\](?:\{[^}]*\})?)", head[1])
        return "\n".join([head[0], *(f"  %{name} = {shape} parameter({number})" for number, (name, shape) in enumerate(parameters))])

    return re.sub(r"^.*%[\w.]+ \((.*)\) -> .*\{$", declare, text, flags=re.MULTILINE)


LOOP, PRODUCTS, EXPERT_ROWS = (snippet(f"{name}.hlo") for name in ("loop", "products", "expert_rows"))
UPDATE, NESTED, TAKEN, OFFLOADED = (with_parameters(snippet(f"{name}.hlo")) for name in ("update", "nested", "taken", "offloaded"))
REPORT, BUFFERS, REFUSAL = (snippet(f"{name}.txt") for name in ("report", "buffers", "refusal"))
OLDER_REFUSAL = (
    "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 39.30G of 30.75G hbm. Exceeded"
)
