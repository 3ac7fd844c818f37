"""The mixture as stacked bars: one bar a span, one block a family of components, one segment a component.

Components whose names begin with the same word (`nemotron_hq_actual`, `nemotron_medium`) are a family: one hue in shades.
"""

import re
from collections import defaultdict
from dataclasses import dataclass

from phasewise.tasks.publication.contents import PhaseReport, Report
from phasewise.trainer.config import Component, MixtureShares

MIN_BLOCK_PERCENT = 4.0
# Pastel versions of Paul Tol's colour-blind-safe "muted" set: dark text is readable on every one and on its shades.
HUES = ("#84abd6", "#e3cf86", "#7cc4b5", "#e09aa5", "#a9dbef", "#bfbf70", "#c99bc8", "#bd8aa3")
NEUTRAL = "#c6cdd4"


@dataclass(frozen=True)
class Segment:
    """One component within a block."""

    name: Component
    label: str
    percent: float
    colour: str


@dataclass(frozen=True)
class Block:
    """One family, or the rest. `percent` is the sum of its segments."""

    name: str
    percent: float
    segments: tuple[Segment, ...]
    members: int


@dataclass(frozen=True)
class Span:
    """One bar: the mixture in force from `start_step` on. `shares` has every component."""

    phase: str
    state: str
    start_step: int
    stop_step: int
    blocks: tuple[Block, ...]
    shares: MixtureShares


def mix_with_white(colour: str, part: float) -> str:
    """The hexadecimal colour, moved towards white by `part` in [0, 1]."""
    channels = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(channel + (255 - channel) * part):02x}" for channel in channels)


def families_of(components: set[Component]) -> dict[Component, str]:
    """Component → family: the first word of the name where others share it, else the name itself."""
    by_word: dict[str, list[Component]] = defaultdict(list)
    for component in components:
        by_word[re.split(r"[_\-/ .]", component, maxsplit=1)[0]].append(component)
    return {name: word if word and len(names) > 1 else name for word, names in by_word.items() for name in names}


def colours_of(spans: list[MixtureShares], families: dict[Component, str]) -> dict[Component, str]:
    """Component → colour, the same in every bar. The families that are largest anywhere get the hues."""
    peaks: dict[str, float] = defaultdict(float)
    for shares in spans:
        sums: dict[str, float] = defaultdict(float)
        for component, share in shares.items():
            sums[families[component]] += share
        for family, share in sums.items():
            peaks[family] = max(peaks[family], share)
    ranked = sorted(peaks, key=lambda family: (-peaks[family], family))
    hues = dict(zip(ranked, HUES, strict=False))
    colours: dict[Component, str] = {}
    for family in ranked:
        members = [name for name in families if families[name] == family]
        members.sort(key=lambda name: (-max(shares.get(name, 0.0) for shares in spans), name))
        for i, name in enumerate(members):
            colours[name] = mix_with_white(hues.get(family, NEUTRAL), 0.62 * i / max(len(members) - 1, 1))
    return colours


def blocks_of(shares: MixtureShares, families: dict[Component, str], colours: dict[Component, str]) -> tuple[Block, ...]:
    """The bar of one span, families in order of size, small families together as the last block."""
    members: dict[str, list[Component]] = defaultdict(list)
    for name, share in shares.items():
        if share > 0:
            members[families[name]].append(name)
    sums = {family: sum(shares[name] for name in names) for family, names in members.items()}
    large = sorted((family for family in sums if sums[family] >= MIN_BLOCK_PERCENT), key=lambda family: (-sums[family], family))
    blocks: list[Block] = []
    for family in large:
        names = sorted(members[family], key=lambda name: (-shares[name], name))
        segments = tuple(Segment(name, name.removeprefix(family).lstrip("_-/ .") or name, shares[name], colours[name]) for name in names)
        blocks.append(Block(family if len(names) > 1 else names[0], sums[family], segments, len(names)))
    small = [name for family in sums if family not in large for name in members[family]]
    if small:
        rest = sum(shares[name] for name in small)
        label = small[0] if len(small) == 1 else f"other ({len(small)})"
        blocks.append(Block(label, rest, (Segment(label, label, rest, colours[small[0]] if len(small) == 1 else NEUTRAL),), len(small)))
    return tuple(blocks)


def spans_of(report: Report) -> list[Span]:
    """Every span of every phase that has a mixture."""
    every = [shares for phase in report.phases for _, shares in phase.mixture]
    families = families_of({name for shares in every for name in shares})
    colours = colours_of(every, families)
    return [
        Span(phase.name, phase.state, start, stop, blocks_of(shares, families, colours), shares)
        for phase in report.phases
        for (start, shares), stop in zip(phase.mixture, ends_of_stages(phase), strict=True)
    ]


def legend_of(spans: list[Span]) -> dict[str, str]:
    """Block → its first colour, each once, the rest last."""
    blocks = {block.name: block.segments[0].colour for span in spans for block in span.blocks}
    named = {name: colour for name, colour in blocks.items() if not name.startswith("other (")}
    return named | ({"other": NEUTRAL} if len(named) < len(blocks) else {})


def ends_of_stages(phase: PhaseReport) -> list[int]:
    """The last step of every span: the start of the next, and the phase's own stop."""
    return [start for start, _ in phase.mixture[1:]] + [phase.stop_step] * bool(phase.mixture)
