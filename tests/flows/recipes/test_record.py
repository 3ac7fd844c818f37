"""Marin 8B and 32B, typed from the record's tables: steps, tokens, batches, mixtures and rates.

A printed number stands for all that rounds to it: "92.57" is anything within 0.005 of it.
"""

import math
from collections.abc import Mapping
from typing import Any

import pytest

from phasewise.flows.show.describe import describe
from phasewise.trainer.config import DataOrder
from phasewise.trainer.data.mixture import block_counts

Described = dict[str, Any]
RECIPES = ("marin-8b", "marin-32b")
BLOCK = 2048
FLOORED = DataOrder(seed=0, permutation="linear", block_sequences=BLOCK, rounding="floor")


def printed(text: str, scale: float = 1.0) -> Any:
    decimals = len(text.partition(".")[2])
    return pytest.approx(float(text) * scale, rel=0, abs=scale * (0.5 * 10**-decimals + 1e-9))


def off_the_print(found: Mapping[str, float], expected: Mapping[str, str]) -> dict[str, tuple[float | None, str | None]]:
    names = sorted({*found, *expected})
    return {
        name: (found.get(name), expected.get(name))
        for name in names
        if name not in found or name not in expected or found[name] != printed(expected[name])
    }


@pytest.fixture(scope="module")
def phases() -> dict[str, Described]:
    return {phase["name"]: {**phase, "recipe": recipe} for recipe in RECIPES for phase in describe(recipe, "full", None)["phases"]}


# parent, start, stop, tokens and tokens of the lineage in 10^12
MAIN_LINES: dict[str, tuple[str | None, int, int, str, str]] = {
    "kestrel": (None, 0, 660_000, "2.768", "2.768"),
    "ocelot": ("kestrel", 660_000, 740_500, "1.013", "3.781"),
    "jellyfish": ("ocelot", 740_500, 820_000, "1.000", "4.781"),
    "phoenix": ("jellyfish", 820_000, 1_320_000, "6.291", "11.073"),
    "starling": ("phoenix", 1_320_000, 1_400_000, "1.342", "12.415"),
    "deeper-starling": ("starling", 1_400_000, 1_420_000, "0.336", "12.751"),
    "phase-1": (None, 0, 80_000, "2.679", "2.679"),
    "qk-norm": ("phase-1", 80_000, 160_000, "2.684", "5.363"),
    "bison": ("qk-norm", 160_000, 192_000, "1.074", "6.437"),
    "mantis": ("qk-norm", 160_000, 192_000, "1.074", "6.437"),
}
NEMOTRON_PARTS = ("medium", "hq_synth", "medium_low", "hq_actual", "medium_high", "low_actual", "low_synth")


def nemotron(*percents: str) -> dict[str, str]:
    return {f"nemotron_{part}": percent for part, percent in zip(NEMOTRON_PARTS, percents, strict=True)}


DCLM = {"dclm_baseline": "92.57", "starcoderdata": "6.09", "proofpile_2": "1.34"}
STARLING = {
    **nemotron("22.10", "17.78", "10.07", "5.97", "5.39", "4.58", "4.10"),
    "starcoderdata": "4.47", "proofpile_2": "4.47", "arxiv_markdownified": "5.20", "dolmino_pes2o": "5.20", "flan": "3.04",
    "finemath_3_plus": "3.04", "dolmino_stackexchange": "1.53", "stackexchange_custom": "1.53", "all_math": "0.755",
    "dolmino_wiki": "0.327", "wikipedia_markdown": "0.327", "medu_science_qa": "0.107",
}  # fmt: skip
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
# Three shares that the record's table rounds twice, and so prints one unit higher than its own weights make them: arXiv in Jellyfish
# (5.18 for 30 × 27.9 / 161.75 = 5.1747), DCLM in Phoenix's bridge (25.66 for 380 / 14.812 = 25.6546), Nemotron's medium_low after it
# (14.06 for 154 / 10.957 = 14.0547). The weights decide.
MIXTURES: dict[str, list[tuple[int, dict[str, str]]]] = {
    "kestrel": [(0, DCLM)],
    "ocelot": [(660_000, DCLM)],
    "jellyfish": [
        (740_500, {
            "dolmino_dclm": "67.77", "starcoderdata": "2.23", "dolma_pes2o": "10.78", "finemath_3_plus": "6.31", "dolma_arxiv": "5.17",
            "dolma_stackexchange": "3.17", "algebraic_stack": "2.13", "open_web_math": "0.94", "megawika": "0.82", "dolma_wiki": "0.68",
        }),
    ],
    "phoenix": [
        (820_000, {
            "dclm_baseline": "25.65", "proofpile_2": "0.37", "starcoderdata": "1.69",
            **nemotron("22.82", "18.36", "10.40", "6.17", "5.57", "4.73", "4.24"),
        }),
        (822_000, {**nemotron("30.85", "24.82", "14.05", "8.34", "7.53", "6.40", "5.73"), "starcoderdata": "2.28"}),
    ],
    "starling": [(1_320_000, STARLING)],
    "deeper-starling": [(1_400_000, STARLING)],
    "phase-1": [(0, PRETRAINING)],
    "qk-norm": [(80_000, PRETRAINING)],
    "necromancy": [(80_000, PRETRAINING)],
    "muon": [(77_096, PRETRAINING)],
    "nadamw": [(77_096, PRETRAINING)],
    "bison": [(160_000, BISON)],
    "bison-flat": [(190_000, BISON)],
    "mantis": [(160_000, MANTIS), (174_000, MANTIS_WITH_PYTHON)],
}  # fmt: skip
# The larger batch of 8B begins one step after the phase.
BATCHES = {
    "phase-1": [[0, 8192], [18_500, 7680], [21_010, 8192]],
    "mantis": [[160_000, 8192]],
    "kestrel": [[0, 1024]],
    "ocelot": [[660_000, 1024], [660_001, 3072]],
    "jellyfish": [[740_500, 3072]],
    "phoenix": [[820_000, 3072]],
    "starling": [[1_320_000, 3072], [1_320_001, 4096]],
    "deeper-starling": [[1_400_000, 4096]],
}


def nadamw_rate(step: int) -> float:
    return 7e-5 + 0.5 * 6.3e-4 * (1 + math.cos(math.pi * (step - 10_000) / 990_000))


# 32B: 1 % of the nominal 1,000,000 steps is the warm-up; their last 40 % are never reached.
# Inverse decay: 1 / rate goes in a straight line from 1,000 to 10,000 over 1,000 steps.
RATES: dict[str, list[tuple[int, float]]] = {
    "kestrel": [
        (0, 0.0), (500, 5e-4), (1_000, 1e-3), (8_999, 1e-3), (9_000, 1e-3), (9_250, 1 / 3_250), (9_500, 1 / 5_500), (9_750, 1 / 7_750),
        (9_999, 1 / 9_991), (10_000, 1e-3), (19_500, 1 / 5_500), (20_000, 1e-3), (199_500, 1 / 5_500), (210_000, 1e-3),
        (219_500, 1 / 5_500), (389_750, 1 / 7_750), (390_000, 1e-3), (659_000, 1e-3), (659_999, 1 / 9_991),
    ],
    "ocelot": [(660_000, 1.7e-3), (660_001, 1.7e-3), (700_000, 1.7e-3), (740_499, 1.7e-3)],
    "jellyfish": [(740_500, 1.7e-3), (740_501, 1.7e-3 - 1.53e-3 / 79_500), (780_250, 9.35e-4), (819_999, 1.7e-4 + 1.53e-3 / 79_500)],
    "phoenix": [(820_000, 1.7e-4), (820_500, 5.525e-4), (821_000, 9.35e-4), (822_000, 1.7e-3), (1_000_000, 1.7e-3), (1_319_999, 1.7e-3)],
    "starling": [(1_320_000, 1.7e-3), (1_340_000, 1.27925e-3), (1_360_000, 8.585e-4), (1_399_999, 1.7e-5 + 1.683e-3 / 80_000)],
    "deeper-starling": [(1_400_000, 1.7e-5), (1_410_000, 1.7e-5), (1_419_999, 1.7e-5)],
    "phase-1": [(0, 0.0), (1, 7e-8), (5_000, 3.5e-4), (9_999, 7e-4 - 7e-8), (10_000, 7e-4), (56_400, 7e-4), (79_999, 7e-4)],
    "necromancy": [(80_000, 7e-4), (80_500, 7e-4)],
    "muon": [(77_096, 2e-3), (79_000, 2e-3)],
    "nadamw": [(77_096, nadamw_rate(77_096)), (79_000, nadamw_rate(79_000))],
    "qk-norm": [(80_000, 7e-5), (80_250, 2.275e-4), (80_500, 3.85e-4), (81_000, 7e-4), (120_000, 7e-4), (159_999, 7e-4)],
    "bison": [(160_000, 7e-4), (168_000, 5.425e-4), (176_000, 3.85e-4), (190_000, 1.09375e-4), (191_999, 7e-5 + 6.3e-4 / 32_000)],
    "mantis": [(160_000, 7e-4), (174_000, 4.24375e-4), (176_000, 3.85e-4), (191_999, 7e-5 + 6.3e-4 / 32_000)],
    "bison-flat": [(190_000, 1.09375e-4), (191_000, 1.09375e-4)],
}  # fmt: skip


@pytest.mark.parametrize("name", MAIN_LINES)
def test_steps_and_tokens(phases: dict[str, Described], name: str):
    phase, (parent, start, stop, tokens, lineage_tokens) = phases[name], MAIN_LINES[name]
    assert (phase["start"]["parent"], phase["start"]["step"], phase["start_step"], phase["stop_step"]) == (parent, start, start, stop)
    assert (phase["tokens"], phase["lineage_tokens"]) == (printed(tokens, 1e12), printed(lineage_tokens, 1e12))
    (last,) = describe(f"{phase['recipe']}/{name}", "full", stop - 1)["phases"]
    assert last["phase_tokens_before"] + 4096 * last["batch"] == phase["tokens"]
    assert last["lineage_tokens_before"] + 4096 * last["batch"] == phase["lineage_tokens"]


@pytest.mark.parametrize("name", BATCHES)
def test_batches(phases: dict[str, Described], name: str):
    assert phases[name]["batch"] == BATCHES[name]


@pytest.mark.parametrize("name", MIXTURES)
def test_mixtures(phases: dict[str, Described], name: str):
    found = phases[name]["mixture"]
    assert [step for step, _ in found] == [step for step, _ in MIXTURES[name]]
    for (step, shares), (_, expected) in zip(found, MIXTURES[name], strict=True):
        assert not off_the_print(shares, expected), step
        (at_step,) = describe(f"{phases[name]['recipe']}/{name}", "full", step)["phases"]
        assert at_step["mixture"] == shares
        assert sum(at_step["mixture_sequences"].values()) == BLOCK


@pytest.mark.parametrize("name", RATES)
def test_learning_rates_by_hand(phases: dict[str, Described], name: str):
    recipe, stop = phases[name]["recipe"], phases[name]["stop_step"]
    expected = {step: rate for step, rate in RATES[name] if step < stop}
    found = {step: describe(f"{recipe}/{name}", "full", step)["phases"][0]["learning_rate"] for step in expected}
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-15)


def test_what_a_block_delivered_of_starling(phases: dict[str, Described]):
    ((_, shares),) = phases["starling"]["mixture"]
    found = {name: 100 * count / BLOCK for name, count in block_counts(shares, FLOORED).items()}
    expected = {"dolmino_wiki": "0.293", "wikipedia_markdown": "0.293", "medu_science_qa": "0.098"}
    assert not off_the_print({name: found[name] for name in expected}, expected)
    assert max(shares, key=lambda name: found[name] - shares[name]) == "nemotron_medium"  # the largest takes the rest
