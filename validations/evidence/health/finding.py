"""A row of the health table."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from phasewise.validations.evidence.health.phenomena import BY_GROUP, PHENOMENA

COLUMNS = (
    "measure",
    "phenomenon",
    "described_in",
    "value",
    "limit",
    "at_step",
    "is_measured",
    "has_required_numbers",
    "is_unjudged",
    "detail",
)
NOWHERE = -1


@dataclass(frozen=True)
class Finding:
    """What one measure found; `limit` is NaN where there is none."""

    measure: str
    value: float
    limit: float
    at_step: int
    detail: str
    is_measured: bool = True
    has_required_numbers: bool = True

    def row(self) -> dict[str, object]:
        """As a row of the table."""
        phenomenon = PHENOMENA[self.measure]
        return {
            "measure": str(self.measure),
            "phenomenon": phenomenon.name,
            "described_in": phenomenon.described_in,
            "value": float(self.value),
            "limit": float(self.limit),
            "at_step": self.at_step,
            "is_measured": self.is_measured,
            "has_required_numbers": self.has_required_numbers,
            "is_unjudged": not self.is_measured and not math.isnan(self.limit) and BY_GROUP not in self.measure,
            "detail": self.detail,
        }


def not_measured(measure: str, limit: float, missing: Sequence[str] = (), *, why: str = "", may_lack: bool = False) -> Finding:
    """A measure that could not be made: the rows lack numbers, or have too few. `may_lack`: not every run has them."""
    detail = f"no row holds {', '.join(missing)}" if missing else why
    has_required_numbers = may_lack or not missing
    return Finding(measure, math.nan, limit, NOWHERE, detail, is_measured=False, has_required_numbers=has_required_numbers)


def turned_off(measure: str) -> Finding:
    """A measure that the recipe does not ask for."""
    return Finding(measure, math.nan, math.nan, NOWHERE, "the recipe sets no limit, so it is not looked for", is_measured=False)


def absent_group(measure: str, group: str) -> Finding:
    """A measure of a group of weights that the model does not have."""
    return Finding(measure, math.nan, math.nan, NOWHERE, f"the model has no weights of the group {group}", is_measured=False)
