import math

import pytest

from phasewise.flows.recipes import load_record
from phasewise.flows.recipes.phase import Phase
from phasewise.flows.show.describe import describe
from tests.flows.recipes.test_record_8b import (
    Described,
    assert_rates,
    nemotron,
    off_the_print,
    printed,
)


@pytest.fixture(scope="module")
def phases() -> dict[str, Described]:
    return {phase["name"]: phase for phase in describe("marin-32b", "full", None)["phases"]}


# parent, start, stop, tokens and tokens of the lineage in 10^12
MAIN_LINE: dict[str, tuple[str | None, int, int, str, str]] = {
    "phase-1": (None, 0, 80_000, "2.679", "2.679"),
    "qk-norm": ("phase-1", 80_000, 160_000, "2.684", "5.363"),
    "bison": ("qk-norm", 160_000, 192_000, "1.074", "6.437"),
    "mantis": ("qk-norm", 160_000, 192_000, "1.074", "6.437"),
}

COMMON_HIGH_QUALITY = ("arxiv_markdownified", "dolmino_pes2o", "finemath_3_plus", "flan", "dolmino_stackexchange", "stackexchange_custom")
PRETRAINING = {
    **nemotron("30.69", "24.70", "13.98", "8.30", "7.49", "6.37", "5.70"), "starcoderdata": "2.27", "proofpile_2": "0.50",
}  # fmt: skip
SEVENTY = {**nemotron("21.49", "17.29", "9.79", "5.81", "5.24", "4.46", "3.99"), "starcoderdata": "1.59", "proofpile_2": "0.35"}
BISON = {
    **SEVENTY,
    **dict(zip(COMMON_HIGH_QUALITY, ("7.41", "7.41", "4.33", "4.33", "2.18", "2.18"), strict=True)),
    "all_math_9d507c": "1.08", "dolmino_wiki": "0.47", "wikipedia_markdown": "0.47", "medu_science_qa": "0.15",
}  # fmt: skip
MANTIS = {
    **SEVENTY,
    **dict(zip(COMMON_HIGH_QUALITY, ("4.54", "4.54", "2.66", "2.66", "1.34", "1.34"), strict=True)),
    "megamath_web": "5.57", "megamath_text_code_block": "4.24", "megamath_web_pro": "1.27", "megamath_translated_code": "0.61",
    "megamath_qa": "0.59", "dolmino_wiki": "0.285", "wikipedia_markdown": "0.285", "medu_science_qa": "0.094",
}  # fmt: skip
MANTIS_WITH_PYTHON = {
    **SEVENTY,
    **dict(zip(COMMON_HIGH_QUALITY, ("4.37", "4.37", "2.56", "2.56", "1.29", "1.29"), strict=True)),
    "stackv2_edu_python": "1.10", "megamath_web": "5.36", "megamath_text_code_block": "4.09", "megamath_web_pro": "1.23",
    "megamath_translated_code": "0.585", "megamath_qa": "0.569", "dolmino_wiki": "0.275", "wikipedia_markdown": "0.275",
    "medu_science_qa": "0.090",
}  # fmt: skip
MIXTURES: dict[str, list[tuple[int, dict[str, str]]]] = {
    "phase-1": [(0, PRETRAINING)],
    "qk-norm": [(80_000, PRETRAINING)],
    "necromancy": [(80_000, PRETRAINING)],
    "muon": [(77_096, PRETRAINING)],
    "nadamw": [(77_096, PRETRAINING)],
    "bison": [(160_000, BISON)],
    "bison-flat": [(190_000, BISON)],
    "mantis": [(160_000, MANTIS), (174_000, MANTIS_WITH_PYTHON)],
}
EVERY = tuple(MIXTURES)
ADAM = {"beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.05}


def nadamw_rate(step: int) -> float:
    return 7e-5 + 0.5 * 6.3e-4 * (1 + math.cos(math.pi * (step - 10_000) / 990_000))


# 1 % of the nominal 1,000,000 steps is the warm-up; their last 40 % are never reached.
RATES: dict[str, list[tuple[int, float]]] = {
    "phase-1": [(0, 0.0), (1, 7e-8), (5_000, 3.5e-4), (9_999, 7e-4 - 7e-8), (10_000, 7e-4), (56_400, 7e-4), (79_999, 7e-4)],
    "necromancy": [(80_000, 7e-4), (80_500, 7e-4)],
    "muon": [(77_096, 2e-3), (79_000, 2e-3)],
    "nadamw": [(77_096, nadamw_rate(77_096)), (79_000, nadamw_rate(79_000))],
    "qk-norm": [(80_000, 7e-5), (80_250, 2.275e-4), (80_500, 3.85e-4), (81_000, 7e-4), (120_000, 7e-4), (159_999, 7e-4)],
    "bison": [(160_000, 7e-4), (168_000, 5.425e-4), (176_000, 3.85e-4), (190_000, 1.09375e-4), (191_999, 7e-5 + 6.3e-4 / 32_000)],
    "mantis": [(160_000, 7e-4), (174_000, 4.24375e-4), (176_000, 3.85e-4), (191_999, 7e-5 + 6.3e-4 / 32_000)],
    "bison-flat": [(190_000, 1.09375e-4), (191_000, 1.09375e-4)],
}


@pytest.mark.parametrize("name", MAIN_LINE)
def test_steps_and_tokens(phases: dict[str, Described], name: str):
    phase, (parent, start, stop, tokens, lineage_tokens) = phases[name], MAIN_LINE[name]
    assert (phase["start"]["parent"], phase["start"]["step"]) == (parent, start)
    assert (phase["start_step"], phase["stop_step"]) == (start, stop)
    assert phase["tokens"] == printed(tokens, 1e12)
    assert phase["lineage_tokens"] == printed(lineage_tokens, 1e12)


@pytest.mark.parametrize("name", MIXTURES)
def test_mixtures(phases: dict[str, Described], name: str):
    found = phases[name]["mixture"]
    assert [step for step, _ in found] == [step for step, _ in MIXTURES[name]]
    for (step, shares), (_, expected) in zip(found, MIXTURES[name], strict=True):
        assert not off_the_print(shares, expected), step


@pytest.mark.parametrize("name", RATES)
def test_learning_rates_by_hand(phases: dict[str, Described], name: str):
    assert_rates(f"marin-32b/{name}", [(step, rate) for step, rate in RATES[name] if step < phases[name]["stop_step"]])


# ── the branches of this project that ask what Bison's order does to sorted data ──

FULL = load_record("marin-32b", "full")


def settings(phase: Phase, *without: str) -> dict[str, object]:
    dumped = phase.model_dump(mode="json", exclude={"name", "branch", "notes", "discrepancies", "start", *without})
    return {name: value for name, value in dumped.items() if value is not None}
