"""What the record reported, typed from its tables: scores, gaps and ranks, and where they appear."""

from statistics import fmean

import pytest
from click.testing import CliRunner

from phasewise.flows import cli
from phasewise.flows.recipes import load_record
from phasewise.flows.recipes.marin.results_32b import BASE_MODELS, BENCHMARKS, PRINTED_AVERAGES, PRINTED_RANKS
from phasewise.flows.recipes.ranking import ranks_of
from phasewise.flows.recipes.reported import Reported, results_of
from phasewise.flows.recipes.trinity.results import RESULTS
from phasewise.flows.summary import reported_by_the_record


def value(recipe: str, phase: str, what: str) -> float | str:
    (found,) = [one.value for one in results_of(load_record(recipe, "full"))[phase] if one.what == what]
    return found


@pytest.mark.parametrize("model", PRINTED_RANKS)
def test_the_retrospective_s_ranks_come_from_its_table(model: str):
    ranked = ranks_of(BASE_MODELS)[model]
    assert (round(ranked.mean_rank, 2), round(ranked.mean_reciprocal_rank, 2)) == PRINTED_RANKS[model]
    assert fmean(BASE_MODELS[model].values()) == pytest.approx(PRINTED_AVERAGES[model], abs=0.051)


def test_mantis_has_the_best_mean_rank():
    assert PRINTED_RANKS["Marin 32B (Mantis)"] == (3.05, 0.44)
    assert min(PRINTED_RANKS, key=lambda model: PRINTED_RANKS[model][0]) == "Marin 32B (Mantis)"
    assert len(BENCHMARKS) == 19


def test_equal_scores_share_the_smaller_rank():
    ranked = ranks_of({"a": {"x": 2.0}, "b": {"x": 2.0}, "c": {"x": 1.0}})
    assert (ranked["a"].mean_rank, ranked["b"].mean_rank, ranked["c"].mean_rank) == (1, 1, 3)
    assert ranked["c"].mean_reciprocal_rank == pytest.approx(1 / 3)


def test_models_on_other_benchmarks_are_refused():
    with pytest.raises(ValueError, match="the same benchmarks"):
        ranks_of({"a": {"x": 2.0}, "b": {"y": 2.0}})


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


@pytest.mark.parametrize("recipe", ["marin-8b", "marin-32b"])
def test_results_are_of_phases_that_exist_and_have_sources(recipe: str):
    from phasewise.flows.recipes.marin.results_8b import RESULTS_8B
    from phasewise.flows.recipes.marin.results_32b import RESULTS_32B

    record = load_record(recipe, "full")
    written: dict[str, tuple[Reported, ...]] = {"marin-8b": RESULTS_8B, "marin-32b": RESULTS_32B}[recipe]
    assert set(written) == set(results_of(record)) <= {phase.name for phase in record.phases}
    assert {phase.name for phase in record.main_line} <= set(written)
    assert all(one.source.strip() and one.what.strip() for rows in written.values() for one in rows)


def test_trinity_s_results_are_of_phases_that_exist():
    assert {name: set(rows) for name, rows in RESULTS.items()} == {
        "trinity-nano": {"phase-1"},
        "trinity-mini": {"phase-1"},
        "trinity-large": {"phase-1", "phase-3", "context-extension", "first-runs"},
    }
    for name, rows in RESULTS.items():
        assert results_of(load_record(name, "full")) == rows
    assert value("trinity-large", "context-extension", "GPQA Diamond (5-shot)") == 43.94


def test_the_report_has_all_of_them_at_full_scale_and_scores_and_losses_at_proxy_scale():
    found = reported_by_the_record(load_record("marin-8b", "full"), "deeper-starling")
    assert ("average", "66.6 %", "Marin paper, table 4") in {(one.what, one.value, one.source) for one in found}
    assert any(not one.is_measure for one in found)
    smaller = reported_by_the_record(load_record("marin-8b", "proxy"), "deeper-starling")
    assert smaller == tuple(one for one in found if one.is_measure) != ()


def test_show_prints_them():
    result = CliRunner().invoke(cli.main, ["show", "marin-32b/mantis", "--results", "--scale", "full"])
    assert result.exit_code == 0
    shown = " ".join(result.stdout.split())
    assert all(words in shown for words in ("mean rank among six models 3.05", "MMLU 74.7 %", "Base Model Results"))
    assert value("marin-32b", "mantis", "average") == 65.2
