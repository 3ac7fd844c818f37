"""Proxy scale, rule by rule, in the order of the module's own list."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.flows.recipes import load_recipe, load_record
from phasewise.flows.recipes.phase import HandOff, Phase
from phasewise.flows.recipes.recipe import Recipe
from phasewise.flows.recipes.scales import (
    BLOCK_SEQUENCES,
    PROXY_AXIS,
    proxy_model,
    proxy_phase,
    raise_small_shares,
    to_proxy,
)
from phasewise.trainer.base.identity import digest_of_json
from phasewise.trainer.config import LearningRateSegment, always, learning_rate_at
from phasewise.trainer.data.mixture import block_counts

FULL, PROXY = load_recipe("marin-8b", "full"), load_recipe("marin-8b", "proxy")
PAIRS = [pytest.param(full, proxy, id=full.name) for full, proxy in zip(FULL.phases, PROXY.phases, strict=True)]
NAMES = [phase.name for phase in FULL.phases]
each_phase = pytest.mark.parametrize(("full", "proxy"), PAIRS)


def test_it_is_a_function_of_the_recipe():
    again = to_proxy(Recipe.model_validate(load_record("marin-8b", "full").model_dump(mode="json"))).with_branch(None)
    assert digest_of_json(again.model_dump(mode="json")) == digest_of_json(PROXY.model_dump(mode="json"))
    assert (PROXY.name, PROXY.scale, PROXY.run_name) == ("marin-8b", "proxy", "marin-8b-proxy")
    assert Recipe.model_validate(PROXY.model_dump(mode="json")) == PROXY


def test_the_structure_stays():
    assert [(phase.name, phase.parent) for phase in PROXY.phases] == [(phase.name, phase.parent) for phase in FULL.phases]
    assert PROXY.components == FULL.components


@each_phase
def test_what_has_no_rule_stays(full: Phase, proxy: Phase):
    assert (proxy.optimizer, proxy.discrepancies, proxy.order.seed) == (full.optimizer, full.discrepancies, full.order.seed)
    assert proxy.order.permutation == full.order.permutation
    assert proxy.gates.model == full.gates.model
    assert (proxy.gates.data.leakage, proxy.gates.data.max_epochs) == (full.gates.data.leakage, full.gates.data.max_epochs)
    if isinstance(full.start, HandOff) and isinstance(proxy.start, HandOff):
        assert (proxy.start.declares, proxy.start.fresh) == (full.start.declares, full.start.fresh)


def test_steps_are_a_thousandth():
    assert [(phase.start_step, phase.stop_step) for phase in PROXY.phases] == [
        (0, 660), (660, 740), (740, 820), (820, 1320), (1320, 1400), (1400, 1420),
    ]  # fmt: skip
    assert {phase.checkpoints.every_steps for phase in PROXY.phases} == {20}


def test_batches_keep_their_ratios():
    assert [phase.batch.at(phase.stop_step - 1) for phase in PROXY.phases] == [2, 6, 6, 6, 8, 8]
    assert [phase.batch.at(phase.start_step) for phase in PROXY.phases] == [2, 6, 6, 6, 8, 8]
    assert {phase.model.seq_len for phase in PROXY.phases} == {4096 // 32}


@each_phase
def test_the_model_keeps_its_ratios(full: Phase, proxy: Phase):
    small, large = proxy.model, full.model
    assert (small.num_layers, small.d_model, small.vocab_size, small.compute_dtype) == (2, 128, 4096, "float32")
    assert small.num_query_heads / small.num_kv_heads == large.num_query_heads / large.num_kv_heads
    assert small.d_ff / small.d_model == large.d_ff / large.d_model
    assert small.head_dim * small.num_query_heads == small.d_model
    assert (small.rms_norm_epsilon, small.initializer_std) == (large.rms_norm_epsilon, large.initializer_std)


def test_one_key_head_is_the_least():
    model = FULL.phases[0].model
    assert proxy_model(model.but(num_kv_heads=1)).num_kv_heads == 1


@each_phase
def test_learning_rates_stay_as_they_are(full: Phase, proxy: Phase):
    assert [(one.kind, one.start, one.end) for one in proxy.learning_rate] == [(one.kind, one.start, one.end) for one in full.learning_rate]
    assert (proxy.learning_rate[0].start_step, proxy.learning_rate[-1].end_step) == (proxy.start_step, proxy.stop_step)


@each_phase
def test_a_warm_up_or_a_decay_has_a_middle(full: Phase, proxy: Phase):
    moving = [segment for segment in proxy.learning_rate if segment.kind != "constant"]
    assert all(segment.end_step - segment.start_step >= 2 for segment in moving)
    for segment in moving:
        middle = learning_rate_at(proxy.learning_rate, segment.start_step + 1)
        assert min(segment.start, segment.end) < middle < max(segment.start, segment.end)


@st.composite
def schedules(draw: st.DrawFn) -> tuple[LearningRateSegment, ...]:
    """Segments that join, from a thousand to some ten thousand steps each."""
    lengths: Sequence[int] = draw(st.lists(st.integers(1_000, 30_000), min_size=1, max_size=12))
    at, segments = draw(st.integers(0, 100)) * 1000, list[LearningRateSegment]()
    for number, length in enumerate(lengths):
        kind: Any = "constant" if number % 2 else "linear"
        end = 1e-3 if number % 2 else draw(st.floats(0, 1))
        segments.append(LearningRateSegment(kind=kind, start_step=at, end_step=at + length, start=1e-3, end=end))
        at += length
    return tuple(segments)


@given(schedules().filter(lambda segments: segments[-1].end_step - segments[0].start_step >= 4_000 * len(segments)))
def test_segments_of_any_schedule_join_and_last(segments: tuple[LearningRateSegment, ...]):
    small = PROXY_AXIS.segments(segments)
    assert [before.end_step for before in small[:-1]] == [after.start_step for after in small[1:]]
    assert small[0].start_step == round(segments[0].start_step / 1000)
    assert all(segment.end_step - segment.start_step >= 2 for segment in small[:-1])


@pytest.mark.parametrize(("full", "proxy"), [(None, None), (0.995, 1 - 1 / 8), (0.99999, 1 - 1 / 100), (0.0, 1 - 1 / 8)])
def test_the_moving_average_has_a_thousandth_of_the_horizon(full: float | None, proxy: float | None):
    phase = FULL.phase("kestrel")
    small = proxy_phase(phase.but(stability=phase.stability.but(ema_decay=always(full))))
    assert small.stability.ema_decay.at(phase.stop_step) == pytest.approx(proxy)


@each_phase
def test_every_component_has_a_sequence_in_every_block(full: Phase, proxy: Phase):
    assert proxy.order.block_sequences == BLOCK_SEQUENCES == 160
    for (_, before), (_, after) in zip(full.mixture.root, proxy.mixture.root, strict=True):
        counts = block_counts(after, PROXY.phases[0].order)
        assert sum(counts.values()) == BLOCK_SEQUENCES
        assert min(counts.values()) >= 1
        assert set(counts) == set(before)


@each_phase
def test_what_is_raised_is_the_largest_ones_loss(full: Phase, proxy: Phase):
    least = 100 / BLOCK_SEQUENCES
    for (_, before), (_, after) in zip(full.mixture.root, proxy.mixture.root, strict=True):
        largest = max(before, key=lambda name: before[name])
        changed = {name for name in before if after[name] != pytest.approx(before[name])}
        raised = {name for name in before if before[name] < least}
        assert changed - {largest} == raised
        assert all(after[name] == pytest.approx(least) for name in raised)
        assert sum(after.values()) == pytest.approx(sum(before.values()))


def test_what_is_off_stays_off():
    assert raise_small_shares({"a": 99.9, "b": 0.1, "c": 0.0}) == pytest.approx({"a": 99.375, "b": 0.625, "c": 0.0})


def test_a_share_may_be_off_by_a_sequence_and_a_half_of_the_shortest_stage():
    limits = {phase.name: phase.gates.data.max_share_error_points for phase in PROXY.phases}
    sequences = {"kestrel": 660 * 2, "ocelot": 80 * 6, "jellyfish": 80 * 6, "phoenix": 2 * 6, "starling": 80 * 8, "deeper-starling": 20 * 8}
    assert limits == pytest.approx({name: max(1.0, 150 / count) for name, count in sequences.items()})
    assert [phase.gates.data.max_share_error_points for phase in FULL.phases] == [1.0] * 6


def test_the_tokenizer_is_trained_on_the_stand_ins():
    assert FULL.tokenizer.name == "meta-llama/Meta-Llama-3.1-8B"
    assert PROXY.tokenizer.name is None
    assert PROXY.tokenizer.vocab_size == 4096 == PROXY.phases[0].model.vocab_size


@each_phase
def test_the_rotary_embedding_is_stretched_from_a_32nd_of_the_positions(full: Phase, proxy: Phase):
    before, after = full.model.rope, proxy.model.rope
    assert after.theta == before.theta
    if before.scaling is None or after.scaling is None:
        assert after.scaling == before.scaling
        return
    assert after.scaling.original_max_positions == before.scaling.original_max_positions // 32 == 256
    assert (after.scaling.factor, after.scaling.low_frequency_factor) == (before.scaling.factor, before.scaling.low_frequency_factor)


@pytest.mark.parametrize("name", NAMES)
def test_every_phase_is_valid_by_itself_and_is_made_by_itself(name: str):
    assert Phase.model_validate(PROXY.phase(name).model_dump(mode="json")) == PROXY.phase(name) == proxy_phase(FULL.phase(name))
    assert PROXY.phase(name).slice.root == ((0, "local"),)


def test_windows_fill_within_half_of_the_shortest_phase_that_uses_them():
    """Bison and Mantis have 32 steps; one length serves the whole lineage, branches included."""
    full, proxy = load_record("marin-32b", "full"), load_record("marin-32b", "proxy")
    for before, after in zip(full.phases, proxy.phases, strict=True):
        for name in ("max_update_norm", "skip_step"):
            was, now = (getattr(phase.stability, name).root for phase in (before, after))
            assert [(limit and limit.sigmas) for _, limit in now] == [(limit and limit.sigmas) for _, limit in was]
            assert {(limit.window, limit.min_samples) for _, limit in now if limit} <= {(16, 8)}
            assert {(limit.window, limit.min_samples) for _, limit in was if limit} <= {(128, 64)}
    in_use = [phase for phase in proxy.main_line if any(limit for _, limit in phase.stability.skip_step.root)]
    assert min(phase.stop_step - phase.start_step for phase in in_use) == 32


@pytest.mark.parametrize(
    ("shortest", "limit", "expected"),
    [
        (80, (128, 64), (40, 20)),
        (32, (128, 128), (16, 16)),
        (10, (128, 64), (8, 4)),
        (2, (128, 3), (8, 2)),
        (80, (30, 15), (30, 15)),
    ],
)
def test_a_window_is_never_below_eight_steps_or_above_the_recipes(shortest: int, limit: tuple[int, int], expected: tuple[int, int]):
    raw = load_record("marin-32b", "full").phase("phase-1").model_dump()
    raw |= {"stop_step": 1000 * shortest, "abandoned": True, "checkpoints": raw["checkpoints"] | {"at_steps": ()}}
    raw["stability"]["skip_step"] = [[0, {"window": limit[0], "min_samples": limit[1], "sigmas": 6.0}]]
    recipe = load_record("marin-32b", "full").model_dump() | {"phases": [raw], "accepts": [], "pins": []}
    found = to_proxy(Recipe.model_validate(recipe)).phases[0].stability.skip_step.at(0)
    assert found is not None
    assert (found.window, found.min_samples) == expected


def test_schedules_that_change_within_a_phase_keep_their_changes():
    assert [step for step, _ in PROXY.phase("phoenix").mixture.within(820, 1320)] == [820, 822]
    assert [step for step, _ in PROXY.phase("phoenix").batch.within(820, 1320)] == [820]
