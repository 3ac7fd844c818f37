"""The smaller scales of a recipe, rule by rule: what changes with the scale, and that nothing else does."""

import json
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from phasewise.flows.cli.main import main
from phasewise.flows.plan import sources_of, stand_ins_of
from phasewise.flows.recipes import NAMES, at_scale, load_recipe, load_record
from phasewise.flows.recipes.facts import leaves_of
from phasewise.flows.recipes.feasibility import check_mixtures
from phasewise.flows.recipes.phase import FromScratch, HandOff, Phase
from phasewise.flows.recipes.recipe import BETWEEN, SCALES, Between, Recipe
from phasewise.flows.recipes.scales import (
    BLOCK_SEQUENCES,
    PROXY_AXIS,
    TARGETS,
    TOKENS_A_PARAMETER,
    proxy_model,
    proxy_phase,
    proxy_rows,
    raise_small_shares,
    scaling_of,
    to_proxy,
    to_scale,
)
from phasewise.flows.recipes.sizes import MAX_DISTANCE, body_parameters
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import RecipeError
from phasewise.trainer.config import AdamC, LearningRateSegment, Mesh, SkipLimit, always
from phasewise.trainer.data.mixture import block_counts
from phasewise.trainer.model.params import count_active_parameters
from phasewise.trainer.sharding import check_mesh

TOO_SMALL = {("trinity-nano", "1b"), ("trinity-nano", "3b"), ("trinity-mini", "3b")}
FULL = {name: load_record(name, "full") for name in NAMES}
SCALED: dict[tuple[str, Between], Recipe] = {
    (name, scale): load_record(name, scale) for name in NAMES for scale in BETWEEN if (name, scale) not in TOO_SMALL
}
each = pytest.mark.parametrize(("name", "scale"), [pytest.param(*key, id="-".join(key)) for key in SCALED])
CHANGED = {
    "start.step", "start.graft.step", "stop_step", "model.num_layers", "model.d_model", "model.d_ff", "model.num_query_heads",
    "model.num_kv_heads", "model.experts.d_expert", "model.experts.num_dense_layers", "model.initializer_std", "model.embedding_scale",
    "optimizer.peak_learning_rate", "learning_rate.start", "learning_rate.end", "learning_rate.start_step", "learning_rate.end_step",
    "batch", "mixture", "order.first_step", "order.cut_blocks", "stability.max_grad_norm", "stability.max_update_rms",
    "stability.ema_decay", "stability.max_update_norm", "stability.max_update_norm.window", "stability.max_update_norm.min_samples",
    "stability.max_update_norm.sigmas",
    "slice", "checkpoints.every_steps", "checkpoints.keep_all", "checkpoints.at_steps", "evaluation.loss_every_steps",
    "evaluation.loss_sequences", "gates.data.max_share_error_points", "gates.data.max_share_error_percent",
    "gates.health.max_spike_percent", "gates.model.must_beat_baseline",
}  # fmt: skip


def pairs(name: str, scale: Between) -> list[tuple[Phase, Phase]]:
    return list(zip(FULL[name].phases, SCALED[name, scale].phases, strict=True))


def test_nothing_but_these_fields_changes_and_each_of_them_does():
    changed: set[str] = set()
    for name, scale in SCALED:
        for before, after in ((leaves_of(full), leaves_of(small)) for full, small in pairs(name, scale)):
            changed |= {field for field in {**before, **after} if before.get(field) != after.get(field)}
    assert changed == CHANGED


@each
def test_the_structure_stays_and_lengths_keep_their_ratios(name: str, scale: Between):
    full, small = FULL[name], SCALED[name, scale]
    divisor = scaling_of(full, scale).axis.divisor
    assert (small.run_name, small.tokenizer, small.accepts) == (f"{name}-{scale}", full.tokenizer, full.accepts)
    assert Recipe.model_validate(small.model_dump(mode="json")) == small
    for before, after in pairs(name, scale):
        assert (after.name, after.branch, after.abandoned, after.model.seq_len) == (
            before.name,
            before.branch,
            before.abandoned,
            before.model.seq_len,
        )
        assert [shares for _, shares in after.mixture.root] == [shares for _, shares in before.mixture.root]
        if isinstance(before.start, HandOff) and isinstance(after.start, HandOff):
            for kept in ("parent", "fresh", "declares"):
                assert getattr(after.start, kept) == getattr(before.start, kept)
            assert [(one.part, one.phase) for one in after.start.graft] == [(one.part, one.phase) for one in before.start.graft]
        else:
            assert after.start == before.start == FromScratch(seed=0)
        was, now = ([one.start_step, one.stop_step, *(step for step, _ in one.mixture.root)] for one in (before, after))
        assert now == pytest.approx([step / divisor for step in was], abs=0.5)


@each
def test_the_model_has_the_size(name: str, scale: Between):
    for phase in SCALED[name, scale].phases:
        if phase.branch and phase.model.experts:
            continue  # an abandoned one may have fewer dense layers
        model = phase.model
        assert body_parameters(model) == count_active_parameters(model, only_matrices=True) - model.d_model * model.vocab_size
        assert body_parameters(model) == pytest.approx(TARGETS[scale], rel=MAX_DISTANCE)
        assert model.num_query_heads % model.num_kv_heads == 0
        check_mesh(Mesh(fsdp=8), model)


@pytest.mark.parametrize("name", NAMES)
def test_scales_grow(name: str):
    scales = [SCALED[name, scale] for scale in BETWEEN if (name, scale) in SCALED] + [FULL[name]]
    models = [recipe.phases[0].model for recipe in scales]
    lasts = [recipe.main_line[-1] for recipe in scales]
    measures: list[list[float]] = [
        [body_parameters(model) for model in models],
        [recipe.tokens_before(last, last.stop_step) for recipe, last in zip(scales, lasts, strict=True)],
        [last.stop_step for last in lasts],
        [last.batch.at(last.stop_step - 1) + 0.001 * number for number, last in enumerate(lasts)],
    ]
    for values in measures:
        assert all(before < after for before, after in pairwise(values)), values


@each
def test_it_sees_twenty_tokens_a_parameter_and_batches_follow_the_root_of_the_tokens(name: str, scale: Between):
    full, small = FULL[name], SCALED[name, scale]
    most = max(small.tokens_before(phase, phase.stop_step) for phase in small.main_line)
    assert most == pytest.approx(TOKENS_A_PARAMETER * TARGETS[scale], rel=0.005)
    share = TOKENS_A_PARAMETER * TARGETS[scale] / max(full.tokens_before(phase, phase.stop_step) for phase in full.main_line)
    ratios = {
        after.batch.at(after.stop_step - 1) / before.batch.at(before.stop_step - 1)
        for before, after in pairs(name, scale)
        if not before.branch
    }
    assert len(ratios) == 1
    ratio = ratios.pop()
    assert math.sqrt(share / 2) <= ratio <= math.sqrt(share * 2)
    first = small.main_line[0].model.seq_len
    assert all(phase.batch.at(phase.start_step) % 8 == 0 for phase in small.main_line if phase.model.seq_len == first)


@each
def test_the_learning_rate_follows_width_and_batch(name: str, scale: Between):

    def constant(phase: Phase, rate: float) -> float:
        main = FULL[name].main_line[0] if phase.model == before.model else SCALED[name, scale].main_line[0]
        return rate * phase.model.d_model / math.sqrt(main.batch.at(0))

    for before, after in pairs(name, scale):
        assert [one.kind for one in after.learning_rate] == [one.kind for one in before.learning_rate]
        for was, now in zip(before.learning_rate, after.learning_rate, strict=True):
            assert constant(after, now.start) == pytest.approx(constant(before, was.start))
            assert constant(after, now.end) == pytest.approx(constant(before, was.end))
        if isinstance(before.optimizer, AdamC) and isinstance(after.optimizer, AdamC):
            peaks = before.optimizer.peak_learning_rate, after.optimizer.peak_learning_rate
            assert constant(after, peaks[1]) == pytest.approx(constant(before, peaks[0]))


@each
def test_warm_ups_and_decays_have_steps_enough_and_blocks_express_every_mixture(name: str, scale: Between):
    for phase in SCALED[name, scale].phases:
        if phase.name not in ("dessert-v1", "dessert-v3"):  # whose shares no block of 2,048 has
            check_mixtures(SCALED[name, scale], [phase])
        for segment in phase.learning_rate:
            if segment.kind != "constant":
                assert segment.end_step - segment.start_step >= 4
        first = phase.learning_rate[0]
        if first.start_step == 0 and first.kind == "linear":
            assert first.end_step >= 40
        for _, decay in phase.stability.ema_decay.root:
            assert decay is None or 1 / (1 - decay) >= 20 - 1e-6


def test_the_data_are_the_real_ones(tmp_path: Any):
    home = Home.open(str(tmp_path))
    small = load_record("marin-8b", "370m").with_branch(None)
    assert not small.uses_stand_ins
    assert small.is_scaled
    assert stand_ins_of(small) == {}
    assert sources_of(small, home) == sources_of(FULL["marin-8b"].with_branch(None), home)
    assert {scale: FULL["marin-8b"].but(scale=scale).uses_stand_ins for scale in ("full", "own")} == {"full": False, "own": True}


@pytest.mark.parametrize(("name", "scale"), sorted(TOO_SMALL))
def test_a_scale_that_is_larger_than_the_recipe_is_refused(name: str, scale: Between):
    with pytest.raises(RecipeError, match=rf"{name} has [\d,]+ parameters .*the scale {scale} is for .*: take a smaller scale, or full"):
        load_record(name, scale)


def test_a_phase_without_a_step_and_a_recipe_that_is_not_of_full_size_have_no_scale():
    short = FULL["marin-8b"].phases[0].but(name="short", stop_step=20, branch=True, abandoned=True)
    recipe = FULL["marin-8b"].but(phases=(*FULL["marin-8b"].phases, short))
    with pytest.raises(RecipeError, match=r"no scale 130m: that has one step for 76\.6, and phase short is 20 steps long"):
        to_scale(recipe, "130m")
    own = FULL["marin-8b"].but(scale="own")
    with pytest.raises(RecipeError, match="sizes of its author"):
        at_scale(own, "370m", "mine")
    with pytest.raises(RecipeError, match="is written at proxy scale: it has no 370m scale, which is computed from the full one"):
        at_scale(load_record("marin-8b", "proxy"), "370m", "marin-8b")


def test_the_command_line_knows_every_scale():
    found = CliRunner().invoke(main, ["show", "marin-8b/kestrel", "--scale", "370m", "--json"])
    assert found.exit_code == 0, found.output
    shown = json.loads(found.output)
    assert (shown["scale"], shown["phases"][0]["batch"]) == ("370m", [[0, 32]])
    refused = CliRunner().invoke(main, ["show", "marin-8b", "--scale", "7b"])
    assert refused.exit_code == 2
    assert all(scale in refused.output for scale in SCALES)


def test_a_window_holds_no_more_than_half_of_the_shortest_phase():
    limit = SkipLimit(window=2000, min_samples=1000, sigmas=3.0)
    phases = [phase.but(stability=phase.stability.but(skip_step=always(limit))) for phase in FULL["marin-32b"].main_line[:2]]
    recipe = FULL["marin-32b"].but(phases=phases, accepts=())
    small = to_scale(recipe, "130m")
    shortest = min(phase.stop_step - phase.start_step for phase in small.phases)
    found = small.phases[0].stability.skip_step.at(0)
    assert found == SkipLimit(window=shortest // 2, min_samples=round(shortest // 2 / 2), sigmas=3.0)


# ── proxy scale ──

MARIN, PROXY = load_recipe("marin-8b", "full"), load_recipe("marin-8b", "proxy")
PAIRS = [pytest.param(full, proxy, id=full.name) for full, proxy in zip(MARIN.phases, PROXY.phases, strict=True)]
PHASES = [phase.name for phase in MARIN.phases]
each_phase = pytest.mark.parametrize(("full", "proxy"), PAIRS)


@each_phase
def test_what_has_no_rule_stays(full: Phase, proxy: Phase):
    assert (proxy.optimizer, proxy.discrepancies, proxy.order.seed) == (full.optimizer, full.discrepancies, full.order.seed)
    assert proxy.order.permutation == full.order.permutation
    assert proxy.gates.model == full.gates.model
    assert (proxy.gates.data.leakage, proxy.gates.data.max_epochs) == (full.gates.data.leakage, full.gates.data.max_epochs)
    assert [(one.kind, one.start, one.end) for one in proxy.learning_rate] == [(one.kind, one.start, one.end) for one in full.learning_rate]
    if isinstance(full.start, HandOff) and isinstance(proxy.start, HandOff):
        assert (proxy.start.declares, proxy.start.fresh) == (full.start.declares, full.start.fresh)


@each_phase
def test_the_model_keeps_its_ratios(full: Phase, proxy: Phase):
    small, large = proxy.model, full.model
    assert (small.num_layers, small.d_model, small.vocab_size, small.compute_dtype) == (2, 128, 4096, "float32")
    assert small.num_query_heads / small.num_kv_heads == large.num_query_heads / large.num_kv_heads
    assert small.d_ff / small.d_model == large.d_ff / large.d_model
    assert small.head_dim * small.num_query_heads == small.d_model
    assert (small.rms_norm_epsilon, small.initializer_std) == (large.rms_norm_epsilon, large.initializer_std)


@st.composite
def schedules(draw: st.DrawFn) -> tuple[LearningRateSegment, ...]:
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
    phase = MARIN.phase("kestrel")
    small = proxy_phase(phase.but(stability=phase.stability.but(ema_decay=always(full))))
    assert small.stability.ema_decay.at(phase.stop_step) == pytest.approx(proxy)


@each_phase
def test_every_component_has_a_sequence_in_every_block_and_the_largest_pays_for_it(full: Phase, proxy: Phase):
    assert proxy.order.block_sequences == BLOCK_SEQUENCES == 160
    least = 100 / BLOCK_SEQUENCES
    for (_, before), (_, after) in zip(full.mixture.root, proxy.mixture.root, strict=True):
        counts = block_counts(after, PROXY.phases[0].order)
        assert (sum(counts.values()), min(counts.values()) >= 1, set(counts)) == (BLOCK_SEQUENCES, True, set(before))
        changed = {name for name in before if after[name] != pytest.approx(before[name])}
        raised = {name for name in before if before[name] < least}
        assert changed - {max(before, key=lambda name: before[name])} == raised
        assert all(after[name] == pytest.approx(least) for name in raised)
        assert sum(after.values()) == pytest.approx(sum(before.values()))


def test_a_share_may_be_off_by_a_sequence_and_a_half_of_the_shortest_stage():
    limits = {phase.name: phase.gates.data.max_share_error_points for phase in PROXY.phases}
    sequences = {"kestrel": 660 * 2, "ocelot": 80 * 6, "jellyfish": 80 * 6, "phoenix": 2 * 6, "starling": 80 * 8, "deeper-starling": 20 * 8}
    assert limits == pytest.approx({name: max(1.0, 150 / count) for name, count in sequences.items()})
    assert [phase.gates.data.max_share_error_points for phase in MARIN.phases] == [1.0] * 6


@each_phase
def test_the_rotary_embedding_is_stretched_from_a_32nd_of_the_positions(full: Phase, proxy: Phase):
    before, after = full.model.rope, proxy.model.rope
    assert after.theta == before.theta
    if before.scaling is None or after.scaling is None:
        assert after.scaling == before.scaling
        return
    assert after.scaling.original_max_positions == before.scaling.original_max_positions // 32 == 256
    assert (after.scaling.factor, after.scaling.low_frequency_factor) == (before.scaling.factor, before.scaling.low_frequency_factor)


@pytest.mark.parametrize("name", PHASES)
def test_every_phase_is_valid_by_itself_and_is_made_by_itself(name: str):
    assert Phase.model_validate(PROXY.phase(name).model_dump(mode="json")) == PROXY.phase(name) == proxy_phase(MARIN.phase(name))
    assert PROXY.phase(name).slice.root == ((0, "local"),)


def test_windows_fill_within_half_of_the_shortest_phase_that_uses_them():
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
    raw["stability"]["skip_step"] = [[0, {"window": limit[0], "min_samples": limit[1], "sigmas": 6.0, "skip_on": "update_norm"}]]
    recipe = load_record("marin-32b", "full").model_dump() | {"phases": [raw], "accepts": [], "pins": []}
    found = to_proxy(Recipe.model_validate(recipe)).phases[0].stability.skip_step.at(0)
    assert found is not None
    assert (found.window, found.min_samples, found.skip_on) == (*expected, "update_norm")


def test_small_and_absent_shares_and_heads():
    assert raise_small_shares({"a": 99.9, "b": 0.1, "c": 0.0}) == pytest.approx({"a": 99.375, "b": 0.625, "c": 0.0})
    assert proxy_model(MARIN.phases[0].model.but(num_kv_heads=1)).num_kv_heads == 1


@pytest.mark.parametrize(
    ("seq_len", "first", "longest", "small", "batch"),
    [
        (4096, 4096, None, 128, 1), (8192, 4096, None, 256, 1), (32_768, 4096, None, 1024, 1), (262_144, 4096, None, 1024, 8),
        (4096, 4096, 262_144, 128, 1), (4096 * 16, 4096, 262_144, 512, 4),
    ],
)  # fmt: skip
def test_proxy_rows_grow_at_most_eight_times_and_keep_the_tokens(seq_len: int, first: int, longest: int | None, small: int, batch: int):
    rows = proxy_rows(seq_len, first, longest)
    assert (rows.small, rows.sequences(512)) == (small, batch)
