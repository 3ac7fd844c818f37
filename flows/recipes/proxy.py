"""Proxy scale: the same recipe, small. A function of the recipe, and these are its rules.

* steps ÷ 1000, rounded; a warm-up or a decay takes at least two, so that it has a middle;
* batch ÷ 512 sequences of 1/32 the length, so that the batch ratios stay;
* rows that are longer than those the lineage began with are as many times longer. Where the recipe's longest would be more than 8 times
  longer, they are 8 times longer, and those between grow by a root of their factor; the batch then has as many tokens as
  the recipe's ÷ 512 ÷ 32. Windows of local layers stay what they are. Lengths of documents that the recipe names shrink as the rows do;
* a model of two layers, 128 wide, with the recipe's ratio of query to kv heads and of d_ff to d_model, in float32;
* a sparse model keeps its structure in eight layers: one dense layer where the recipe has some, then experts; its pattern of local and
  global layers, so with one global in four two such groups, and windows of 1/32; eight experts, two of them active, as many shared ones as
  the recipe has, each the recipe's share of d_model wide and at least 32; gates, norms and route scale as they are;
* balancing as it is, but that a bias can move by at least half of a score's range within the steps of the main line: at the record's rate
  it would get nowhere in so few;
* a sparse model's initial standard deviation grows by √(d_model / 128) and what its embeddings are multiplied by falls by as much: 0.5 /
  √d and √d stay what they are;
* learning rates as they are;
* the EMA averages over a thousandth of the steps, at least 8;
* the windows of skip-step and of the clip of the update's norm hold half as many steps as the shortest phase of the main line that uses one
  has, at least 8 and never more than the recipe's; the values that a limit needs are the recipe's share of that. It is one length for all
  phases, because a window is handed on;
* blocks of 160 sequences; a component whose share is below one sequence a block gets one, at the cost of the largest;
* a mixture may start inside a block: the Phoenix bridge is 12 sequences long, and no block is that small with a sequence of everyone;
* a stage may be 1.5 sequences of its own off in a component's share, where that is more than the recipe's limit, and a block as far as
  it is; the recipe's own blocks are held to its own limits at either scale;
* where a benchmark of lm-eval is named, both that are made from held-out text are measured in place of all; test items that are
  read under two renderings are longer than its rows, and are not read; needles are in texts that shrink as rows of their length do, and
  no gate asks for them: so small a model finds none;
* the loss on held-out text is that of one row a component, each 1/1000 of the recipe's steps, or as seldom as keeps it under a twentieth
  of the training's arithmetic (a forward pass is a third of an update's; where there is an EMA, it takes two); and once at the end;
* the tokenizer is trained on the stand-ins; RoPE's stretch starts at 1/32 of the positions;
* the checkpoints that other phases start from or take a part of are kept, and else the last ones;
* the limit on the imbalance of experts is at most 0.7 of the most that there can be with so few;
* the tokenizer is trained on the components of the main line, so that a branch changes none of its caches, and has the special tokens of
  every phase's chat templates;
* the warnings that the recipe accepts stay, and no others are accepted; what it puts to people stays, too;
* sources of the recipe's own stay; pins do not: another tokenizer makes other caches, and a pinned one cannot be among them.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from phasewise.flows.recipes.catalogue import CATALOGUE
from phasewise.flows.recipes.evaluation_cost import seldom_enough
from phasewise.flows.recipes.phase import LOCAL_SLICE, EvaluationSettings, FromScratch, Gates, Phase
from phasewise.flows.recipes.recipe import Recipe, Tokenizer
from phasewise.flows.recipes.step_axis import MIN_WINDOW_STEPS, StepAxis, shorter_window
from phasewise.tasks.data.conversations.template import special_tokens_in, template_text
from phasewise.tasks.data.length_bias import LengthBias
from phasewise.tasks.evaluation.measured import MADE_BENCHMARKS, made_of, needle_length, needles_of, real_of
from phasewise.tasks.evaluation.needle_lengths import MIN_LENGTH
from phasewise.trainer.config import (
    DataOrder,
    MixtureShares,
    ModelConfig,
    Recovery,
    Rope,
    Stability,
    always,
)

STEPS, BATCH, LENGTH = 1000, 512, 32
MAX_LONGER = 8
"""A row of 1,024 tokens where the first were 128: what two cores train in seconds."""
D_MODEL, NUM_LAYERS, NUM_QUERY_HEADS, VOCAB_SIZE = 128, 2, 4, 4096
SPARSE_LAYERS, NUM_EXPERTS, NUM_ACTIVE, MIN_D_EXPERT = 8, 8, 2, 32
BLOCK_SEQUENCES, MIN_EMA_STEPS, MIN_SEGMENT_STEPS, HELD_OUT_TOKENS = 160, 8, 2, 2048
BUFFER_DOCUMENTS = 32
LOSS_SEQUENCES = 1
MAX_SHARE_ERROR_SEQUENCES = 1.5
MAX_SPIKE_PERCENT = 1.0
BIAS_REACH = 0.5
"""Scores of a router are between 0 and 1."""
COLLAPSED_SHARE = 0.7
"""Of the most that MaxVio can be, where all tokens have the same experts."""
AXIS = StepAxis(divisor=STEPS, min_segment_steps=MIN_SEGMENT_STEPS)


def to_proxy(recipe: Recipe) -> Recipe:
    """The recipe at proxy scale."""
    window, rate = AXIS.max_window(recipe), min_balancing_rate(recipe)
    phases = tuple(
        proxy_phase(phase, AXIS.needed_steps(recipe, phase), max_window=window, min_balancing_rate=rate, rows=_rows(recipe, phase))
        for phase in recipe.phases
    )
    main_line = tuple(sorted({component for phase in recipe.main_line for component in phase.components}))
    tokenizer = Tokenizer(
        name=None,
        vocab_size=VOCAB_SIZE,
        components=None if main_line == recipe.components else main_line,
        special_tokens=special_tokens_of(recipe),
    )
    return Recipe(
        name=recipe.name,
        scale="proxy",
        tokenizer=tokenizer,
        phases=phases,
        sources=recipe.sources,
        accepts=recipe.accepts,
        approvable=recipe.approvable,
        warnings_ask_people=recipe.warnings_ask_people,
        max_tokens=recipe.max_tokens,
        length_bias={name: _proxy_bias(recipe, name, bias) for name, bias in recipe.length_bias.items()},
    )


def special_tokens_of(recipe: Recipe) -> tuple[str, ...]:
    """What the chat templates of all phases write, branches too: the real tokenizer has it from the start, and a branch can add none."""
    stand_ins = {name: CATALOGUE[name].stand_in for name in recipe.components if name in CATALOGUE}
    found = [stand_in.conversation for name, stand_in in stand_ins.items() if stand_in is not None and name not in recipe.sources]
    found += [source.conversation for source in recipe.sources.values()]
    written = {token for how in found if how is not None for token in special_tokens_in(template_text(how), how.special_tokens)}
    return tuple(sorted({*recipe.tokenizer.special_tokens, *written}))


def min_balancing_rate(recipe: Recipe) -> float:
    """The least rate at which routers' biases are moved. It is one for all phases: what balances is handed on."""
    return BIAS_REACH / max(steps(phase.stop_step) for phase in recipe.main_line or recipe.phases)


def _rows(recipe: Recipe, phase: Phase) -> "Rows":
    """The rows of a phase beside the first ones of its lineage and the longest of the recipe."""
    longest = max(other.model.seq_len for other in recipe.phases)
    return proxy_rows(phase.model.seq_len, recipe.lineage(phase)[0].model.seq_len, longest)


def _proxy_bias(recipe: Recipe, component: str, bias: LengthBias) -> LengthBias:
    """The same chances at lengths that shrink as the longest rows do that the component fills."""
    rows = [_rows(recipe, phase) for phase in recipe.phases if component in phase.components]
    longest = max(rows)
    return bias.but(full_tokens=max(1, round(bias.full_tokens * longest.small / longest.full)))


class Rows(NamedTuple):
    """The rows of a phase.

    Attributes:
        full: tokens of a row of the recipe; `small` is that of the proxy.
        first, longest: rows of the recipe by which the others shrink, as in `proxy_rows`; 0 is these.
    """

    full: int
    small: int
    first: int = 0
    longest: int = 0

    def shortened(self, length: int) -> int:
        """Of a text of so many tokens, as a row of its length is."""
        return proxy_rows(length, self.first or self.full, self.longest or None).small

    def sequences(self, full: int) -> int:
        """A batch of the recipe, ÷ 512; of rows that are shorter than 1/32, as many more."""
        shorter = 1.0 if self.small == self.full // LENGTH else self.full / LENGTH / self.small
        return max(1, round(full * shorter / BATCH))


def proxy_rows(seq_len: int, first_seq_len: int, longest_seq_len: int | None = None) -> Rows:
    """1/32 of the length. Where the longest rows would be more than `MAX_LONGER` times the lineage's first ones, they are so many times
    those, and what lies between grows by a root of its factor: 1, 16 and 64 times become 1, 4 and 8 times.

    Args:
        longest_seq_len: of the recipe; None is these.
    """
    most = (longest_seq_len or seq_len) / first_seq_len
    root = math.log(MAX_LONGER) / math.log(most) if most > MAX_LONGER else 1.0
    longer = max(1.0, seq_len / first_seq_len)
    small = max(1, round(min(seq_len, first_seq_len) * longer**root) // LENGTH)
    return Rows(seq_len, small, first_seq_len, longest_seq_len or seq_len)


def proxy_phase(
    phase: Phase,
    keep_steps: tuple[int, ...] = (),
    *,
    max_window: int = MIN_WINDOW_STEPS,
    min_balancing_rate: float = 0.0,
    rows: Rows | None = None,
) -> Phase:
    """One phase by the rules above; the checkpoints of `keep_steps` are kept, and no window holds more than `max_window` steps.

    Args:
        rows: as long as these; None is 1/32 of its own.
    """
    rows = rows or proxy_rows(phase.model.seq_len, phase.model.seq_len)
    start = phase.start if isinstance(phase.start, FromScratch) else AXIS.hand_off(phase.start)
    return Phase(
        name=phase.name,
        start=start,
        stop_step=steps(phase.stop_step),
        model=proxy_model(phase.model, min_balancing_rate=min_balancing_rate, seq_len=rows.small),
        optimizer=phase.optimizer,
        learning_rate=AXIS.segments(phase.learning_rate),
        batch=AXIS.by_steps(phase.batch, rows.sequences),
        mixture=AXIS.by_steps(phase.mixture, raise_small_shares),
        order=proxy_order(phase.order),
        stability=Stability(
            max_grad_norm=AXIS.by_steps(phase.stability.max_grad_norm, lambda norm: norm),
            z_loss=AXIS.by_steps(phase.stability.z_loss, lambda weight: weight),
            max_update_rms=AXIS.by_steps(phase.stability.max_update_rms, lambda rms: rms),
            max_update_norm=AXIS.by_steps(phase.stability.max_update_norm, lambda limit: shorter_window(limit, max_window)),
            skip_step=AXIS.by_steps(phase.stability.skip_step, lambda limit: shorter_window(limit, max_window)),
            ema_decay=AXIS.by_steps(phase.stability.ema_decay, lambda decay: AXIS.ema(decay, MIN_EMA_STEPS)),
        ),
        slice=always(LOCAL_SLICE),
        checkpoints=AXIS.checkpoints(phase.checkpoints, keep_steps, every_minutes=None),
        evaluation=proxy_evaluation(phase, rows),
        gates=_gates(phase, rows),
        instrumentation=phase.instrumentation,
        recovery=proxy_recovery(phase.recovery, max_window),
        packing=phase.packing,
        loss_on=phase.loss_on,
        discrepancies=phase.discrepancies,
        notes=phase.notes,
        branch=phase.branch,
        abandoned=phase.abandoned,
        schedule_goes_on=phase.schedule_goes_on,
    )


def proxy_evaluation(phase: Phase, rows: Rows) -> EvaluationSettings:
    """Benchmarks that are made here, and the loss on held-out text as often as costs little."""
    every = phase.evaluation.loss_every_steps
    if every is not None:
        every = max(1, steps(every), seldom_enough(phase, rows.sequences, loss_sequences=LOSS_SEQUENCES))
    return EvaluationSettings(
        benchmarks=_proxy_benchmarks(phase.evaluation.benchmarks, rows),
        held_out_tokens=HELD_OUT_TOKENS,
        loss_every_steps=every,
        loss_sequences=LOSS_SEQUENCES,
    )


def _proxy_benchmarks(benchmarks: Sequence[str], rows: Rows) -> tuple[str, ...]:
    """Those that are made here in place of lm-eval's; needles in texts that shrink as rows of their length do, where there is room."""
    made = MADE_BENCHMARKS if real_of(benchmarks) else made_of(benchmarks)
    short = [(name.partition(":")[0], rows.shortened(needle_length(name) or 0)) for name in needles_of(benchmarks)]
    return (*made, *dict.fromkeys(f"{name}:{length}" for name, length in short if length >= MIN_LENGTH))


def steps(full: int) -> int:
    """A step of the full axis on the proxy's."""
    return AXIS.steps(full)


def proxy_model(model: ModelConfig, *, min_balancing_rate: float = 0.0, seq_len: int | None = None) -> ModelConfig:
    """The same shape, small; biases of routers move at no smaller rate than this one.

    Args:
        seq_len: of the small model's rows; None is 1/32 of the recipe's.
    """
    scaling = model.rope.scaling
    if scaling:
        scaling = type(scaling)(**{**scaling.model_dump(), "original_max_positions": scaling.original_max_positions // LENGTH})
    small: dict[str, object] = {
        "vocab_size": VOCAB_SIZE,
        "seq_len": seq_len or model.seq_len // LENGTH,
        "num_layers": NUM_LAYERS,
        "d_model": D_MODEL,
        "d_ff": round(D_MODEL * model.d_ff / model.d_model),
        "num_query_heads": NUM_QUERY_HEADS,
        "num_kv_heads": max(1, NUM_QUERY_HEADS * model.num_kv_heads // model.num_query_heads),
        "head_dim": D_MODEL // NUM_QUERY_HEADS,
        "rope": Rope(theta=model.rope.theta, scaling=scaling),
        "compute_dtype": "float32",
        "sliding_window": None if model.sliding_window is None else max(1, model.sliding_window // LENGTH),
    }
    return model.but(**{**small, **_proxy_sparse(model, min_balancing_rate)})


def _proxy_sparse(model: ModelConfig, min_balancing_rate: float) -> dict[str, object]:
    """What a model with experts has instead or besides."""
    if model.experts is None:
        return {}
    wider = math.sqrt(model.d_model / D_MODEL)
    balancing = model.experts.balancing
    experts = model.experts.but(
        num_experts=min(NUM_EXPERTS, model.experts.num_experts),
        num_active=min(NUM_ACTIVE, model.experts.num_active),
        d_expert=max(MIN_D_EXPERT, round(D_MODEL * model.experts.d_expert / model.d_model)),
        num_dense_layers=min(1, model.experts.num_dense_layers),
        balancing=None if balancing is None else balancing.but(rate=max(balancing.rate, min_balancing_rate)),
    )
    return {
        "num_layers": SPARSE_LAYERS,
        "initializer_std": model.initializer_std * wider,
        "embedding_scale": 1.0 if model.embedding_scale == 1 else model.embedding_scale / wider,
        "experts": experts,
    }


def proxy_order(order: DataOrder) -> DataOrder:
    """The same order in small blocks, which the ends of stages may cut, and with small buffers of documents, which are filled again."""
    buffer = None if order.buffer_documents is None else min(order.buffer_documents, BUFFER_DOCUMENTS)
    fields = {"block_sequences": BLOCK_SEQUENCES, "first_step": steps(order.first_step), "cut_blocks": True}
    return order.but(**fields, buffer_documents=buffer)


def proxy_recovery(recovery: Recovery | None, max_window: int) -> Recovery | None:
    """The same, with its steps on the proxy's axis."""
    if recovery is None:
        return None
    limit = shorter_window(recovery.max_loss, max_window)
    return Recovery.model_validate({**recovery.model_dump(), "max_loss": limit, "steps_more": steps(recovery.steps_more)})


def raise_small_shares(shares: MixtureShares) -> MixtureShares:
    """At least one sequence a block for every component; the largest gives what that takes."""
    least = 100 / BLOCK_SEQUENCES
    raised = {name: max(share, least) if share else 0.0 for name, share in shares.items()}
    largest = max(raised, key=lambda name: raised[name])
    return {**raised, largest: raised[largest] - (sum(raised.values()) - sum(shares.values()))}


def _max_violation(phase: Phase) -> float | None:
    """The recipe's limit, or what says that the proxy's few experts collapse where that is less."""
    limit = phase.gates.health.max_violation
    experts = proxy_model(phase.model).experts
    if limit is None or experts is None:
        return limit
    return min(limit, COLLAPSED_SHARE * (experts.num_experts / experts.num_active - 1))


def _gates(phase: Phase, rows: Rows) -> Gates:
    """The recipe's limits; a share cannot be met more closely than to a sequence of the shortest stage, and of few updates one is more."""
    starts = [steps(step) for step, _ in phase.mixture.within(phase.start_step, phase.stop_step)]
    shortest = min(max(1, after - before) for before, after in pairwise([*starts, steps(phase.stop_step)]))
    sequences = shortest * rows.sequences(phase.batch.at(phase.stop_step - 1))
    limit = max(phase.gates.data.max_share_error_points, 100 * MAX_SHARE_ERROR_SEQUENCES / sequences)
    data = phase.gates.data.but(max_share_error_points=limit, max_share_error_percent=None)
    percent = max(phase.gates.health.max_spike_percent, MAX_SPIKE_PERCENT)
    health = phase.gates.health.but(max_spike_percent=percent, max_violation=_max_violation(phase))
    return Gates(data=data, health=health, model=phase.gates.model.but(exposure_error_rate=None, needle_error_rate=None))
