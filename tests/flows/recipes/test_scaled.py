"""The scales between proxy and full, rule by rule: what changes with the scale, and that nothing else does."""

import json
import math
from itertools import pairwise
from typing import Any

import pytest
from click.testing import CliRunner

from phasewise.flows.cli.main import main
from phasewise.flows.plan import sources_of, stand_ins_of
from phasewise.flows.recipes import NAMES, at_scale, load_record
from phasewise.flows.recipes.facts import leaves_of
from phasewise.flows.recipes.feasibility import check_mixtures
from phasewise.flows.recipes.phase import FromScratch, HandOff, Phase
from phasewise.flows.recipes.recipe import BETWEEN, SCALES, Between, Recipe
from phasewise.flows.recipes.scales import TARGETS, TOKENS_A_PARAMETER, scaling_of, to_scale
from phasewise.flows.recipes.sizes import MAX_DISTANCE, body_parameters
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import RecipeError
from phasewise.trainer.config import AdamC, Mesh, RollingLimit, always
from phasewise.trainer.flops import matrix_parameters
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
"""Every field that a scale changes; those with steps beside their values change with the steps."""


def pairs(name: str, scale: Between) -> list[tuple[Phase, Phase]]:
    return list(zip(FULL[name].phases, SCALED[name, scale].phases, strict=True))


def test_nothing_but_these_fields_changes_and_each_of_them_does():
    changed = {
        field
        for name, scale in SCALED
        for full, small in pairs(name, scale)
        for field in {**leaves_of(full), **leaves_of(small)}
        if leaves_of(full).get(field) != leaves_of(small).get(field)
    }
    assert changed == CHANGED


@each
def test_the_structure_stays(name: str, scale: Between):
    full, small = FULL[name], SCALED[name, scale]
    assert small.scale == scale
    assert small.run_name == f"{name}-{scale}"
    assert small.tokenizer == full.tokenizer
    assert small.accepts == full.accepts
    assert Recipe.model_validate(small.model_dump(mode="json")) == small
    for before, after in pairs(name, scale):
        assert (after.name, after.parent, after.branch, after.abandoned) == (before.name, before.parent, before.branch, before.abandoned)
        assert [shares for _, shares in after.mixture.root] == [shares for _, shares in before.mixture.root]
        assert after.components == before.components
        assert after.model.seq_len == before.model.seq_len
        if isinstance(before.start, HandOff) and isinstance(after.start, HandOff):
            assert (after.start.fresh, after.start.declares) == (before.start.fresh, before.start.declares)
            assert [(one.part, one.phase) for one in after.start.graft] == [(one.part, one.phase) for one in before.start.graft]
        else:
            assert after.start == before.start == FromScratch(seed=0)


@each
def test_lengths_keep_their_ratios(name: str, scale: Between):
    divisor = scaling_of(FULL[name], scale)[1].axis.divisor
    for before, after in pairs(name, scale):
        assert after.stop_step == pytest.approx(before.stop_step / divisor, abs=0.5)
        assert after.start_step == pytest.approx(before.start_step / divisor, abs=0.5)
        starts = [[step for step, _ in one.mixture.root] for one in (before, after)]
        assert starts[1] == pytest.approx([step / divisor for step in starts[0]], abs=0.5)


@each
def test_the_model_has_the_size(name: str, scale: Between):
    for phase in SCALED[name, scale].phases:
        if phase.branch and phase.model.experts:
            continue  # an abandoned one may have fewer dense layers
        model = phase.model
        assert body_parameters(model) == matrix_parameters(model) - model.d_model * model.vocab_size
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
def test_it_sees_twenty_tokens_a_parameter(name: str, scale: Between):
    small = SCALED[name, scale]
    most = max(small.tokens_before(phase, phase.stop_step) for phase in small.main_line)
    assert most == pytest.approx(TOKENS_A_PARAMETER * TARGETS[scale], rel=0.005)


@each
def test_batches_follow_the_root_of_the_tokens_and_keep_their_ratios(name: str, scale: Between):
    full = FULL[name]
    share = TOKENS_A_PARAMETER * TARGETS[scale] / max(full.tokens_before(phase, phase.stop_step) for phase in full.main_line)
    ratios = {
        after.batch.at(after.stop_step - 1) / before.batch.at(before.stop_step - 1)
        for before, after in pairs(name, scale)
        if not before.branch
    }
    assert len(ratios) == 1
    ratio = ratios.pop()
    assert math.sqrt(share / 2) <= ratio <= math.sqrt(share * 2)
    small = SCALED[name, scale]
    first = small.main_line[0].model.seq_len
    assert all(phase.batch.at(phase.start_step) % 8 == 0 for phase in small.main_line if phase.model.seq_len == first)


@each
def test_the_learning_rate_follows_width_and_batch(name: str, scale: Between):
    """lr · width / √batch is the recipe's, as in Marin's own `0.33 · √batch / hidden_dim`."""

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
def test_warm_ups_and_decays_have_steps_enough(name: str, scale: Between):
    for phase in SCALED[name, scale].phases:
        for segment in phase.learning_rate:
            if segment.kind != "constant":
                assert segment.end_step - segment.start_step >= 4
        first = phase.learning_rate[0]
        if first.start_step == 0 and first.kind == "linear":
            assert first.end_step >= 40
        for _, decay in phase.stability.ema_decay.root:
            assert decay is None or 1 / (1 - decay) >= 20 - 1e-6


def test_kestrels_first_warm_up_takes_from_its_first_cycle():
    kestrel = SCALED["marin-8b", "130m"].phase("kestrel")
    assert [(one.start_step, one.end_step) for one in kestrel.learning_rate[:4]] == [(0, 40), (40, 117), (117, 131), (131, 248)]


@each
def test_blocks_express_every_mixture(name: str, scale: Between):
    """Where the recipe's own blocks do: two desserts of Marin 8B have shares that no block of 2,048 has, at any scale but proxy."""
    for before, after in pairs(name, scale):
        try:
            check_mixtures(FULL[name], [before])
        except RecipeError as error:
            assert before.branch
            with pytest.raises(RecipeError, match=str(error).split(" must ")[1][:60]):
                check_mixtures(SCALED[name, scale], [after])
        else:
            check_mixtures(SCALED[name, scale], [after])


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


def test_a_phase_that_would_have_no_step_is_refused():
    short = FULL["marin-8b"].phases[0].but(name="short", stop_step=20, branch=True, abandoned=True)
    recipe = FULL["marin-8b"].but(phases=(*FULL["marin-8b"].phases, short))
    with pytest.raises(RecipeError, match=r"no scale 130m: that has one step for 76\.6, and phase short is 20 steps long"):
        to_scale(recipe, "130m")


def test_only_a_recipe_of_full_size_has_scales():
    own = FULL["marin-8b"].but(scale="own")
    with pytest.raises(RecipeError, match="sizes of its own"):
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
    """No recipe of the record is so short at these scales: one with windows of 2,000 steps is."""
    limit = RollingLimit(window=2000, min_samples=1000, sigmas=3.0)
    phases = [phase.but(stability=phase.stability.but(skip_step=always(limit))) for phase in FULL["marin-32b"].main_line[:2]]
    recipe = FULL["marin-32b"].but(phases=phases, accepts=())
    small = to_scale(recipe, "130m")
    shortest = min(phase.stop_step - phase.start_step for phase in small.phases)
    found = small.phases[0].stability.skip_step.at(0)
    assert found == RollingLimit(window=shortest // 2, min_samples=round(shortest // 2 / 2), sigmas=3.0)
