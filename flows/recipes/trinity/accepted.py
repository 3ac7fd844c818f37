"""The warnings that the recipes of Trinity accept, because what they prescribe gives them."""

from collections.abc import Sequence

from phasewise.flows.recipes.phase import Phase
from phasewise.validations.accepted import AcceptedWarning


def accepted_without_cooldown(phases: Sequence[Phase]) -> AcceptedWarning:
    """No loss can rise in a cooldown where the learning rate never falls."""
    steady = tuple(phase.name for phase in phases if all(segment.end >= segment.start for segment in phase.learning_rate))
    return AcceptedWarning(
        table="health",
        check="expect_column_values_to_be_in_set",
        where={"measure": "loss_rise_at_falling_learning_rate"},
        phases=steady,
        reason="the recipe's learning rate never falls in this phase, so no loss can rise in a cooldown",
        source="the phase's `learning_rate`: Trinity Large report, §3.4.2",
    )
