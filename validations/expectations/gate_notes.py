"""What a gate could see, in words: a sentence or two a benchmark, the same in the terminal, the artifact, the report and `evaluate`."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from phasewise.validations.evidence.proportions import POWER

Row = Mapping[str, Any]
IN_TEN = f"{10 * POWER:g} of 10 cases"


def gate_notes(tables: Mapping[str, pd.DataFrame], *, asks_floor: bool) -> tuple[str, ...]:
    """One note a benchmark: its score beside the parent's, the smallest effect that would be seen, and what is not asked; and one on how
    test items are read.

    Args:
        tables: `benchmarks`, `comparable`, `falls`, `rises`, `needles`, `answers` and `exposure` of a gate's evidence.
        asks_floor: whether the recipe asks that a benchmark is above its floor.
    """
    benchmarks, falls, rises = (_by_name(tables[name]) for name in ("benchmarks", "falls", "rises"))
    notes = tuple(
        _note(comparison, benchmarks[name], falls.get(name) or rises.get(name), (falls.get(name), rises.get(name)), asks_floor=asks_floor)
        for name, comparison in _by_name(tables["comparable"]).items()
    )
    return (*notes, *_needles(tables["needles"]), *_answers(tables["answers"]), *_exposure(tables["exposure"]))


def _note(comparison: Row, benchmark: Row, change: Row | None, asked: Sequence[Row | None], *, asks_floor: bool) -> str:
    score = f"{comparison['name']}: {benchmark['value']:.3f}"
    why_not = comparison["why_not"]
    if change is None:
        why = "; ".join(filter(None, (comparison["limited"], comparison["differs"]))) or why_not
        return f"{score}, not compared with a parent: {why}. {_floor(benchmark, asks_floor=asks_floor)}"
    difference = f"{change['difference']:+.3f} ({change['low']:+.3f} to {change['high']:+.3f})"
    beside = f"{score}, {difference} to {change['against']}'s {change['parent']:.3f} on the same {change['items']:,} items."
    seen = [_seen(what, row) for what, row in zip(("fall", "rise"), asked, strict=True)]
    return " ".join(filter(None, (beside, *seen, _spread(change), f"{(why_not[:1].upper() + why_not[1:])}." if why_not else "")))


def _seen(what: str, change: Row | None) -> str:
    """What is refused, and how large it must be to be seen."""
    if change is None:
        return ""
    smallest, limit = change["smallest_detectable"], change["limit"]
    allowed = f" (up to {limit:g} is allowed)" if limit else ""
    if math.isnan(smallest):
        return f"On so few items no {what} is seen in {IN_TEN}{allowed}."
    return f"A {what} of {smallest:.3f} is seen in {IN_TEN}{allowed}; a smaller one may pass."


def _spread(change: Row) -> str:
    if not change["spread"]:
        return ""
    return f"From one checkpoint to the next the difference moves by {change['spread']:.3f}, which is in the interval and the tests."


def _floor(benchmark: Row, *, asks_floor: bool) -> str:
    if not asks_floor:
        return "The recipe asks for no floor either: nothing is decided by this score."
    margin, baseline = benchmark["smallest_margin"], benchmark["baseline"]
    if math.isnan(margin):
        return f"The floor alone decides (baseline {baseline:.3f}), and on so few items only by the likelihood of the right answers."
    return (
        f"The floor alone decides: accuracy shows {margin:.3f} above the baseline of {baseline:.3f} in {IN_TEN}, and the likelihood of the "
        "right answers may show less."
    )


def _needles(table: pd.DataFrame) -> tuple[str, ...]:
    """One note a benchmark of needles."""
    notes: list[str] = []
    for row in table.to_dict("records"):
        score = f"{row['name']}: {row['value']:.3f}, where a guess has {row['baseline']:.3f}"
        if row["why_not"]:
            notes.append(f"{score}; not compared with a parent: {row['why_not']}.")
            continue
        difference = f"{row['difference']:+.3f} ({row['low']:+.3f} to {row['high']:+.3f})"
        notes.append(f"{score}; {difference} to {row['against']}'s {row['parent']:.3f} on the same {row['items']:,} items.")
    return tuple(notes)


def _answers(table: pd.DataFrame) -> tuple[str, ...]:
    """How likely held-out answers are beside the parent: one note, where answers are trained on. The first row is of all components."""
    if table.empty:
        return ()
    row = table.to_dict("records")[0]
    what = f"answers of held-out conversations: {row['nats_per_token']:.3f} nats a token"
    if not row["against"]:
        return (f"{what} on {row['conversations']:,} of them; there is no phase before it to compare with.",)
    change = f"{-row['gain_nats']:+.3f} ({-row['high']:+.3f} to {-row['low']:+.3f})"
    return (f"{what}, {change} to {row['against']}'s {row['parent_nats_per_token']:.3f} on the same {row['conversations']:,}.",)


def _exposure(table: pd.DataFrame) -> tuple[str, ...]:
    """How the test items are read beside unseen ones: one note, where that was asked."""
    if table.empty:
        return ()
    rows = table.to_dict("records")
    first = rows[0]
    measures = "; ".join(f"{row['measure']} {row['difference_nats']:+.2f} nats (p = {row['adjusted_p_value']:.2g})" for row in rows)
    alone = f" The parent is not compared with: {first['why_not']}." if first["why_not"] else ""
    return (f"{first['items']} test items beside {first['reference_items']} unseen ones, {first['since']}: {measures}.{alone}",)


def _by_name(table: pd.DataFrame) -> dict[str, dict[str, Any]]:
    rows: Sequence[dict[str, Any]] = table.to_dict("records")  # pyright: ignore[reportAssignmentType]  # the names are text
    return {str(row["name"]): row for row in rows}
