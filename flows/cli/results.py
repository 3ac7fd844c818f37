"""`phasewise results`: scores in published reports, of this project's recipes and of other models, with ranks."""

from pathlib import Path
from typing import Any

import rich.box
from rich.console import Console
from rich.table import Table

from phasewise.flows.cli.terminal import print_table
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.storage import read_json, read_yaml

TABLES = Path(__file__).parents[1] / "recipes" / "published.yaml"


def find_results(benchmark: str | None, model: str | None, own: str | None) -> dict[str, Any]:
    """The published tables in the shape of `--json`. Scores of each table are ranked over all its models, the best score is 1.

    Equal scores have the same rank, which is the best of them: the published mean ranks follow this rule. `benchmark` and `model` are parts
    of names. `own`: output of `phasewise evaluate --json`, whose scores join the tables with the same benchmark, shots and metric. The
    ranks of such a table are over the shared benchmarks. Raises ConfigError if nothing matches.
    """
    evaluated = {f"{one['benchmark']} {one['metric']}": 100 * one["value"] for one in read_json(Path(own))["results"]} if own else {}
    found: list[dict[str, Any]] = []
    for table in read_yaml(TABLES)["tables"]:
        labels: dict[str, str | None] = table["benchmarks"]
        scores = {name: dict(zip(labels, values, strict=True)) for name, values in table["models"].items()}
        columns = [column for column in labels if benchmark is None or benchmark.lower() in f"{column} {labels[column] or ''}".lower()]
        if own:
            columns = [column for column in columns if labels[column] in evaluated]
            scores[own] = {column: evaluated[str(labels[column])] for column in columns}
        if not columns:
            continue
        rows: list[dict[str, Any]] = []
        for name, of_model in scores.items():
            ranks = [1 + sum(other[column] > of_model[column] for other in scores.values()) for column in columns]
            rows.append({
                "model": name, "phase": table.get("phases", {}).get(name), "scores": {column: of_model[column] for column in columns},
                "average": sum(of_model[column] for column in columns) / len(columns), "mean_rank": sum(ranks) / len(ranks),
                "mean_reciprocal_rank": sum(1 / rank for rank in ranks) / len(ranks),
            })  # fmt: skip
        if rows := [row for row in rows if model is None or model.lower() in f"{row['model']} {row['phase'] or ''}".lower()]:
            head = {"name": table["name"], "source": table["source"], "unit": table.get("unit", "percent")}
            found.append({**head, "benchmarks": {column: labels[column] for column in columns}, "rows": rows})
    if not found:
        raise ConfigError("results: expected a published score with these names, found none. Without options, all tables are printed.")
    return {"tables": found}


def print_results(found: dict[str, Any]) -> None:
    """Print each table with a line per model, the best mean rank first."""
    console = Console(highlight=False)
    for one in found["tables"]:
        console.print(f"[bold]{one['name']}[/bold] ({one['source']}; {one['unit']})", markup=True)
        table = Table(box=rich.box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
        table.add_column("model")
        for column in (*one["benchmarks"], "average", "mean rank", "reciprocal"):
            table.add_column(column, justify="right")
        for row in sorted(one["rows"], key=lambda row: row["mean_rank"]):
            values = (*row["scores"].values(), row["average"], row["mean_rank"], row["mean_reciprocal_rank"])
            table.add_row(row["model"], *(f"{value:.4g}" for value in values))
        print_table(console, table)
