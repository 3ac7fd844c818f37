"""What a phase's gate measured, beside its parent: values from its evaluation, the comparison from the tables that the gate judged."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phasewise.flows.record import PhaseRecord
from phasewise.tasks.report.contents import MeasuredReport
from phasewise.trainer.base.wording import plural
from phasewise.validations.evidence.evaluation import MACRO

COMPARISONS = ("falls", "rises")
"""Tables of a gate with a row for each benchmark that was measured alike in both. The difference is the same in both tables."""
NOT_ALIKE = "measured otherwise than its parent"

Row = Mapping[str, Any]


def measured_of(record: PhaseRecord, folder: Path) -> tuple[MeasuredReport, ...]:
    """A row a benchmark, and one for macro bits per byte; none where the phase is not evaluated.

    Args:
        folder: of the evidence tables of the phase's gate. They count where its verdict holds, and where they have the evaluation's values.
    """
    evaluation = record.evaluation
    if evaluation is None:
        return ()
    has_parent = record.phase.parent is not None
    tables = _Tables(folder) if record.model_verdict else None
    benchmarks = tuple(_benchmark(result, tables, has_parent=has_parent) for result in evaluation.get("results", []))
    return (*benchmarks, *([_macro(evaluation, tables, has_parent=has_parent)] if "macro_bits_per_byte" in evaluation else []))


class _Tables:
    """The evidence of a gate: rows by name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.benchmarks, self.bits_per_byte = self._rows("benchmarks"), self._rows("bits_per_byte")
        self.needles = self._rows("needles")
        rows = [self._rows(name) for name in reversed(COMPARISONS)]
        self.compared = {name: row for table in rows for name, row in table.items()}
        self.comparable = self._rows("comparable")

    def _rows(self, name: str) -> dict[str, Row]:
        path = self._folder / f"{name}.parquet"
        if not path.exists():
            return {}
        import pandas as pd  # `phasewise show` does without

        rows: list[dict[Any, Any]] = pd.read_parquet(path).to_dict("records")
        return {str(row["name"]): row for row in rows}


def _benchmark(result: Row, tables: _Tables | None, *, has_parent: bool) -> MeasuredReport:
    what = f"{result['benchmark']} {result['metric']}"
    value = float(result["value"])
    found = MeasuredReport(
        what=what, higher_is_better=True, value=value, stderr=_known(result.get("stderr")), floor=_known(result.get("baseline"))
    )
    if tables and has_parent and (needle := tables.needles.get(what)) and needle["value"] == value:
        return _but(found, **({"not_compared": str(needle["why_not"])} if needle["why_not"] else _against(value, needle)))
    row = tables.benchmarks.get(what) if tables else None
    if tables is None or row is None or not has_parent or row["value"] != value:
        return found
    compared = tables.compared.get(what)
    if compared is None:
        said = tables.comparable.get(what, {})
        return _but(found, not_compared=str(said.get("differs") or said.get("why_not") or NOT_ALIKE))
    return _but(found, **_against(value, compared))


def _macro(evaluation: Row, tables: _Tables | None, *, has_parent: bool) -> MeasuredReport:
    """Where the parent was measured on other components as well, both means are over those that both have."""
    value = float(evaluation["macro_bits_per_byte"])
    row = tables.bits_per_byte.get(MACRO) if tables else None
    if row is None or not has_parent or _known(row["parent"]) is None:
        return MeasuredReport(what=MACRO, higher_is_better=False, value=value)
    components = evaluation["bits_per_byte"]
    shared = [name for name in str(row["components"]).split(", ") if name in components]
    expected = sum(components[name] for name in shared) / len(shared) if shared else math.nan
    if not math.isclose(expected, row["value"], rel_tol=1e-9):  # a table of another evaluation
        return MeasuredReport(what=MACRO, higher_is_better=False, value=value)
    only = f", of the {plural(len(shared), 'component')} that its parent was measured on"
    what = MACRO if len(shared) == len(components) else f"{MACRO}{only}"
    return _but(MeasuredReport(what=what, higher_is_better=False, value=expected), **_against(expected, row))


def _against(value: float, row: Row) -> dict[str, Any]:
    """Parent, difference, interval and smallest effect, as far as a table has them."""
    parent = _known(row.get("parent"))
    difference = _known(row.get("difference"))
    if difference is None and parent is not None:
        difference = value - parent
    low, high = (_known(row.get(end)) for end in ("low", "high"))
    smallest = _known(row.get("smallest_detectable"))
    interval = (low, high) if low is not None and high is not None else None
    return {"parent": parent, "difference": difference, "interval": interval, "smallest_effect": smallest}


def _but(found: MeasuredReport, **fields: Any) -> MeasuredReport:
    return MeasuredReport.model_validate({**dict(found), **fields})


def _known(value: Any) -> float | None:
    """A number of a table; None where it has none."""
    return None if value is None or value != value else float(value)
