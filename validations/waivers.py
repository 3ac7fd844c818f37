"""What a recipe puts to people: which checks they may let pass though they failed, and whether they are asked about warnings."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import Field

from phasewise.trainer.base.frozen import Frozen

Cell = bool | int | float | str


class AcceptedWarning(Frozen):
    """A warning that is expected, and on which rows of its table.

    It covers the rows whose cells are as `where` says, and no others: another value warns as before.

    Attributes:
        table: the evidence table that the check judges.
        check: its name, as verdicts have it, such as `expect_order_to_mix`.
        where: column → cell. Which columns it must name is the check's to say.
        phases: where it is expected; None is every phase.
        reason: why it is, in a sentence.
        source: where the record says so.
    """

    table: str
    check: str
    where: dict[str, Cell] = Field(min_length=1)
    phases: tuple[str, ...] | None = Field(min_length=1)
    reason: str = Field(pattern=r"\S")
    source: str = Field(pattern=r"\S")

    @property
    def finding(self) -> tuple[str, str, dict[str, Cell]]:
        """What it covers, without the reason."""
        return self.table, self.check, self.where

    @property
    def words(self) -> str:
        """What it covers, for people: `expect_order_to_mix where permutation = linear`."""
        return f"{self.check} where {' and '.join(f'{column} = {cell}' for column, cell in self.where.items())}"

    def covers(self, row: Mapping[str, Any]) -> bool:
        """Whether the cells of a row are as `where` says."""
        return all(column in row and bool(row[column] == cell) for column, cell in self.where.items())


def accepted_in(phase: str, accepts: Iterable[AcceptedWarning]) -> tuple[AcceptedWarning, ...]:
    """What is expected in a phase."""
    return tuple(one for one in accepts if one.phases is None or phase in one.phases)


def expected(accepts: Iterable[AcceptedWarning]) -> list[dict[str, Any]]:
    """What is expected and why, as JSON; in which other phases, too, is no matter of this one."""
    return [one.model_dump(mode="json", exclude={"phases"}) for one in accepts]


class ApprovableCheck(Frozen):
    """A check whose failure a person may let pass, each time it fails, for what was found that time and nothing else.

    Attributes:
        table: the evidence table that the check judges.
        check: its name, as verdicts have it, such as `expect_no_fall_below_the_parent`.
        phases: where it may be let pass; None is every phase.
    """

    table: str
    check: str
    phases: tuple[str, ...] | None = Field(default=None, min_length=1)


class AsksPeople(Frozen):
    """What a verdict puts to people.

    Attributes:
        approvable: the checks whose failure a person may let pass.
        on_warnings: a person is asked about a verdict that warns; else it passes, and the warning is shown.
    """

    approvable: tuple[ApprovableCheck, ...] = ()
    on_warnings: bool = False


NOBODY = AsksPeople()


def asked_in(phase: str, approvable: Iterable[ApprovableCheck], *, on_warnings: bool) -> AsksPeople:
    """What is put to people in a phase."""
    listed = tuple(one for one in approvable if one.phases is None or phase in one.phases)
    return AsksPeople(approvable=listed, on_warnings=on_warnings)
