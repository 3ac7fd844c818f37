"""What a recipe puts to people: which checks they may let pass though they failed, and whether they are asked about warnings."""

from collections.abc import Iterable

from pydantic import Field

from phasewise.trainer.base.frozen import Frozen


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
