"""Evidence about a hand-off: what a phase declares to change against what it changes."""

from collections.abc import Mapping, Sequence

import pandas as pd

COLUMNS = ("name", "declared", "found", "before", "after", "status")
DECLARED_AND_FOUND, UNDECLARED, DECLARED_NOT_FOUND = "declared and found", "found undeclared", "declared not found"
FROM_SCRATCH, NO_CHANGE = "from scratch", "no change"
STATUSES = (DECLARED_AND_FOUND, UNDECLARED, DECLARED_NOT_FOUND, FROM_SCRATCH, NO_CHANGE)


def hand_off_evidence(declared: Sequence[str] | None, found: Mapping[str, tuple[str, str]]) -> pd.DataFrame:
    """One row a change, in the order of its name; one row that says so for a phase from scratch, and where nothing changes.

    Args:
        declared: names of the changes that the phase declares; None for a phase from scratch.
        found: name → before and after, in words, of what is changed.
    """
    if declared is None:
        return _one_row(FROM_SCRATCH, before="nothing", after="fresh weights")
    if not declared and not found:
        return _one_row(NO_CHANGE, before="the parent's", after="the parent's")
    rows = [_row(name, name in declared, found.get(name)) for name in sorted({*declared, *found})]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _row(name: str, is_declared: bool, change: tuple[str, str] | None) -> dict[str, object]:
    before, after = change or ("", "")
    status = UNDECLARED if not is_declared else DECLARED_AND_FOUND if change else DECLARED_NOT_FOUND
    return dict(zip(COLUMNS, (name, is_declared, change is not None, before, after, status), strict=True))


def _one_row(status: str, *, before: str, after: str) -> pd.DataFrame:
    return pd.DataFrame([(status, False, False, before, after, status)], columns=list(COLUMNS))
