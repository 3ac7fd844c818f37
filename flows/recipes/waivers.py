"""The warnings that a recipe accepts, and the checks that people may let pass, held against its phases."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from phasewise.flows.recipes.phase import Gates, Phase
from phasewise.validations.waivers import AcceptedWarning, ApprovableCheck

if TYPE_CHECKING:
    from phasewise.validations.expectations.suites import Check


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


def accepted_without_average(phases: Sequence[Phase]) -> AcceptedWarning:
    """A phase without a moving average has no gap to the average."""

    def keeps_average(phase: Phase) -> bool:
        return any(decay is not None for _, decay in phase.stability.ema_decay.within(phase.start_step, phase.stop_step))

    return AcceptedWarning(
        table="health",
        check="expect_column_values_to_be_in_set",
        where={"measure": "ema_gap"},
        phases=tuple(phase.name for phase in phases if not keeps_average(phase)),
        reason="the recipe keeps no moving average in this phase",
        source="the phase's `stability`, from the experiment code",
    )


def accepted_among(phases: Iterable[str], accepts: Iterable[AcceptedWarning]) -> tuple[AcceptedWarning, ...]:
    """What of it is expected in these phases, each named for them alone; None stays every phase."""
    there = frozenset(phases)
    kept: list[AcceptedWarning] = []
    for one in accepts:
        left = None if one.phases is None else tuple(name for name in one.phases if name in there)
        if left is None or left:
            kept.append(one.but(phases=left))
    return tuple(kept)


def check_accepts(accepts: Sequence[AcceptedWarning], phases: Sequence[Phase]) -> None:
    """Refuse to accept what stops a phase, what no phase is judged by, and the same twice.

    A phase that is not there is passed over, so that a recipe cut out of another can keep the list.

    Raises:
        ValueError: with what can be accepted.
    """
    for number, one in enumerate(accepts):
        if any((one.finding == other.finding and _share_a_phase(one, other)) for other in accepts[:number]):
            raise ValueError(f"accepts has {one.words} more than once for the same phase")
        there = [phase for phase in phases if one.phases is None or phase.name in one.phases]
        _check_one(one, there or phases)


def approvable_among(phases: Iterable[str], approvable: Iterable[ApprovableCheck]) -> tuple[ApprovableCheck, ...]:
    """What of it is about these phases, each named for them alone; None stays every phase."""
    there = frozenset(phases)
    kept: list[ApprovableCheck] = []
    for one in approvable:
        left = None if one.phases is None else tuple(name for name in one.phases if name in there)
        if left is None or left:
            kept.append(one.but(phases=left))
    return tuple(kept)


def check_all_approvable(approvable: Sequence[ApprovableCheck], phases: Sequence[Phase]) -> None:
    """Refuse what no person may let pass, what stops no phase, and the same twice. A phase that is not there is passed over.

    Raises:
        ValueError: with what can be listed.
    """
    for number, one in enumerate(approvable):
        if any((one.table, one.check) == (other.table, other.check) and _share_a_phase(one, other) for other in approvable[:number]):
            raise ValueError(f"approvable has {one.check} of table {one.table} more than once for the same phase")
        there = [phase for phase in phases if one.phases is None or phase.name in one.phases] or phases
        from phasewise.validations.expectations.waiver_rules import (
            check_approvable,  # pandas, which a recipe that puts nothing to people does without
        )

        check_approvable(one, [check for limits in {phase.gates.model_dump_json() for phase in there} for check in _checks_within(limits)])


def _check_one(accepted: AcceptedWarning, phases: Iterable[Phase]) -> None:
    from phasewise.validations.expectations.waiver_rules import check_acceptable  # pandas, which a recipe that accepts nothing does without

    checks = [check for limits in {phase.gates.model_dump_json() for phase in phases} for check in _checks_within(limits)]
    check_acceptable(accepted, checks)


@lru_cache(maxsize=64)
def _checks_within(gates_json: str) -> "tuple[Check, ...]":
    from phasewise.validations.expectations.suites import SUITES, checks_of

    gates = Gates.model_validate_json(gates_json)
    limits = {"data": gates.data, "health": gates.health, "gate": gates.model}
    return tuple(check for suite in SUITES for check in checks_of(suite, limits[suite].model_dump(mode="json")))


def _share_a_phase(one: AcceptedWarning | ApprovableCheck, other: AcceptedWarning | ApprovableCheck) -> bool:
    return one.phases is None or other.phases is None or bool(set(one.phases) & set(other.phases))
