"""Published tables: their own summaries are recomputed, and an evaluation joins the tables with its benchmarks and metrics."""

import json
from pathlib import Path

import pytest
import yaml

from phasewise.flows.cli.results import TABLES
from phasewise.flows.recipes import load_record
from tests.flows.commands import Run, assert_refused, read

PUBLISHED = {table["name"]: table for table in yaml.safe_load(TABLES.read_text(encoding="utf-8"))["tables"]}


def test_mean_ranks_and_averages_are_those_that_the_report_prints(phasewise: Run):
    found = {table["name"]: {row["model"]: row for row in table["rows"]} for table in read(phasewise("results --json"))["tables"]}
    assert set(found) == set(PUBLISHED)
    for name, table in PUBLISHED.items():
        for model, printed in table.get("printed", {}).items():
            row = found[name][model]
            assert {key: round(row[key], 1 if key == "average" else 2) for key in printed} == printed
        for phase in table.get("phases", {}).values():
            recipe, _, of_recipe = phase.partition("/")
            assert load_record(recipe, "full").phase(of_recipe)


def test_a_query_names_benchmark_and_model(phasewise: Run):
    (table, *_), named = (read(phasewise(f"results --json --benchmark {name}"))["tables"] for name in ("gsm8k", "niah"))
    assert list(table["benchmarks"]) == ["GSM8K"]
    assert named[0]["rows"][0]["scores"] == {"MK-NIAH 256K": 0.994, "MK-NIAH 512K": 0.976, "MK-NIAH 1M": 0.42}
    (of_phase,) = read(phasewise("results --json --model marin-32b/mantis"))["tables"]
    assert [(row["model"], round(row["mean_rank"], 2)) for row in of_phase["rows"]] == [("Marin 32B (Mantis)", 3.05)]
    assert_refused(phasewise("results --model nobody"), 2, "expected a published score with these names, found none")


@pytest.mark.parametrize(("value", "rank"), [(0.9, 1), (0.01, 7)])
def test_an_own_phase_is_ranked_where_benchmark_and_metric_agree(phasewise: Run, tmp_path: Path, value: float, rank: int):
    results = [{"benchmark": "boolq:10", "metric": "acc", "value": value}, {"benchmark": "boolq:0", "metric": "acc", "value": 1.0}]
    (tmp_path / "mine.json").write_text(json.dumps({"results": results}))
    (table,) = read(phasewise("results --json --own", tmp_path / "mine.json"))["tables"]
    assert list(table["benchmarks"]) == ["BoolQ"]
    assert table["rows"][-1]["mean_rank"] == rank
