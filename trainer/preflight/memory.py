"""The compiler's account of a chip's memory: its report, its list of buffers, and what it says where it refuses."""

import re
from typing import Any

from phasewise.trainer.preflight.hlo import HBM, HOST
from phasewise.trainer.preflight.spec import Memory

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
REFUSED = re.compile(r"RESOURCE_EXHAUSTED.*?\(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)", re.DOTALL)
USED = re.compile(r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm")


def read_memory(report: str, buffers: str) -> Memory:
    """Arguments, temporaries and their sum.

    The report adds up what called computations name, too: places of their caller's arrays ("thread-local"), which need no memory. Gathers
    that run beside the rest on a v5p are such calls: with them, 3.1 GB would be reported for a step that needs 0.7.

    Args:
        report: `memory-usage-report.txt` of the compiler; it has a part for each memory space, whose number counts: its names are not those
            of every chip.
        buffers: `buffer-assignment.txt`: a line an allocation; those of arguments name their parameter.
    """
    totals = {
        int(color): int(size) for color, size in re.findall(r"^Memory Space: .*\(color=(\d+)\)\nTotal bytes: (\d+)", report, re.MULTILINE)
    }
    named = re.findall(r"^allocation \d+: size (\d+),(.*), parameter \d+,", buffers, re.MULTILINE)
    arguments = sum(int(size) for size, words in named if "color" not in words)
    lent = re.findall(r"^allocation \d+: size (\d+),(.*), thread-local:", buffers, re.MULTILINE)
    peak = totals.get(HBM, 0) - sum(int(size) for size, words in lent if "color" not in words)
    return Memory(arguments=arguments, temporaries=max(peak - arguments, 0), peak=peak, host=totals.get(HOST, 0))


def read_analysis(analysis: Any) -> Memory:
    """What an executable that is here says of itself, a device: results that take the place of arguments are counted once."""
    arguments = int(analysis.argument_size_in_bytes)
    results = max(int(analysis.output_size_in_bytes) - int(analysis.alias_size_in_bytes), 0)
    temporaries = int(analysis.temp_size_in_bytes) + results
    return Memory(arguments=arguments, temporaries=temporaries, peak=arguments + temporaries, host=0)


def read_refusal(message: str) -> tuple[int, int] | None:
    """Bytes that were needed and that there are, where the compiler refused for memory."""
    found = REFUSED.search(message) or USED.search(message)
    if found is None:
        return None
    needed, needed_unit, there, there_unit = found.groups()
    return round(float(needed) * UNITS[needed_unit]), round(float(there) * UNITS[there_unit])


def first_line(message: str) -> str:
    """What the compiler said, without the pages that follow."""
    return message.strip().splitlines()[0][:300] if message.strip() else "no reason given"
