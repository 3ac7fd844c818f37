"""The scales between proxy and full: the same recipe in a smaller size, as a function of the recipe. These are its rules.

* `130m`, `370m`, `1b` and `3b` are parameters without embedding and head; of a model with experts, those that a token meets;
* width in steps of 256 and depth so that the size is met within a tenth and depth for width is as near to the recipe's as can be; heads of
  the recipe's size, its ratios of query to kv heads, of d_ff and of the experts' width to d_model; as many experts as the recipe has;
* 20 tokens a parameter over the longest lineage of the main line (Hoffmann et al., 2022, table 3), shared among phases as in the recipe;
* batch by the square root of the tokens: the batch up to which more sequences save steps grows with the data, by a power of 0.4 to 0.5,
  and hardly with the model (Zhang et al., 2024; Bergsma et al., 2025). What all batches of the main line are multiples of, those of longer
  rows left out, becomes a power of two, so that their ratios stay exactly, and slices can cut them;
* the step axis is shorter by what is left: both of them together make the tokens;
* learning rates times √(batch / the recipe's batch) · the recipe's width / width: Marin's rule for its own sweeps over sizes, `0.33 ·
  √batch / hidden_dim`; by the width it is that of µP for Adam's matrices (Yang et al., 2022). It holds for the rate that AdamC divides by;
* a warm-up from step 0 takes at least 40 steps: 2 / (1 - β2) for a β2 of 0.95 (Ma and Yarats, 2021); any other warm-up or decay at least 4;
* the EMA averages over the same share of the steps, at least 20; windows of limits hold at most half of the shortest phase;
* a mixture may start inside a block: stages are no longer whole blocks. Blocks themselves stay;
* a share may be 1.5 sequences of the shortest stage off, and one update in a phase may be a spike, where that is more than the limit;
* that each benchmark is above its floor, and that needles are found, is not asked: which of them so small a model can answer is nowhere
  recorded. What compares a model with its parent stays;
* the loss on held-out text is that of fewer rows, as the batch is smaller, and as seldom as keeps it under a twentieth of the arithmetic;
* the checkpoints that other phases start from or take a part of are kept, and else the last ones;
* every phase is on this machine, unless a slice is named;
* rows are as long as the recipe's, and the windows of local layers, RoPE, tokenizer, data sets, shares, interventions and their limits,
  weight decay, experts' balancing, types, seeds and hand-offs are the recipe's; pins are not taken, because they are for one scale.
"""

import math
from functools import reduce
from itertools import pairwise
from typing import NamedTuple

from phasewise.flows.recipes.evaluation_cost import seldom_enough
from phasewise.flows.recipes.phase import LOCAL_SLICE, EvaluationSettings, FromScratch, Gates, Phase
from phasewise.flows.recipes.recipe import Between, Recipe
from phasewise.flows.recipes.sizes import Shape, body_parameters, shape_of
from phasewise.flows.recipes.step_axis import StepAxis, shorter_window
from phasewise.trainer.base.errors import RecipeError
from phasewise.trainer.config import AdamC, Optimizer, Recovery, Stability, always

TARGETS: dict[Between, int] = {"130m": 130_000_000, "370m": 370_000_000, "1b": 1_000_000_000, "3b": 3_000_000_000}
TOKENS_A_PARAMETER = 20
MIN_SEGMENT_STEPS, MIN_WARMUP_STEPS, MIN_EMA_STEPS = 4, 40, 20
MAX_SHARE_ERROR_SEQUENCES, MAX_SPIKES = 1.5, 1.5


class Scaling(NamedTuple):
    """What one scale does to one recipe.

    Attributes:
        batch: by what a number of sequences is multiplied.
        rate: by what a learning rate is multiplied.
        max_window: the most steps that a window of limits holds.
    """

    shape: Shape
    axis: StepAxis
    batch: float
    rate: float
    max_window: int

    def sequences(self, full: int) -> int:
        """A batch, or a number of rows, of the recipe."""
        return max(1, round(full * self.batch))


def to_scale(recipe: Recipe, scale: Between) -> Recipe:
    """The recipe at a scale between.

    Raises:
        RecipeError: the recipe is no larger than the scale, or has a phase that would have no step.
    """
    scaling = scaling_of(recipe, scale)
    axis = scaling.axis
    if short := [phase for phase in recipe.phases if axis.steps(phase.stop_step) <= axis.steps(phase.start_step)]:
        raise RecipeError(
            f"{recipe.name} has no scale {scale}: that has one step for {axis.divisor:.1f}, and phase {short[0].name} is "
            f"{short[0].stop_step - short[0].start_step:,} steps long. Take a larger scale."
        )
    return Recipe(
        name=recipe.name,
        scale=scale,
        tokenizer=recipe.tokenizer,
        phases=tuple(scaled_phase(phase, scaling, axis.needed_steps(recipe, phase)) for phase in recipe.phases),
        sources=recipe.sources,
        accepts=recipe.accepts,
        approvable=recipe.approvable,
        warnings_ask_people=recipe.warnings_ask_people,
        max_tokens=recipe.max_tokens,
        length_bias=recipe.length_bias,
    )


def scaling_of(recipe: Recipe, scale: Between) -> Scaling:
    """The numbers of a scale, worked out from the recipe.

    Raises:
        RecipeError: the recipe is no larger than the scale.
    """
    target = TARGETS[scale]
    main = recipe.main_line or recipe.phases
    model = main[0].model
    if body_parameters(model) <= target:
        raise RecipeError(
            f"{recipe.name} has {body_parameters(model):,} parameters without embedding and head that a token meets, and the scale {scale} "
            f"is for {target:,}: take a smaller scale, or full."
        )
    shape = shape_of(model, target, f"{recipe.name} at scale {scale}")
    all_tokens = max(recipe.tokens_before(phase, phase.stop_step) for phase in main)
    share = TOKENS_A_PARAMETER * target / all_tokens
    of_one_length = [phase for phase in main if phase.model.seq_len == model.seq_len]
    sizes = {size for phase in of_one_length for _, size in phase.batch.within(phase.start_step, phase.stop_step)}
    unit = reduce(math.gcd, sizes)
    batch = 2.0 ** max(0, round(math.log2(unit * math.sqrt(share)))) / unit
    axis = StepAxis(batch / share, min_segment_steps=MIN_SEGMENT_STEPS, min_warmup_steps=MIN_WARMUP_STEPS)
    rate = math.sqrt(batch) * model.d_model / shape.d_model
    return Scaling(shape, axis, batch, rate, axis.max_window(recipe))


def scaled_phase(phase: Phase, scaling: Scaling, keep_steps: tuple[int, ...] = ()) -> Phase:
    """One phase by the rules above; the checkpoints of `keep_steps` are kept."""
    axis, stability = scaling.axis, phase.stability
    start = phase.start if isinstance(phase.start, FromScratch) else axis.hand_off(phase.start)
    return Phase(
        name=phase.name,
        start=start,
        stop_step=axis.steps(phase.stop_step),
        model=scaling.shape.of(phase.model),
        optimizer=scaled_optimizer(phase.optimizer, scaling.rate),
        learning_rate=axis.segments(phase.learning_rate, factor=scaling.rate),
        batch=axis.by_steps(phase.batch, scaling.sequences),
        mixture=axis.by_steps(phase.mixture, lambda shares: shares),
        order=phase.order.but(first_step=axis.steps(phase.order.first_step), cut_blocks=True),
        stability=Stability(
            max_grad_norm=axis.by_steps(stability.max_grad_norm, lambda norm: norm),
            z_loss=axis.by_steps(stability.z_loss, lambda weight: weight),
            max_update_rms=axis.by_steps(stability.max_update_rms, lambda rms: rms),
            max_update_norm=axis.by_steps(stability.max_update_norm, lambda limit: shorter_window(limit, scaling.max_window)),
            skip_step=axis.by_steps(stability.skip_step, lambda limit: shorter_window(limit, scaling.max_window)),
            ema_decay=axis.by_steps(stability.ema_decay, lambda decay: axis.ema(decay, MIN_EMA_STEPS)),
        ),
        slice=always(LOCAL_SLICE),
        checkpoints=axis.checkpoints(phase.checkpoints, keep_steps, every_minutes=phase.checkpoints.every_minutes),
        evaluation=scaled_evaluation(phase, scaling),
        gates=scaled_gates(phase, scaling),
        instrumentation=phase.instrumentation,
        recovery=scaled_recovery(phase.recovery, scaling),
        packing=phase.packing,
        loss_on=phase.loss_on,
        discrepancies=phase.discrepancies,
        notes=phase.notes,
        branch=phase.branch,
        abandoned=phase.abandoned,
        schedule_goes_on=phase.schedule_goes_on,
    )


def scaled_optimizer(optimizer: Optimizer, rate: float) -> Optimizer:
    """The same; the peak that AdamC's decay is a share of is a learning rate, too."""
    return optimizer.but(peak_learning_rate=optimizer.peak_learning_rate * rate) if isinstance(optimizer, AdamC) else optimizer


def scaled_recovery(recovery: Recovery | None, scaling: Scaling) -> Recovery | None:
    """The same, with its steps on this axis."""
    if recovery is None:
        return None
    limit = shorter_window(recovery.max_loss, scaling.max_window)
    return recovery.but(max_loss=limit, steps_more=scaling.axis.steps(recovery.steps_more))


def scaled_evaluation(phase: Phase, scaling: Scaling) -> EvaluationSettings:
    """The recipe's benchmarks; the loss on held-out text on fewer rows, and as often as costs little."""
    settings = phase.evaluation
    rows = scaling.sequences(settings.loss_sequences)
    every = settings.loss_every_steps
    if every is not None:
        every = max(1, scaling.axis.steps(every), seldom_enough(phase, scaling.sequences, loss_sequences=rows))
    return settings.but(loss_every_steps=every, loss_sequences=rows)


def scaled_gates(phase: Phase, scaling: Scaling) -> Gates:
    """The recipe's limits, but for what fewer and smaller batches can keep, and for the floors of benchmarks."""
    steps = scaling.axis.steps
    starts = [steps(step) for step, _ in phase.mixture.within(phase.start_step, phase.stop_step)]
    shortest = min(max(1, after - before) for before, after in pairwise([*starts, steps(phase.stop_step)]))
    sequences = shortest * scaling.sequences(phase.batch.at(phase.stop_step - 1))
    limit = max(phase.gates.data.max_share_error_points, 100 * MAX_SHARE_ERROR_SEQUENCES / sequences)
    percent = max(phase.gates.health.max_spike_percent, 100 * MAX_SPIKES / (steps(phase.stop_step) - steps(phase.start_step)))
    return phase.gates.but(
        data=phase.gates.data.but(max_share_error_points=limit, max_share_error_percent=None),
        health=phase.gates.health.but(max_spike_percent=min(100.0, percent)),
        model=phase.gates.model.but(must_beat_baseline=False, needle_error_rate=None),
    )
