"""What the record reported, typed from its tables: scores, gaps and ranks, and where they appear."""

from pathlib import Path
from statistics import fmean

import pytest
import yaml
from click.testing import CliRunner

from phasewise.flows.cli import main
from phasewise.flows.recipes import NAMES, facts, load_record
from phasewise.flows.recipes.facts import results_of
from phasewise.flows.status.summary import reported_by_the_record


def value(recipe: str, phase: str, what: str) -> float | str:
    (found,) = [one.value for one in results_of(load_record(recipe, "full"))[phase] if one.what == what]
    return found


@pytest.mark.parametrize(
    ("recipe", "phase", "what", "expected"),
    [
        ("marin-8b", "jellyfish", "MMLU (5-shot)", 65.3),
        ("marin-8b", "jellyfish", "IFEval (prompt-level loose)", 9.2),
        ("marin-8b", "ocelot", "EMA gap on Paloma's c4_en", 0.015),
        ("marin-8b", "phoenix", "EMA gap on Paloma's c4_en", 0.017),
        ("marin-8b", "starling", "GSM8K", 67.854),
        ("marin-8b", "deeper-starling", "average", 66.6),
        ("marin-8b", "sft", "IFEval", 78.3),
        ("marin-8b", "dessert-v3", "GSM8K", 61.1),
        ("marin-32b", "phase-1", "steps in or after a spike, of 2,500", 130),
        ("marin-32b", "bison", "GSM8K", 54.71),
        ("marin-32b", "mantis", "GSM8K", 69.1),
        ("marin-32b", "mantis", "mean reciprocal rank", 0.44),
        ("marin-32b", "necromancy", "training loss where it settled", 1.975),
    ],
)
def test_a_printed_figure(recipe: str, phase: str, what: str, expected: float):
    found = [one for one in results_of(load_record(recipe, "full"))[phase] if one.what == what and not isinstance(one.value, str)]
    assert [one.value for one in found] == [expected]


def test_every_phase_of_a_main_line_has_results():
    for recipe in ("marin-8b", "marin-32b"):
        record = load_record(recipe, "full")
        assert {phase.name for phase in record.main_line} <= set(results_of(record))
    found = {name: set(results_of(load_record(name, "full"))) for name in NAMES if name.startswith("trinity")}
    assert found == {
        "trinity-nano": {"phase-1"},
        "trinity-mini": {"phase-1"},
        "trinity-large": {"phase-1", "phase-3", "context-extension", "first-runs"},
    }
    assert value("trinity-large", "context-extension", "GPQA Diamond (5-shot)") == 43.94


def test_the_printed_ranks_and_averages_follow_from_the_printed_table():
    """Mean rank and mean reciprocal rank over 19 benchmarks; equal scores share the smaller rank."""
    rows = yaml.safe_load((Path(facts.__file__).parent / "marin" / "marin_32b.yaml").read_text(encoding="utf-8"))["base_models"]
    assert (len(rows), {len(row["scores"]) for row in rows}) == (6, {19})
    for row in rows:
        ranks = [1 + sum(other["scores"][name] > score for other in rows) for name, score in row["scores"].items()]
        assert round(fmean(ranks), 2) == row["mean_rank"]
        assert round(fmean(1 / rank for rank in ranks), 2) == row["mean_reciprocal_rank"]
        assert fmean(row["scores"].values()) == pytest.approx(row["average"], abs=0.051)


def test_the_report_has_all_of_them_at_full_scale_and_scores_and_losses_at_proxy_scale():
    found = reported_by_the_record(load_record("marin-8b", "full"), "deeper-starling")
    assert ("average", "66.6 %", "Marin paper, table 4") in {(one.what, one.value, one.source) for one in found}
    assert any(not one.is_measure for one in found)
    smaller = reported_by_the_record(load_record("marin-8b", "proxy"), "deeper-starling")
    assert smaller == tuple(one for one in found if one.is_measure) != ()


def test_show_prints_them():
    result = CliRunner().invoke(main.main, ["show", "marin-32b/mantis", "--results", "--scale", "full"])
    assert result.exit_code == 0
    shown = " ".join(result.stdout.split())
    assert all(words in shown for words in ("mean rank among six models 3.05", "MMLU 74.7 %", "Base Model Results"))
    assert value("marin-32b", "mantis", "average") == 65.2
