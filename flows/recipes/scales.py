"""Smaller scales of a recipe: the same phases in a smaller size, as a function of the recipe. `docs/reference/recipe.md` has all rules.

The step axis is divided by one number, and batches are multiplied by one factor, so their ratios stay. Only the last checkpoint and
checkpoints for other phases stay. Every phase runs on this machine unless a slice is named. Windows of limits are equal in all phases,
because a window is handed on. Required samples keep the recipe's share of the window. Pinned caches don't stay: they have one tokenizer.

Between proxy and full, the critical batch grows with the data by a power of 0.4 to 0.5, and hardly with the model (Zhang et al., 2024, and
Bergsma et al., 2025), so the batch grows with the square root of the tokens, and steps make up the remaining factor. Learning rates follow
Marin's rule `0.33 · √batch / hidden_dim`, and µP's width rule for Adam's matrices (Yang et al., 2022).
"""

import math
from collections.abc import Callable
from functools import reduce
from itertools import pairwise
from typing import NamedTuple, TypeVar

from phasewise.flows.recipes.catalogue import CATALOGUE
from phasewise.flows.recipes.phase import LOCAL_SLICE, EvaluationSettings, Gates, HandOff, Phase
from phasewise.flows.recipes.recipe import Between, Recipe, Tokenizer
from phasewise.flows.recipes.sizes import body_parameters, shape_of
from phasewise.tasks.data.template import special_tokens_in, template_text
from phasewise.tasks.evaluation.settings import MADE_BENCHMARKS, MIN_LENGTH, made_of, needle_length, needles_of, real_of
from phasewise.trainer.base.errors import RecipeError
from phasewise.trainer.config import (
    AdamC,
    CheckpointPolicy,
    ExecutionSettings,
    LearningRateSegment,
    MixtureShares,
    ModelConfig,
    RollingLimit,
    Rope,
    Stability,
    Steps,
    always,
)

T = TypeVar("T")
S = TypeVar("S")
AnyLimit = TypeVar("AnyLimit", bound=RollingLimit)
STEPS, BATCH, LENGTH, MAX_LONGER = 1000, 512, 32, 8
D_MODEL, NUM_LAYERS, NUM_QUERY_HEADS, VOCAB_SIZE = 128, 2, 4, 4096
SPARSE_LAYERS, NUM_EXPERTS, NUM_ACTIVE, MIN_D_EXPERT = 8, 8, 2, 32
BLOCK_SEQUENCES, BUFFER_DOCUMENTS, HELD_OUT_TOKENS, LOSS_SEQUENCES = 160, 32, 2048, 1
BIAS_REACH, COLLAPSED_SHARE = 0.5, 0.7
TARGETS: dict[Between, int] = {"130m": 130_000_000, "370m": 370_000_000, "1b": 1_000_000_000, "3b": 3_000_000_000}
TOKENS_A_PARAMETER = 20
MIN_WINDOW_STEPS, MIN_WINDOW_SAMPLES, MAX_SHARE_ERROR_SEQUENCES, MAX_SPIKES = 8, 2, 1.5, 1.5
MAX_EVALUATION_SHARE, FORWARD_SHARE = 1 / 20, 1 / 3


class StepAxis(NamedTuple):
    """A shorter step axis: one step for `divisor` steps of the recipe.

    `min_segment_steps`: least steps of a warm-up or a decay. `min_warmup_steps`: the same for a warm-up from step 0.
    """

    divisor: float
    min_segment_steps: int
    min_warmup_steps: int = 0

    def steps(self, full: int) -> int:
        """Convert a step of the recipe."""
        return round(full / self.divisor)

    def by_steps(self, values: Steps[T], convert: Callable[[T], S]) -> Steps[S]:
        """Convert values and steps. If steps coincide, the last value counts."""
        return Steps(tuple({self.steps(step): convert(value) for step, value in values.root}.items()))

    def segments(self, segments: tuple[LearningRateSegment, ...], *, factor: float = 1.0) -> tuple[LearningRateSegment, ...]:
        """Convert segments and multiply their rates by `factor`. A segment that is too short takes steps from the segment before it."""
        ends = [self.steps(segment.end_step) for segment in segments]
        starts = [self.steps(segments[0].start_step)]
        for index in range(1, len(segments)):
            before, latest, least = segments[index - 1], ends[index] - self.min_segment_steps, self.min_segment_steps
            if before.start_step == 0 and before.kind != "constant" and self.min_warmup_steps:
                least = max(least, min(self.min_warmup_steps, (ends[index] - starts[-1]) // 2))
            starts.append(max(starts[-1] + least, min(self.steps(segments[index].start_step), latest)))
        ends = [*starts[1:], max(starts[-1] + 1, self.steps(segments[-1].end_step))]
        return tuple(
            LearningRateSegment(
                kind=segment.kind, start_step=start, end_step=end, start=segment.start * factor, end=segment.end * factor
            )
            for segment, start, end in zip(segments, starts, ends, strict=True)
        )  # fmt: skip

    def needed_steps(self, recipe: Recipe, phase: Phase) -> tuple[int, ...]:
        """The steps within a phase that other phases start or graft from."""
        taken: set[int] = set()
        for start in [other.start for other in recipe.phases if isinstance(other.start, HandOff)]:
            origins = [(start.parent, start.step), *((graft.phase, graft.step) for graft in start.graft)]
            taken |= {self.steps(step) for name, step in origins if name == phase.name and step < phase.stop_step}
        return tuple(sorted(taken))

    def max_window(self, recipe: Recipe) -> int:
        """The most steps of a window: half of the shortest phase with windows on the main line. Branches inherit full windows."""
        lengths: list[int] = []
        for phase in recipe.main_line or recipe.phases:
            limits = (phase.stability.max_update_norm, phase.stability.skip_step)
            if any(limit is not None for each in limits for _, limit in each.within(phase.start_step, phase.stop_step)):
                lengths.append(self.steps(phase.stop_step) - self.steps(phase.start_step))
        return max(MIN_WINDOW_STEPS, min(lengths, default=0) // 2)


class Rows(NamedTuple):
    """The row lengths of a phase at proxy scale, in tokens.

    `full`, `small`: in the recipe and at proxy scale. `first`, `longest`: first rows of the lineage and longest rows of the recipe. 0 is
    `full`.
    """

    full: int
    small: int
    first: int = 0
    longest: int = 0

    def sequences(self, full: int) -> int:
        """Sequences of a batch: ÷ 512, and more if the rows are shorter than 1/32."""
        shorter = 1.0 if self.small == self.full // LENGTH else self.full / LENGTH / self.small
        return max(1, round(full * shorter / BATCH))


def proxy_rows(seq_len: int, first_seq_len: int, longest_seq_len: int | None = None) -> Rows:
    """Rows of 1/32 of the length. Beyond `MAX_LONGER` first rows, ratios grow by a root: 1, 16 and 64 become 1, 4 and 8.

    `longest_seq_len`: longest rows of the recipe. None is `seq_len`.
    """
    most = (longest_seq_len or seq_len) / first_seq_len
    root = math.log(MAX_LONGER) / math.log(most) if most > MAX_LONGER else 1.0
    longer = max(1.0, seq_len / first_seq_len)
    small = max(1, round(min(seq_len, first_seq_len) * longer**root) // LENGTH)
    return Rows(seq_len, small, first_seq_len, longest_seq_len or seq_len)


class Scaling(NamedTuple):
    """The conversions of one scale for one phase. `max_window`, `min_ema_steps`: in steps."""

    axis: StepAxis
    model: Callable[[ModelConfig], ModelConfig]
    sequences: Callable[[int], int]
    rate: float
    max_window: int
    min_ema_steps: int


def scaled_phase(phase: Phase, scaling: Scaling, *, keep_steps: tuple[int, ...] = (), **fields: object) -> Phase:
    """A phase by the rules of every scale. `keep_steps` have permanent checkpoints, and `fields` follow the rules of one scale."""
    axis, stability = scaling.axis, phase.stability

    def window(limit: AnyLimit | None) -> AnyLimit | None:
        if limit is None:
            return None
        steps = min(limit.window, scaling.max_window)
        samples = max(MIN_WINDOW_SAMPLES, round(limit.min_samples * steps / limit.window))
        return limit.but(window=steps, min_samples=samples)

    def ema(decay: float | None) -> float | None:
        return None if decay is None else 1 - 1 / max(scaling.min_ema_steps, 1 / (1 - decay) / axis.divisor)

    recovery = phase.recovery
    if recovery is not None:
        recovery = recovery.but(max_loss=window(recovery.max_loss), steps_more=axis.steps(recovery.steps_more))
    optimizer = phase.optimizer
    if isinstance(optimizer, AdamC):
        optimizer = optimizer.but(peak_learning_rate=optimizer.peak_learning_rate * scaling.rate)
    start = phase.start
    if isinstance(start, HandOff):
        grafts = tuple(graft.but(step=axis.steps(graft.step)) for graft in start.graft)
        start = start.but(step=axis.steps(start.step), graft=grafts)
    changed: dict[str, object] = {
        "start": start,
        "stop_step": axis.steps(phase.stop_step),
        "model": scaling.model(phase.model),
        "optimizer": optimizer,
        "learning_rate": axis.segments(phase.learning_rate, factor=scaling.rate),
        "batch": axis.by_steps(phase.batch, scaling.sequences),
        "mixture": axis.by_steps(phase.mixture, lambda shares: shares),
        "order": phase.order.but(first_step=axis.steps(phase.order.first_step), cut_blocks=True),
        "stability": Stability(
            max_grad_norm=axis.by_steps(stability.max_grad_norm, lambda value: value),
            z_loss=axis.by_steps(stability.z_loss, lambda value: value),
            max_update_rms=axis.by_steps(stability.max_update_rms, lambda value: value),
            max_update_norm=axis.by_steps(stability.max_update_norm, window),
            skip_step=axis.by_steps(stability.skip_step, window),
            ema_decay=axis.by_steps(stability.ema_decay, ema),
        ),
        "slice": always(LOCAL_SLICE),
        "execution": ExecutionSettings(),
        "checkpoints": CheckpointPolicy(
            every_steps=max(1, axis.steps(phase.checkpoints.every_steps)),
            every_minutes=phase.checkpoints.every_minutes,
            keep_all=False,
            at_steps=keep_steps,
        ),
        "recovery": recovery,
    }
    return Phase.model_validate({**dict(phase), **changed, **fields})


def loss_every_steps(phase: Phase, scaling: Scaling, *, loss_sequences: int) -> int | None:
    """Steps between measurements of the held-out loss on `loss_sequences` rows of each component."""
    every = phase.evaluation.loss_every_steps
    if every is None:
        return None
    steps = (phase.start_step, phase.stop_step)
    fewest = min(scaling.sequences(size) for _, size in phase.batch.within(*steps))
    passes = 2 if any(decay is not None for _, decay in phase.stability.ema_decay.within(*steps)) else 1
    cost_sequences = FORWARD_SHARE * loss_sequences * len(phase.components) * passes
    return max(1, scaling.axis.steps(every), math.ceil(cost_sequences / (MAX_EVALUATION_SHARE * fewest)))


def scaled_gates(phase: Phase, scaling: Scaling, *, max_spike_percent: float) -> Gates:
    """Relax the limits on shares and spikes to the precision of short phases with small batches."""
    steps = scaling.axis.steps
    starts = [steps(step) for step, _ in phase.mixture.within(phase.start_step, phase.stop_step)]
    shortest = min(max(1, after - before) for before, after in pairwise([*starts, steps(phase.stop_step)]))
    sequences = shortest * scaling.sequences(phase.batch.at(phase.stop_step - 1))
    points = max(phase.gates.data.max_share_error_points, 100 * MAX_SHARE_ERROR_SEQUENCES / sequences)
    percent = max(phase.gates.health.max_spike_percent, max_spike_percent)
    return phase.gates.but(
        data=phase.gates.data.but(max_share_error_points=points, max_share_error_percent=None),
        health=phase.gates.health.but(max_spike_percent=percent),
    )


def to_scale(recipe: Recipe, scale: Between) -> Recipe:
    """The recipe at a scale between proxy and full."""
    scaling = scaling_of(recipe, scale)
    axis = scaling.axis
    if short := [phase for phase in recipe.phases if axis.steps(phase.stop_step) <= axis.steps(phase.start_step)]:
        raise RecipeError(
            f"{recipe.name} has no scale {scale}: that has one step for {axis.divisor:.1f}, and phase {short[0].name} is "
            f"{short[0].stop_step - short[0].start_step:,} steps long. Take a larger scale."
        )
    phases: list[Phase] = []
    for phase in recipe.phases:
        rows = scaling.sequences(phase.evaluation.loss_sequences)
        every = loss_every_steps(phase, scaling, loss_sequences=rows)
        max_spike_percent = min(100.0, 100 * MAX_SPIKES / (axis.steps(phase.stop_step) - axis.steps(phase.start_step)))
        gates = scaled_gates(phase, scaling, max_spike_percent=max_spike_percent)
        phases.append(
            scaled_phase(
                phase,
                scaling,
                keep_steps=axis.needed_steps(recipe, phase),
                evaluation=phase.evaluation.but(loss_every_steps=every, loss_sequences=rows),
                gates=gates.but(model=gates.model.but(must_beat_baseline=False, needle_error_rate=None)),
            )
        )
    return Recipe.model_validate({**dict(recipe), "scale": scale, "phases": tuple(phases), "pins": ()})


def scaling_of(recipe: Recipe, scale: Between) -> Scaling:
    """The conversions of a scale between."""
    target = TARGETS[scale]
    main = recipe.main_line or recipe.phases
    model = main[0].model
    if body_parameters(model) <= target:
        raise RecipeError(
            f"{recipe.name} has {body_parameters(model):,} parameters without embedding and head that a token meets, and the scale {scale} "
            f"is for {target:,}: take a smaller scale, or full."
        )
    shape = shape_of(model, target, f"{recipe.name} at scale {scale}")
    share = TOKENS_A_PARAMETER * target / max(recipe.tokens_before(phase, phase.stop_step) for phase in main)
    of_one_length = [phase for phase in main if phase.model.seq_len == model.seq_len]
    unit = reduce(math.gcd, {size for phase in of_one_length for _, size in phase.batch.within(phase.start_step, phase.stop_step)})
    batch = 2.0 ** max(0, round(math.log2(unit * math.sqrt(share)))) / unit
    axis = StepAxis(batch / share, min_segment_steps=4, min_warmup_steps=40)
    rate = math.sqrt(batch) * model.d_model / shape.d_model
    return Scaling(axis, shape.of, lambda full: max(1, round(full * batch)), rate, axis.max_window(recipe), min_ema_steps=20)


PROXY_AXIS = StepAxis(divisor=STEPS, min_segment_steps=2)


def steps(full: int) -> int:
    """Convert a step to proxy scale."""
    return PROXY_AXIS.steps(full)


def to_proxy(recipe: Recipe) -> Recipe:
    """The recipe at proxy scale."""
    main_line = tuple(sorted({component for phase in recipe.main_line for component in phase.components}))
    tokenizer = Tokenizer(
        name=None,
        vocab_size=VOCAB_SIZE,
        components=None if main_line == recipe.components else main_line,
        special_tokens=special_tokens_of(recipe),
    )
    window = PROXY_AXIS.max_window(recipe)
    longest = max(phase.model.seq_len for phase in recipe.phases)
    balancing = BIAS_REACH / max(steps(phase.stop_step) for phase in recipe.main_line or recipe.phases)
    rows = {phase.name: proxy_rows(phase.model.seq_len, recipe.lineage(phase)[0].model.seq_len, longest) for phase in recipe.phases}
    biases = {}
    for name, bias in recipe.length_bias.items():
        filled = max(rows[phase.name] for phase in recipe.phases if name in phase.components)
        biases[name] = bias.but(full_tokens=max(1, round(bias.full_tokens * filled.small / filled.full)))

    phases = [
        proxy_phase(phase, PROXY_AXIS.needed_steps(recipe, phase), max_window=window, min_balancing_rate=balancing, rows=rows[phase.name])
        for phase in recipe.phases
    ]
    changed = {"scale": "proxy", "phases": tuple(phases), "pins": (), "tokenizer": tokenizer, "length_bias": biases}
    return Recipe.model_validate({**dict(recipe), **changed})


def proxy_phase(
    phase: Phase,
    keep_steps: tuple[int, ...] = (),
    *,
    max_window: int = MIN_WINDOW_STEPS,
    min_balancing_rate: float = 0.0,
    rows: Rows | None = None,
) -> Phase:
    """A phase at proxy scale. `rows` None is 1/32 of the phase's rows."""
    lengths = rows or proxy_rows(phase.model.seq_len, phase.model.seq_len)
    scaling = Scaling(
        PROXY_AXIS,
        lambda model: proxy_model(model, min_balancing_rate=min_balancing_rate, seq_len=lengths.small),
        lengths.sequences,
        1.0,
        max_window,
        min_ema_steps=8,
    )
    buffer = None if phase.order.buffer_documents is None else min(phase.order.buffer_documents, BUFFER_DOCUMENTS)
    first_step = steps(phase.order.first_step)
    every = max(1, steps(phase.checkpoints.every_steps))
    gates = scaled_gates(phase, scaling, max_spike_percent=1.0)
    experts = scaling.model(phase.model).experts
    limit = gates.health.max_violation
    if limit is not None and experts is not None:
        limit = min(limit, COLLAPSED_SHARE * (experts.num_experts / experts.num_active - 1))
    # Benchmarks from held-out text instead of lm-eval's, and needles in shorter texts if they are long enough
    benchmarks = phase.evaluation.benchmarks
    made = MADE_BENCHMARKS if real_of(benchmarks) else made_of(benchmarks)
    needles: list[tuple[str, int]] = []
    for name in needles_of(benchmarks):
        text = proxy_rows(needle_length(name) or 0, lengths.first or lengths.full, lengths.longest or None)
        needles.append((name.partition(":")[0], text.small))
    return scaled_phase(
        phase,
        scaling,
        mixture=PROXY_AXIS.by_steps(phase.mixture, raise_small_shares),
        order=phase.order.but(block_sequences=BLOCK_SEQUENCES, first_step=first_step, cut_blocks=True, buffer_documents=buffer),
        checkpoints=CheckpointPolicy(every_steps=every, every_minutes=None, keep_all=False, at_steps=keep_steps),
        evaluation=EvaluationSettings(
            benchmarks=(*made, *dict.fromkeys(f"{name}:{length}" for name, length in needles if length >= MIN_LENGTH)),
            held_out_tokens=HELD_OUT_TOKENS,
            loss_every_steps=loss_every_steps(phase, scaling, loss_sequences=LOSS_SEQUENCES),
            loss_sequences=LOSS_SEQUENCES,
        ),
        gates=gates.but(
            health=gates.health.but(max_violation=limit), model=gates.model.but(exposure_error_rate=None, needle_error_rate=None)
        ),
    )


def proxy_model(model: ModelConfig, *, min_balancing_rate: float = 0.0, seq_len: int | None = None) -> ModelConfig:
    """The model at proxy scale, with a least rate of router biases. `seq_len` None is 1/32 of the model's rows."""
    scaling = model.rope.scaling
    small: dict[str, object] = {
        "vocab_size": VOCAB_SIZE,
        "seq_len": seq_len or model.seq_len // LENGTH,
        "num_layers": NUM_LAYERS,
        "d_model": D_MODEL,
        "d_ff": round(D_MODEL * model.d_ff / model.d_model),
        "num_query_heads": NUM_QUERY_HEADS,
        "num_kv_heads": max(1, NUM_QUERY_HEADS * model.num_kv_heads // model.num_query_heads),
        "head_dim": D_MODEL // NUM_QUERY_HEADS,
        "rope": Rope(
            theta=model.rope.theta, scaling=scaling and scaling.but(original_max_positions=scaling.original_max_positions // LENGTH)
        ),
        "compute_dtype": "float32",
        "sliding_window": None if model.sliding_window is None else max(1, model.sliding_window // LENGTH),
    }
    if experts := model.experts:
        wider = math.sqrt(model.d_model / D_MODEL)
        balancing = experts.balancing
        small |= {
            "num_layers": SPARSE_LAYERS,
            "initializer_std": model.initializer_std * wider,
            "embedding_scale": 1.0 if model.embedding_scale == 1 else model.embedding_scale / wider,
            "experts": experts.but(
                num_experts=min(NUM_EXPERTS, experts.num_experts),
                num_active=min(NUM_ACTIVE, experts.num_active),
                d_expert=max(MIN_D_EXPERT, round(D_MODEL * experts.d_expert / model.d_model)),
                num_dense_layers=min(1, experts.num_dense_layers),
                balancing=None if balancing is None else balancing.but(rate=max(balancing.rate, min_balancing_rate)),
            ),
        }
    return model.but(**small)


def raise_small_shares(shares: MixtureShares) -> MixtureShares:
    """Give every component at least one sequence per block, at the cost of the largest component."""
    least = 100 / BLOCK_SEQUENCES
    raised = {name: max(share, least) if share else 0.0 for name, share in shares.items()}
    largest = max(raised, key=lambda name: raised[name])
    return {**raised, largest: raised[largest] - (sum(raised.values()) - sum(shares.values()))}


def special_tokens_of(recipe: Recipe) -> tuple[str, ...]:
    """The special tokens of all chat templates, including branches, so that a branch never changes the tokenizer."""
    stand_ins = {name: CATALOGUE[name].stand_in for name in recipe.components if name in CATALOGUE and name not in recipe.sources}
    found = [stand_in.conversation for stand_in in stand_ins.values() if stand_in is not None]
    found += [source.conversation for source in recipe.sources.values()]
    written = {token for how in found if how is not None for token in special_tokens_in(template_text(how), how.special_tokens)}
    return tuple(sorted({*recipe.tokenizer.special_tokens, *written}))
