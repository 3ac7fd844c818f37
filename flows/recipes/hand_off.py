"""Changes of a hand-off between two phases, as values and as text."""

import re
from collections.abc import Collection
from typing import Any

from pydantic import BaseModel

from phasewise.flows.recipes.phase import Change, HandOff, Phase, Start
from phasewise.trainer.base.wording import name_some
from phasewise.trainer.config import LearningRateSegment, Smebu, StatePart, value_in

CARRIED = "carried"
MAX_NAMED = 4
EACH_ONCE = "each row once an epoch"
BALANCING = {"balancing", "sequence_loss"}  # the fields of `Experts` that change no weight's shape
NOT_ARCHITECTURE: dict[str, Any] = {"rope": True, "seq_len": True, "experts": BALANCING}
DIGEST = re.compile("[0-9a-f]{64}")
COMPARED_STABILITY: tuple[Change, ...] = ("z_loss", "max_grad_norm", "max_update_rms", "max_update_norm", "skip_step")
Pair = tuple[str, str]


def check_carried(parent: Phase, phase: Phase, start: HandOff) -> None:
    """Reject a hand-off that carries missing state, or keeps the data order for rows of another length."""
    if phase.model.seq_len != parent.model.seq_len and phase.order.first_step != start.step:
        raise ValueError(
            f"phase {phase.name} has rows of {phase.model.seq_len:,} tokens, and {parent.name} has rows of {parent.model.seq_len:,}. In "
            f"the parent's order, some text would come twice and some never: expected order.first_step {start.step:,}, found "
            f"{phase.order.first_step:,}"
        )
    named = (*start.fresh, *(graft.part for graft in start.graft))
    if parent.model.qk_norm < phase.model.qk_norm and "qk_norm" not in named:
        raise ValueError(
            f"the hand-off {parent.name} → {phase.name} switches QK-norm on, and {parent.name} has no weights of it: name qk_norm in "
            "`fresh`"
        )
    had_momentum, has_momentum = (
        one.model.experts is not None and isinstance(one.model.experts.balancing, Smebu) for one in (parent, phase)
    )
    if not had_momentum and has_momentum and "balancing" not in named:
        raise ValueError(
            f"the hand-off {parent.name} → {phase.name} switches SMEBU on, and {parent.name} has no momentum of the routers' biases: name "
            "balancing in `fresh`. The biases themselves are carried"
        )
    fields = {"num_dense_layers", "num_experts", "num_shared", "d_expert"}
    before, after = (one.model.experts and one.model.experts.model_dump(include=fields) for one in (parent, phase))
    if before != after:
        was, now = (", ".join(f"{name} {one[name]:,}" for name in sorted(one)) if one else "no experts" for one in (before, after))
        raise ValueError(
            f"the hand-off {parent.name} → {phase.name} must keep the experts' weights, found {was} before it and {now} after it: no "
            "weight of the parent has such a shape. Start the phase from scratch"
        )


def changes_between(
    parent: Phase, phase: Phase, *, drawn: Collection[str] = (), earlier: Collection[str] = ()
) -> dict[Change, tuple[object, object]]:
    """The changes of a hand-off: name → (before, after).

    * `learning_rate`: a jump of more than 1 %.
    * `optimizer_state`: the state of the optimizer and of the rolling windows. Fresh QK-norm gains belong to `architecture`.
    * `balancing`: the balancing rule of experts, the weight of the sequence-wise loss, and the origin of the rule's momentum.
    * `batch`: in tokens if `seq_len` changes.
    * `coverage`: earlier components get a new order, so the same place is another row. It also changes if the order stays and reaches a
      component from before the start of the order.

    Args:
        drawn: the components of the lineage before the phase.
        earlier: components of the steps before the parent's order started, and of no later step.
    """
    before, after = phase.start_step - 1, phase.start_step
    last, first = (
        next((segment for segment in one.learning_rate if segment.start_step <= step < segment.end_step), one.learning_rate[-1])
        for one, step in ((parent, before), (phase, after))
    )
    rate_before, rate_after = value_in(last, after), value_in(first, after)
    sizes_before = (parent.batch.at(before),)
    sizes_after = tuple(dict.fromkeys(size for _, size in phase.batch.within(after, phase.stop_step)))
    batches: tuple[object, object] = (sizes_before, sizes_after)
    if parent.model.seq_len != phase.model.seq_len:
        lengths = ((sizes_before, parent.model.seq_len), (sizes_after, phase.model.seq_len))
        in_tokens = [", ".join(f"{size * seq_len:,} tokens" for size in sizes) for sizes, seq_len in lengths]
        batches = in_tokens[0], in_tokens[1]
    balancing: tuple[object, object] = (None, None)
    if parent.model.experts and phase.model.experts:
        was, now = (one.model.experts and one.model.experts.model_dump(mode="json", include=BALANCING) for one in (parent, phase))
        balancing = (CARRIED, _origin(phase.start, "balancing")) if was == now else (was, now)
    ema_before, ema_after = parent.stability.ema_decay.at(before), phase.stability.ema_decay.at(after)
    ema_state, optimizer_state, windows = (_origin(phase.start, part) for part in ("ema", "optimizer", "rolling"))
    # The blocks decide how much was drawn before, not which rows
    rows_before, rows_after = ((one.order.model_dump(exclude={"cut_blocks"}), one.packing, one.model.seq_len) for one in (parent, phase))
    again = [name for name in phase.components if name in (earlier if rows_before == rows_after else drawn)]
    coverage = f"rows of {name_some(again, MAX_NAMED)} come again within their epoch, and others not at all"
    compared: dict[Change, tuple[object, object]] = {
        "architecture": (
            parent.model.model_dump(mode="json", exclude=NOT_ARCHITECTURE),
            phase.model.model_dump(mode="json", exclude=NOT_ARCHITECTURE),
        ),
        "rope": (parent.model.rope, phase.model.rope), "seq_len": (parent.model.seq_len, phase.model.seq_len), "batch": batches,
        "schedule": (_shape(last), _shape(first)), "optimizer": (parent.optimizer, phase.optimizer),
        "optimizer_state": ({"optimizer": CARRIED, "windows": CARRIED}, {"optimizer": optimizer_state, "windows": windows}),
        "mixture": (parent.mixture.at(before), phase.mixture.at(after)), "order": (parent.order, phase.order),
        "packing": (parent.packing, phase.packing), "loss_on": (parent.loss_on, phase.loss_on),
        "coverage": (EACH_ONCE, coverage if again else EACH_ONCE),
        "ema": (CARRIED, ema_state) if ema_before == ema_after else (ema_before, ema_after),
        **{name: (getattr(parent.stability, name).at(before), getattr(phase.stability, name).at(after)) for name in COMPARED_STABILITY},
        "slice": (parent.slice.at(before), phase.slice.at(after)), "balancing": balancing,
    }  # fmt: skip
    found: dict[Change, tuple[object, object]] = {name: pair for name, pair in compared.items() if pair[0] != pair[1]}
    if abs(rate_after - rate_before) > 0.01 * max(rate_before, rate_after):
        found["learning_rate"] = (rate_before, rate_after)
    return found


def both_in_words(before: object, after: object) -> Pair:
    """Both values as text. Of mappings and models, only differing fields."""
    was, now = plain(before), plain(after)
    if isinstance(was, dict) and isinstance(now, dict):
        differing = [name for name in {**was, **now} if was.get(name) != now.get(name)]
        was, now = ({name: one.get(name) for name in differing} for one in (was, now))
    return _in_words(was), _in_words(now)


def _origin(start: Start, part: StatePart) -> str:
    if not isinstance(start, HandOff):
        return CARRIED
    grafts = [f"grafted from {graft.phase} {graft.step}" for graft in start.graft if graft.part == part]
    return "fresh" if part in start.fresh else grafts[0] if grafts else CARRIED


def _shape(segment: LearningRateSegment) -> str:
    if segment.kind == "constant":
        return "constant"
    return f"{segment.kind} {'decay' if segment.end < segment.start else 'warm-up'}"


def plain(value: Any) -> Any:
    """Return a model as JSON, and any other value unchanged."""
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value


def _in_words(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, dict):
        return name_some((f"{name} {_in_words(part)}" for name, part in value.items()), MAX_NAMED)
    if isinstance(value, list | tuple):
        return ", ".join(_in_words(plain(part)) for part in value)
    if isinstance(value, float):
        return f"{value:g}"
    return value[:16] if isinstance(value, str) and DIGEST.fullmatch(value) else str(value)
