"""What the record reported of a phase: scores, losses, gaps, counts, dates and hardware, as they are printed, each with its source."""

from collections.abc import Mapping
from typing import Literal

from phasewise.flows.recipes.recipe import Recipe
from phasewise.trainer.base.frozen import Frozen

Kind = Literal["score", "loss", "count", "date", "hardware", "event"]


class Reported(Frozen):
    """One thing that was reported.

    Attributes:
        kind: a score is in percent; a loss, and a gap between losses, is in what `unit` says.
        value: a number, or words where no number is printed.
        source: the table, section or issue that prints it.
    """

    kind: Kind
    what: str
    value: float | str
    unit: str = ""
    source: str

    @property
    def in_words(self) -> str:
        """65.3 %, 0.015 bits per byte, or the words that are printed."""
        return self.value if isinstance(self.value, str) else f"{round(self.value, 4):g} {self.unit}".strip()


def scores(source: str, values: Mapping[str, float]) -> tuple[Reported, ...]:
    """A row of a table of scores, in percent."""
    return tuple(Reported(kind="score", what=name, value=value, unit="%", source=source) for name, value in values.items())


def results_of(recipe: Recipe) -> dict[str, tuple[Reported, ...]]:
    """Phase → what was reported of it; nothing for a recipe that is no record."""
    match recipe.name:
        case "marin-8b":
            from phasewise.flows.recipes.marin.results_8b import RESULTS_8B

            found = RESULTS_8B
        case "marin-32b":
            from phasewise.flows.recipes.marin.results_32b import RESULTS_32B

            found = RESULTS_32B
        case "trinity-nano" | "trinity-mini" | "trinity-large":
            from phasewise.flows.recipes.trinity.results import RESULTS

            found = RESULTS[recipe.name]
        case _:
            found = {}
    return {phase.name: found[phase.name] for phase in recipe.phases if phase.name in found}
