"""The warnings that the record's own choices give, and that the recipes of Marin accept.

Only what the recipe prescribes is here. What a run is too short for at proxy scale, or what went wrong in it, warns.
"""

from collections.abc import Sequence

from phasewise.flows.recipes.marin.notes import R32
from phasewise.flows.recipes.phase import Phase
from phasewise.validations.accepted import AcceptedWarning

MANTIS = "mantis"
ASK_ABOUT_ORDER = ("bison-clean", "bison-clean-feistel")
"""Branches that are there to show what an order does. Their warnings are the answer."""
IS_JUDGED = "expect_column_values_to_be_in_set"


def accepted_order(permutation: str, *, phases: tuple[str, ...] | None, reason: str, source: str) -> AcceptedWarning:
    """The record's order differs from a random one. That the data changes on the way is another check, which stops."""
    where: dict[str, bool | int | float | str] = {"permutation": permutation}
    return AcceptedWarning(table="order", check="expect_order_to_mix", where=where, phases=phases, reason=reason, source=source)


LINEAR_8B = accepted_order(
    "linear",
    phases=None,
    reason="the record shuffled every component of 8B by one linear permutation",
    source=f'exp600; {R32}, "Shuffling: Linear vs. Feistel"',
)


def accepted_orders_32b(phases: Sequence[Phase]) -> tuple[AcceptedWarning, ...]:
    """A linear permutation in all of the record's phases but Mantis, and Mantis's own."""
    linear = accepted_order(
        "linear",
        phases=tuple(phase.name for phase in phases if phase.name not in (MANTIS, *ASK_ABOUT_ORDER)),
        reason="the record shuffled by a linear permutation up to Bison, and saw Bison's loss shift under it",
        source=f'{R32}, "Shuffling: Linear vs. Feistel"; exp1295, exp1395, exp1529',
    )
    feistel = accepted_order(
        "feistel_levanter",
        phases=(MANTIS,),
        reason="the record shuffled Mantis by Levanter's Feistel permutation, five rounds of multiply and add",
        source=f'{R32}, "Shuffling: Linear vs. Feistel"; exp1529',
    )
    return linear, feistel


def accepted_without_cooldown(phases: Sequence[Phase]) -> AcceptedWarning:
    """No loss can rise in a cooldown where the learning rate never falls."""
    return AcceptedWarning(
        table="health",
        check=IS_JUDGED,
        where={"measure": "loss_rise_at_falling_learning_rate"},
        phases=tuple(phase.name for phase in phases if not has_cooldown(phase)),
        reason="the recipe's learning rate never falls in this phase, so no loss can rise in a cooldown",
        source="the phase's `learning_rate`, from the experiment code",
    )


def accepted_without_average(phases: Sequence[Phase]) -> AcceptedWarning:
    """There is no gap to a moving average that is not kept."""
    return AcceptedWarning(
        table="health",
        check=IS_JUDGED,
        where={"measure": "ema_gap"},
        phases=tuple(phase.name for phase in phases if not keeps_average(phase)),
        reason="the recipe keeps no moving average in this phase",
        source="the phase's `stability`, from the experiment code",
    )


def has_cooldown(phase: Phase) -> bool:
    """Whether the learning rate falls in any of its segments."""
    return any(segment.end < segment.start for segment in phase.learning_rate)


def keeps_average(phase: Phase) -> bool:
    """Whether it has a moving average of the weights at any step."""
    return any(decay is not None for _, decay in phase.stability.ema_decay.within(phase.start_step, phase.stop_step))
