"""The load on experts in a report: what is taken from the rows, and what the map shows of it."""

import math
import re

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.tasks.report.contents import Report, RoutingReport
from phasewise.tasks.report.html import render
from phasewise.tasks.report.pictures import LEVELS, heat_map, level_of
from phasewise.tasks.report.sections import busiest_in_words, routing_of
from phasewise.trainer.metrics import Row

STROKE = re.compile(r"M(\d+) (\d+)\.5h(\d+)")


def rows_with(loads: np.ndarray, *, first_layer: int = 1) -> list[Row]:
    """Three updates, of which the second and the last hold the load by layer; the second's is even."""
    plain = {"max_violation": 1.0, "dead_experts": 0.0, "router_entropy": 0.9}
    names = [f"expert_load/{first_layer + layer}/{expert}" for layer in range(loads.shape[0]) for expert in range(loads.shape[1])]
    last = dict(zip(names, loads.ravel().tolist(), strict=True))
    return [{"step": 1, **plain}, {"step": 2, **plain, **dict.fromkeys(names, 1 / loads.shape[1])}, {"step": 3, **plain, **last}]


def routing_with(loads: np.ndarray, **fields: int) -> RoutingReport:
    found = routing_of(rows_with(loads, **fields), 2.1)
    assert found is not None
    return found


def levels_in(svg: str) -> dict[tuple[int, int], int]:
    """(layer, expert) → the level that the map paints it in."""
    found: dict[tuple[int, int], int] = {}
    for level, path in re.findall(r'class="level-(\d)" d="([^"]*)"', svg):
        for expert, layer, length in STROKE.findall(path):
            for place in range(int(expert), int(expert) + int(length)):
                assert (int(layer), place) not in found, "painted twice"
                found[int(layer), place] = int(level)
    return found


def test_the_last_load_counts_as_a_share_of_the_mean():
    """Of twelve experts: their numbers are no words, in which 10 comes before 2."""
    loads = np.arange(24.0).reshape(2, 12)
    found = routing_with(loads / loads.sum(axis=1, keepdims=True), first_layer=9)
    assert found.layers == (9, 10)
    assert found.loads_step == 3
    np.testing.assert_allclose(found.loads, loads / loads.mean(axis=1, keepdims=True))
    assert found.max_violation == ((1, 1.0), (2, 1.0), (3, 1.0))
    assert busiest_in_words(found) == "expert 11 of layer 9 has 2.00 times the mean; 1 of 24 experts have nothing"


def test_values_that_are_no_numbers_are_left_out():
    found = routing_of([{"step": 1, "max_violation": None}, {"step": 2, "max_violation": 0.5, "router_entropy": None}], None)
    assert found is not None
    assert found.max_violation == ((2, 0.5),)
    assert found.router_entropy == ()
    assert heat_map(found) is None


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(st.integers(1, 5), st.integers(2, 12), st.integers(0, 2**32 - 1))
def test_the_map_paints_every_expert_once_in_its_level(layers: int, experts: int, seed: int):
    rng = np.random.default_rng(seed)
    loads = rng.choice([0.0, 0.1, 0.3, 1.0, 1.0, 3.0, 9.0], (layers, experts)) + 1e-12 * (rng.random((layers, experts)) < 0.5)
    loads[:, 0] += 1.0
    routing = routing_with(loads / loads.sum(axis=1, keepdims=True))
    painted = levels_in(str(heat_map(routing)))
    assert painted == {(layer, expert): level_of(load) for layer, row in enumerate(routing.loads) for expert, load in enumerate(row)}


def test_the_page_shows_the_limit_the_busiest_expert_and_what_was_not_recorded(sparse_report: Report):
    page = render(sparse_report)
    assert page.count("Load on the experts") == 1
    assert "expert 0 of layer 1 has 2.00 times the mean; 1 of 8 experts have nothing" in page
    assert page.count("The load by layer was not recorded.") == 1
    assert all(words in page for _, words in LEVELS)
    assert page.count('class="loads"') == 2
    style = page[: page.index("</style>")]
    assert all(f".level-{level} {{" in style for level in range(len(LEVELS)))


def test_a_report_of_the_largest_model_stays_small(sparse_report: Report):
    """Trinity Large: 54 layers of 256 experts, 100,000 updates, no two neighbours alike."""
    rng = np.random.default_rng(0)
    loads = rng.lognormal(0, 0.5, (54, 256))
    rows: list[Row] = [
        {"step": step, "max_violation": 1 + math.sin(step), "dead_experts": step % 3, "router_entropy": 0.9} for step in range(100_000)
    ]
    rows[-1] |= rows_with(loads / loads.sum(axis=1, keepdims=True))[-1]
    first, *others = sparse_report.phases
    phase = type(first).model_validate(dict(first) | {"stop_step": 100_000, "routing": routing_of(rows, 5.0)})
    page = render(Report.model_validate(dict(sparse_report) | {"phases": (phase, *others)}))
    assert len(page) - len(render(sparse_report)) < 250_000
