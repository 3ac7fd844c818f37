"""The table as Markdown and as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.leakage_recall.measure import AlarmRow, Miss, RecallRow, Share

MAX_SHOWN_CHARACTERS = 400


@dataclass(frozen=True)
class Table:
    recall: Sequence[RecallRow]
    alarms: Sequence[AlarmRow]

    @property
    def failures(self) -> list[str]:
        return [row.name for row in [*self.recall, *self.alarms] if not row.passes]

    def row(self, name: str) -> RecallRow:
        return next(row for row in self.recall if row.name == name)


def as_markdown(table: Table, misses: int = 0) -> str:
    lines = ["| format | items | found | 95 % interval | target | | other items |", "|---|---|---|---|---|---|---|"]
    lines += [_recall_line(row) for row in table.recall]
    lines += [
        "",
        "| text without test items | documents | flagged | rate | 95 % interval | at most | | verbatim twins |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [_alarm_line(row) for row in table.alarms]
    lines += [line for row in table.recall if not row.passes for line in ("", f"**{row.name}** by benchmark: {_by_benchmark(row)}")]
    lines += [
        line
        for row in table.recall
        if row.misses and misses
        for line in ("", f"Missed in **{row.name}**:", *map(_miss, row.misses[:misses]))
    ]
    for row in (row for row in table.alarms if row.alarms):
        lines += ["", f"Flagged in **{row.name}**:"]
        lines += [
            f"* {alarm.document}: {_name(alarm.item)}, {alarm.twin or 'not there'}; {_shown(alarm.why)}" for alarm in row.alarms[:100]
        ]
    return "\n".join([*lines, "", f"{len(table.failures)} rows fail: {'; '.join(table.failures)}" if table.failures else "All rows pass."])


def mutation_lines(rows: Sequence[tuple[str, RecallRow, RecallRow]]) -> str:
    lines = ["| without the | row | with it | without it | target | |", "|---|---|---|---|---|---|"]
    for part, whole, broken in rows:
        target = "–" if whole.target is None else f"{whole.target:.0%}"
        falls = "falls" if whole.passes and not broken.passes else "**does not fall**" if whole.passes else "**fails with it**"
        lines.append(f"| {part} | {whole.name} | {whole.recall.value:.1%} | {broken.recall.value:.1%} | {target} | {falls} |")
    return "\n".join(lines)


def as_json(table: Table) -> dict[str, object]:
    recall = [
        {"format": row.name, "kind": row.kind, "items": row.recall.of, "found": row.recall.count, "interval": row.recall.interval}
        | {"target": row.target, "passes": row.passes, "others": row.others, "misses": [[*miss.item, miss.planted] for miss in row.misses]}
        for row in table.recall
    ]
    alarms = [
        {"corpus": row.name, "documents": row.documents, "flagged": row.rate.count, "twins": row.twins, "interval": row.rate.interval}
        | {"max_rate": row.max_rate, "passes": row.passes, "alarms": [[a.document, *a.item, a.why, a.twin] for a in row.alarms]}
        for row in table.alarms
    ]
    return {"recall": recall, "alarms": alarms, "failures": table.failures}


def _recall_line(row: RecallRow) -> str:
    target = "–" if row.target is None else f"{row.target:.0%}"
    verdict = "" if row.target is None else _verdict(row.passes)
    return f"| {row.name} | {row.recall.of} | {row.recall.value:.1%} | {_interval(row.recall, 1)} | {target} | {verdict} | {row.others} |"


def _alarm_line(row: AlarmRow) -> str:
    counted = f"{row.documents} | {row.rate.count} | {row.rate.value:.3%} | {_interval(row.rate, 3)}"
    return f"| {row.name} | {counted} | {'–' if row.max_rate is None else f'{row.max_rate:.2%}'} | {_verdict(row.passes)} | {row.twins} |"


def _interval(share: Share, digits: int) -> str:
    low, high = share.interval
    return f"{100 * low:.{digits}f}–{100 * high:.{digits}f}"


def _verdict(passes: bool) -> str:
    return "pass" if passes else "**FAIL**"


def _by_benchmark(row: RecallRow) -> str:
    return ", ".join(f"{name} {share.count}/{share.of}" for name, share in row.by_benchmark.items() if share.count < share.of)


def _miss(miss: Miss) -> str:
    return f"* {_name(miss.item)}: {_shown(miss.planted)}"


def _name(item: tuple[str, str]) -> str:
    return f"{item[0]} {item[1]}"


def _shown(text: str) -> str:
    return repr(text[:MAX_SHOWN_CHARACTERS])
