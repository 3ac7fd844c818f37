"""The layers of a model as data: what each is made of, which weights lie together, and in which order they are run.

A model is a pattern of layers. Layers of one kind that follow one another, or come again in each period of the pattern, have their weights
in one stack and are compiled once.
"""

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from phasewise.trainer.config import ModelConfig

ONLY_STACK = "blocks"
"""The stack of a model whose layers are all alike."""


class LayerKind(NamedTuple):
    """What a layer is made of.

    Attributes:
        window: a position sees so many positions, itself included; None is all before it.
        has_rope: whether queries and keys are turned by their position.
        has_qk_norm: norms on the queries and keys of each head.
        has_attention_gate: what the heads give is multiplied by a sigmoid of the attention's input (Qiu et al., 2025).
        has_post_norms: a norm behind attention and one behind the MLP as well.
        has_experts: experts in place of the dense MLP.
    """

    window: int | None
    has_rope: bool
    has_qk_norm: bool
    has_attention_gate: bool
    has_post_norms: bool
    has_experts: bool


class Stack(NamedTuple):
    """Layers of one kind whose weights are stacked along a first axis, in this order; `name` is its key in the tree of weights."""

    name: str
    kind: LayerKind
    layers: tuple[int, ...]


class Cycle(NamedTuple):
    """Layers that come `repeats` times over: from each stack so many in a row, one stack after the other."""

    repeats: int
    runs: tuple[tuple[Stack, int], ...]


def layer_kinds(config: ModelConfig) -> tuple[LayerKind, ...]:
    """What each layer is, the first one first."""
    every = config.global_attention_every
    dense = config.num_layers if config.experts is None else config.experts.num_dense_layers

    def kind(layer: int) -> LayerKind:
        is_global = every is not None and (layer + 1) % every == 0
        return LayerKind(
            window=None if is_global else config.sliding_window,
            has_rope=not is_global,
            has_qk_norm=config.qk_norm,
            has_attention_gate=config.attention_gate,
            has_post_norms=config.post_norms,
            has_experts=layer >= dense,
        )

    return tuple(kind(layer) for layer in range(config.num_layers))


def cycles(config: ModelConfig) -> tuple[Cycle, ...]:
    """The layers in the order in which they are run.

    Whole periods of the pattern that are alike, the longest row of two or more, are one cycle. What comes before and after is cut into
    rows of layers of one kind.
    """
    kinds = layer_kinds(config)
    if len(set(kinds)) == 1:
        return (Cycle(len(kinds), ((Stack(ONLY_STACK, kinds[0], tuple(range(len(kinds)))), 1),)),)
    period = config.global_attention_every or 1
    periods = [kinds[start : start + period] for start in range(0, len(kinds) - period + 1, period)]
    first, count = max(_equal_rows(periods), key=lambda row: row[1], default=(0, 0))
    if count < 2 or period == 1:
        return tuple(_rows(kinds, 0, len(kinds)))
    start = first * period
    stop = start + count * period
    return (*_rows(kinds, 0, start), _cycle(kinds, start, stop, period), *_rows(kinds, stop, len(kinds)))


def stacks(config: ModelConfig) -> tuple[Stack, ...]:
    """Every stack once."""
    return tuple(stack for cycle in cycles(config) for stack, _ in cycle.runs)


def expert_layers(config: ModelConfig) -> tuple[int, ...]:
    """The numbers of the layers that have experts, ascending."""
    return tuple(layer for layer, kind in enumerate(layer_kinds(config)) if kind.has_experts)


def _equal_rows(periods: list[tuple[LayerKind, ...]]) -> Iterator[tuple[int, int]]:
    """Where a row of equal periods starts, and how many they are."""
    start = 0
    for _, row in groupby(periods):
        count = len(list(row))
        yield start, count
        start += count


def _cycle(kinds: tuple[LayerKind, ...], start: int, stop: int, period: int) -> Cycle:
    """The layers `[start, stop)`, the same period over and over. Layers of one kind that lie apart in a period have stacks apart."""
    runs: list[tuple[Stack, int]] = []
    at = start
    for kind, row in groupby(kinds[start : start + period]):
        length = len(list(row))
        layers = tuple(layer for first in range(at, stop, period) for layer in range(first, first + length))
        runs.append((Stack(_name(kind, at), kind, layers), length))
        at += length
    return Cycle((stop - start) // period, tuple(runs))


def _rows(kinds: tuple[LayerKind, ...], start: int, stop: int) -> Iterator[Cycle]:
    at = start
    for kind, row in groupby(kinds[start:stop]):
        layers = tuple(range(at, at + len(list(row))))
        yield Cycle(len(layers), ((Stack(_name(kind, at), kind, layers), 1),))
        at = layers[-1] + 1


def _name(kind: LayerKind, first: int) -> str:
    """By its kind and its first layer: `dense_local_0`, `local_4`, `global_7`."""
    return f"{'' if kind.has_experts else 'dense_'}{'global' if kind.window is None else 'local'}_{first}"
