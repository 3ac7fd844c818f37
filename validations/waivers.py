"""Exceptions of a recipe: warnings that it accepts, checks that a person may let pass, and whether a person decides on warnings."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import Field

from phasewise.trainer.base.frozen import Frozen

Cell = bool | int | float | str


class AcceptedWarning(Frozen):
    """A warning that the recipe expects, for the table rows that match its cells."""

    table: str
    check: str  # name of the check in verdicts, such as `expect_order_to_mix`
    where: dict[str, Cell] = Field(min_length=1)  # column → cell. The check defines the columns to name
    phases: tuple[str, ...] | None = Field(min_length=1)  # None is every phase
    reason: str = Field(pattern=r"\S")
    source: str = Field(pattern=r"\S")

    @property
    def words(self) -> str:
        """The finding as text, such as `expect_order_to_mix where permutation = linear`."""
        return f"{self.check} where {' and '.join(f'{column} = {cell}' for column, cell in self.where.items())}"

    def covers(self, row: Mapping[str, Any]) -> bool:
        """Return whether the cells of a row match `where`."""
        return all(column in row and bool(row[column] == cell) for column, cell in self.where.items())


class ApprovableCheck(Frozen):
    """A check whose failure a person may let pass. A new failure needs a new approval."""

    table: str
    check: str  # name of the check in verdicts, such as `expect_no_fall_below_the_parent`
    phases: tuple[str, ...] | None = Field(default=None, min_length=1)  # None is every phase


class AsksPeople(Frozen):
    """Decisions of a verdict that a person makes."""

    approvable: tuple[ApprovableCheck, ...] = ()
    on_warnings: bool = False  # a person decides on a verdict with warnings. If False, warnings are only shown


NOBODY = AsksPeople()


def accepted_in(phase: str, accepts: Iterable[AcceptedWarning]) -> tuple[AcceptedWarning, ...]:
    """Select the warnings of one phase."""
    return tuple(warning for warning in accepts if warning.phases is None or phase in warning.phases)


def expected(accepts: Iterable[AcceptedWarning]) -> list[dict[str, Any]]:
    """Return the warnings as JSON without their phases: other phases do not change the verdict of this phase."""
    return [warning.model_dump(mode="json", exclude={"phases"}) for warning in accepts]
