"""What a hand-off changes between two phases, and how that is put in words."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from pydantic import BaseModel

from phasewise.flows.recipes.phase import Change, FromScratch, HandOff, Phase
from phasewise.trainer.base.wording import name_some
from phasewise.trainer.config import LearningRateSegment, ModelConfig, Smebu, StatePart, value_in


def check_carried(parent: Phase, phase: Phase, start: HandOff) -> None:
    """Refuse a hand-off that carries what there is not, or that draws rows of another length by the order of before.

    Raises:
        ValueError: with what to do.
    """
    if phase.model.seq_len != parent.model.seq_len and phase.order.first_step != start.step:
        raise ValueError(
            f"phase {phase.name} has rows of {phase.model.seq_len:,} tokens, where those of {parent.name} have "
            f"{parent.model.seq_len:,}: the same place is then another text, and some would come twice and some never. Its order must "
            f"begin again, by order.first_step {start.step:,}; found {phase.order.first_step:,}"
        )
    named = (*start.fresh, *(graft.part for graft in start.graft))
    if parent.model.qk_norm < phase.model.qk_norm and "qk_norm" not in named:
        raise ValueError(
            f"the hand-off {parent.name} → {phase.name} switches QK-norm on, and {parent.name} has no weights of it: name qk_norm in "
            "`fresh`"
        )
    if not _has_momentum(parent) and _has_momentum(phase) and "balancing" not in named:
        raise ValueError(
            f"the hand-off {parent.name} → {phase.name} switches SMEBU on, and {parent.name} has no momentum of the routers' biases: name "
            "balancing in `fresh`. The biases themselves are carried"
        )
    before, after = _expert_shapes(parent), _expert_shapes(phase)
    if before != after:
        raise ValueError(
            f"the hand-off {parent.name} → {phase.name} must keep the experts' weights, found {_shapes_in_words(before)} before it and "
            f"{_shapes_in_words(after)} after it: no weight of the parent has such a shape. Start the phase from scratch"
        )


def _has_momentum(phase: Phase) -> bool:
    return phase.model.experts is not None and isinstance(phase.model.experts.balancing, Smebu)


def _expert_shapes(phase: Phase) -> dict[str, int] | None:
    fields = {"num_dense_layers", "num_experts", "num_shared", "d_expert"}
    return phase.model.experts.model_dump(include=fields) if phase.model.experts else None


def _shapes_in_words(shapes: dict[str, int] | None) -> str:
    return ", ".join(f"{name} {value:,}" for name, value in sorted(shapes.items())) if shapes else "no experts"


CARRIED = "carried"
MAX_NAMED = 4
BALANCING = {"balancing", "sequence_loss"}
"""The fields of `Experts` that change no weight's shape."""
DIGEST = re.compile("[0-9a-f]{64}")
Pair = tuple[str, str]


def changes_between(
    parent: Phase, phase: Phase, *, drawn: Collection[str] = (), earlier: Collection[str] = ()
) -> dict[Change, tuple[object, object]]:
    """What the hand-off changes: name → (before, after).

    A learning rate counts as changed where it jumps by more than 1 %. The state of the optimizer is its own and that of the rolling
    windows; fresh gains of QK-norm come with a change of architecture. How the load on experts is balanced is no part of the architecture:
    the rule, the weight of the sequence-wise loss, and where the rule's momentum comes from are `balancing`. Nor is the length of the rows:
    it is `seq_len`, and the batch is then compared in tokens. The coverage changes where components that were drawn from go on in another
    order: a place in it then means another row. It also changes where the order goes on and comes to a component that was drawn from
    before the order began.

    Args:
        drawn: the components that the lineage drew from before this phase.
        earlier: those of them that it drew from before the order of the parent began, and not since.
    """
    before, after = phase.start_step - 1, phase.start_step
    rate_before, rate_after = value_in(segment_at(parent, before), after), value_in(segment_at(phase, after), after)
    batches_after = tuple(dict.fromkeys(size for _, size in phase.batch.within(after, phase.stop_step)))
    ema_before, ema_after = parent.stability.ema_decay.at(before), phase.stability.ema_decay.at(after)
    ema_state, optimizer_state, windows = (_origin(phase.start, part) for part in ("ema", "optimizer", "rolling"))
    compared: dict[Change, tuple[object, object]] = {
        "architecture": (_architecture(parent.model), _architecture(phase.model)),
        "rope": (parent.model.rope, phase.model.rope),
        "seq_len": (parent.model.seq_len, phase.model.seq_len),
        "batch": _batch(parent, phase, parent.batch.at(before), batches_after),
        "schedule": (_shape(segment_at(parent, before)), _shape(segment_at(phase, after))),
        "optimizer": (parent.optimizer, phase.optimizer),
        "optimizer_state": ({"optimizer": CARRIED, "windows": CARRIED}, {"optimizer": optimizer_state, "windows": windows}),
        "mixture": (parent.mixture.at(before), phase.mixture.at(after)),
        "order": (parent.order, phase.order),
        "packing": (parent.packing, phase.packing),
        "loss_on": (parent.loss_on, phase.loss_on),
        "coverage": _coverage(parent, phase, drawn, earlier),
        "ema": (CARRIED, ema_state) if ema_before == ema_after else (ema_before, ema_after),
        "z_loss": (parent.stability.z_loss.at(before), phase.stability.z_loss.at(after)),
        "max_grad_norm": (parent.stability.max_grad_norm.at(before), phase.stability.max_grad_norm.at(after)),
        "max_update_rms": (parent.stability.max_update_rms.at(before), phase.stability.max_update_rms.at(after)),
        "max_update_norm": (parent.stability.max_update_norm.at(before), phase.stability.max_update_norm.at(after)),
        "skip_step": (parent.stability.skip_step.at(before), phase.stability.skip_step.at(after)),
        "slice": (parent.slice.at(before), phase.slice.at(after)),
        "balancing": _balancing(parent, phase),
    }
    found: dict[Change, tuple[object, object]] = {name: pair for name, pair in compared.items() if pair[0] != pair[1]}
    if abs(rate_after - rate_before) > 0.01 * max(rate_before, rate_after):
        found["learning_rate"] = (rate_before, rate_after)
    return found


def undeclared_changes(found: Mapping[Change, tuple[object, object]], start: HandOff) -> dict[Change, str]:
    """What of the changes of a hand-off it does not declare, each in words."""
    return {name: _described(name, *found[name]) for name in sorted(set(found) - set(start.declares))}


def segment_at(phase: Phase, step: int) -> LearningRateSegment:
    """The segment that update number `step` falls into."""
    return next((segment for segment in phase.learning_rate if segment.start_step <= step < segment.end_step), phase.learning_rate[-1])


def both_in_words(before: object, after: object) -> Pair:
    """Both values in words, of large ones only where they differ."""
    was, now = _plain(before), _plain(after)
    if not (isinstance(was, dict) and isinstance(now, dict)):
        return _in_words(was), _in_words(now)
    differing = [name for name in {**was, **now} if was.get(name) != now.get(name)]
    return _named(was, differing), _named(now, differing)


def _batch(parent: Phase, phase: Phase, before: int, after: tuple[int, ...]) -> tuple[object, object]:
    if parent.model.seq_len == phase.model.seq_len:
        return (before,), after
    tokens = [size * phase.model.seq_len for size in after]
    return f"{before * parent.model.seq_len:,} tokens", ", ".join(f"{size:,} tokens" for size in tokens)


def _coverage(parent: Phase, phase: Phase, drawn: Collection[str], earlier: Collection[str]) -> tuple[object, object]:
    whole = "each row once an epoch"
    sides = (parent, phase)
    orders = [one.order.model_dump(exclude={"cut_blocks"}) for one in sides]  # blocks decide how much was drawn before
    goes_on = (orders[0], parent.packing, parent.model.seq_len) == (orders[1], phase.packing, phase.model.seq_len)
    again = [name for name in phase.components if name in (earlier if goes_on else drawn)]
    if not again:
        return whole, whole
    return whole, f"rows of {name_some(again, MAX_NAMED)} come again within their epoch, and others not at all"


def _architecture(model: ModelConfig) -> dict[str, Any]:
    found = model.model_dump(mode="json", exclude={"rope", "seq_len"})
    if found["experts"] is not None:
        found["experts"] = {name: value for name, value in found["experts"].items() if name not in BALANCING}
    return found


def _balancing(parent: Phase, phase: Phase) -> tuple[object, object]:
    before, after = parent.model.experts, phase.model.experts
    if before is None or after is None:
        return None, None
    was, now = before.model_dump(mode="json", include=BALANCING), after.model_dump(mode="json", include=BALANCING)
    return (CARRIED, _origin(phase.start, "balancing")) if was == now else (was, now)


def _described(name: Change, before: object, after: object) -> str:
    was, now = both_in_words(before, after)
    factor = ""
    if name == "learning_rate" and isinstance(before, float) and isinstance(after, float) and min(before, after) > 0:
        factor = f", {max(before, after) / min(before, after):.3g} times {'higher' if after > before else 'lower'} in one step"
    return f"{was} → {now}{factor}"


def _origin(start: FromScratch | HandOff, part: StatePart) -> str:
    if not isinstance(start, HandOff):
        return CARRIED
    grafts = [f"grafted from {graft.phase} {graft.step}" for graft in start.graft if graft.part == part]
    return "fresh" if part in start.fresh else grafts[0] if grafts else CARRIED


def _shape(segment: LearningRateSegment) -> str:
    """A segment in a word or two: constant, linear decay, linear warm-up …"""
    if segment.kind == "constant":
        return "constant"
    return f"{segment.kind} {'decay' if segment.end < segment.start else 'warm-up'}"


def _named(value: Mapping[Any, Any], names: Collection[Any]) -> str:
    return name_some((f"{name} {_in_words(value.get(name))}" for name in names), MAX_NAMED)


def _plain(value: object) -> Any:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value


def _in_words(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, dict):
        return _named(value, value.keys())
    if isinstance(value, list | tuple):
        return ", ".join(_in_words(_plain(part)) for part in value)
    if isinstance(value, float):
        return f"{value:g}"
    return value[:16] if isinstance(value, str) and DIGEST.fullmatch(value) else str(value)
