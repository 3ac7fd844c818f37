"""What a phase can take over from its parent, whatever it declares: parts that are there, weights of their shape, an order that fits."""

from phasewise.flows.recipes.phase import HandOff, Phase
from phasewise.trainer.config import Smebu


def check_carried(parent: Phase, phase: Phase, start: HandOff) -> None:
    """Refuse a hand-off that carries what there is not, or that draws rows of another length by the order of before.

    Raises:
        ValueError: with what to do.
    """
    _check_rows(parent, phase, start)
    _check_new_parts(parent, phase, start)


def _check_rows(parent: Phase, phase: Phase, start: HandOff) -> None:
    if phase.model.seq_len != parent.model.seq_len and phase.order.first_step != start.step:
        raise ValueError(
            f"phase {phase.name} has rows of {phase.model.seq_len:,} tokens, where those of {parent.name} have "
            f"{parent.model.seq_len:,}: the same place is then another text, and some would come twice and some never. Its order must "
            f"begin again, by order.first_step {start.step:,}; found {phase.order.first_step:,}"
        )


def _check_new_parts(parent: Phase, phase: Phase, start: HandOff) -> None:
    """Refuse a phase that begins with what its parent has not, where the hand-off does not say what it begins with."""
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
    """What decides the shapes of the experts' weights."""
    fields = {"num_dense_layers", "num_experts", "num_shared", "d_expert"}
    return phase.model.experts.model_dump(include=fields) if phase.model.experts else None


def _shapes_in_words(shapes: dict[str, int] | None) -> str:
    return ", ".join(f"{name} {value:,}" for name, value in sorted(shapes.items())) if shapes else "no experts"
