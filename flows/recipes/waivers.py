"""Accepted warnings and approvable checks of a recipe, checked against the limits of its phases."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

from phasewise.flows.recipes.phase import Gates, Phase
from phasewise.validations.limits import AcceptedWarning, ApprovableCheck

if TYPE_CHECKING:
    from phasewise.validations.expectations.suites import Check

Waiver = TypeVar("Waiver", AcceptedWarning, ApprovableCheck)


def accepted_order(permutation: str, *, phases: Iterable[str] | None, reason: str, source: str) -> AcceptedWarning:
    """The permutation mixes less than a random order. A change of the data during the phase is a separate check, which stops the phase."""
    where: dict[str, bool | int | float | str] = {"permutation": permutation}
    named = None if phases is None else tuple(phases)
    return AcceptedWarning(table="order", check="expect_order_to_mix", where=where, phases=named, reason=reason, source=source)


def accepted_without_cooldown(phases: Sequence[Phase], *, source: str) -> AcceptedWarning:
    """The loss cannot rise in a cooldown if the learning rate never falls."""
    return AcceptedWarning(
        table="health",
        check="expect_column_values_to_be_in_set",
        where={"measure": "loss_rise_at_falling_learning_rate"},
        phases=tuple(phase.name for phase in phases if all(segment.end >= segment.start for segment in phase.learning_rate)),
        reason="the recipe's learning rate never falls in this phase, so no loss can rise in a cooldown",
        source=source,
    )


def limited_to(phases: Iterable[str], waivers: Iterable[Waiver]) -> tuple[Waiver, ...]:
    """The waivers of these phases, without the names of other phases. None in `phases` stays every phase."""
    names = frozenset(phases)
    kept: list[Waiver] = []
    for one in waivers:
        left = None if one.phases is None else tuple(name for name in one.phases if name in names)
        if left is None or left:
            kept.append(one.but(phases=left))
    return tuple(kept)


def check_waivers(accepts: Sequence[AcceptedWarning], approvable: Sequence[ApprovableCheck], phases: Sequence[Phase]) -> None:
    """Reject duplicates, failures that are accepted, checks that people may not approve, and checks that judge or stop no phase.

    Names of missing phases are ignored, for recipes without branches.
    """
    listed: list[tuple[str, AcceptedWarning | ApprovableCheck, str, object]] = []
    listed += [("accepts", one, one.words, (one.table, one.check, one.where)) for one in accepts]
    listed += [("approvable", one, f"{one.check} of table {one.table}", (one.table, one.check)) for one in approvable]
    for number, (kind, one, words, key) in enumerate(listed):
        for other_kind, other, _, other_key in listed[:number]:
            share_a_phase = one.phases is None or other.phases is None or set(one.phases) & set(other.phases)
            if (kind, key) == (other_kind, other_key) and share_a_phase:
                raise ValueError(f"{kind} has {words} more than once for the same phase")
        from phasewise.validations.expectations.waiver_rules import check_acceptable, check_approvable  # pandas

        named = [phase for phase in phases if one.phases is None or phase.name in one.phases] or phases
        checks = [check for limits in {phase.gates.model_dump_json() for phase in named} for check in _checks_within(limits)]
        if isinstance(one, AcceptedWarning):
            check_acceptable(one, checks)
        else:
            check_approvable(one, checks)


@lru_cache(maxsize=64)
def _checks_within(gates_json: str) -> "tuple[Check, ...]":
    from phasewise.validations.expectations.suites import SUITES, checks_of

    gates = Gates.model_validate_json(gates_json)
    limits = {"data": gates.data, "health": gates.health, "gate": gates.model}
    return tuple(check for suite in SUITES for check in checks_of(suite, limits[suite].model_dump(mode="json")))
