"""What the retrospective, the paper and the issues reported of Marin 8B. There are no dates of phases, and no table of losses."""

from phasewise.flows.recipes.marin.notes import PAPER, R8
from phasewise.flows.recipes.reported import Reported, scores

STARLING_DRAFT = f"{R8}, Phase 5, Results (a draft, from Jellyfish's score to Starling's)"
HARDWARE = f"{R8}, Hardware"


def hardware(value: str, source: str = HARDWARE) -> Reported:
    """What it ran on."""
    return Reported(kind="hardware", what="slice", value=value, source=source)


def gap(value: float, source: str) -> Reported:
    """How far the moving average was better than the weights themselves."""
    return Reported(kind="loss", what="EMA gap on Paloma's c4_en", value=value, unit="bits per byte", source=source)


def event(what: str, value: str, source: str) -> Reported:
    """What was seen, in words."""
    return Reported(kind="event", what=what, value=value, source=source)


def date(what: str, value: str, source: str) -> Reported:
    """When something happened, where it is recorded."""
    return Reported(kind="date", what=what, value=value, source=source)


RESULTS_8B: dict[str, tuple[Reported, ...]] = {
    "kestrel": (
        hardware("2x v5e-256, by multislice"),
        event("spikes", "very few", f"{R8}, Phase 1, Stability"),
        event(
            "longer decays from step 200,000",
            "loss on mc4, c4_en, m2d2 and refined web fell, on 100_subreddits, twitterAAE, manosphere and 4chan it rose at first",
            f"{R8}, WSD Cycle Change",
        ),
        date("the library draws the permutation's parameters otherwise", "2025-01-29", "Levanter issue 869"),
    ),
    "ocelot": (
        hardware("v4-2048"),
        gap(0.015, f"{R8}, The EMA Gap; {PAPER}, section 4.2.2"),
        event("spikes", "few; a brief one near the start, put down to the new RoPE", f"{R8}, Phase 2, Stability"),
        date("the library's moving average was corrected", "2025-02-10", "Levanter's history"),
        date("a partial copy of DCLM was found", "2025-02-11", "Marin issues"),
    ),
    "jellyfish": (
        hardware("v4-2048"),
        *scores(
            f"{R8}, Phase 3, Results",
            {
                "MMLU (5-shot)": 65.3,
                "MMLU (0-shot)": 62.5,
                "BBH (few-shot CoT)": 57.0,
                "GSM8K (8-shot)": 50.9,
                "HumanEval (pass@1)": 24.4,
                "MATH (4-shot)": 18.5,
                "IFEval (prompt-level loose)": 9.2,
            },
        ),
        event("loss on Paloma's c4_en", "rose much under this mixture", f"{R8}, Phase 3, C4 EN Perplexity"),
    ),
    "phoenix": (
        hardware("v4-2048"),
        gap(0.017, f"{R8}, The EMA Gap"),
        event("the change of mixture and rate", "no spike; the loss soon was slightly below where it had been", f"{R8}, Phase 4, Notes"),
    ),
    "starling": (
        hardware("v4-2048"),
        *scores(STARLING_DRAFT, {"GSM8K": 67.854, "MATH": 35.26, "HumanEval": 57.31707317, "IFEval": 49.53789279}),
        Reported(
            kind="score",
            what="BBH (a broken evaluation)",
            value=0.3532483489479343,
            unit="%",
            source=STARLING_DRAFT,
        ),
        event("loss on Paloma's c4_en", "fell much, where Jellyfish's had risen", f"{R8}, Phase 5, C4 EN Perplexity"),
    ),
    "deeper-starling": (
        *scores(
            f"{PAPER}, table 4",
            {"average": 66.6, "MMLU (5-shot)": 67.6, "BBH": 50.6, "GPQA": 30.3, "MMLU-Pro": 36.5, "GSM8K": 61.3},
        ),
        event("loss", "fell far more slowly once the rate was constant", f"{R8}, WSD-S Hill / River decomposition"),
    ),
    "microannealing-flan-70-30": (event("benchmarks", "worse than the control", f"{R8}, Interlude: Micro-Annealing"),),
    "microannealing-flan": (event("mixture of 70 / 15 / 15", "the best of the budget", f"{R8}, Interlude: Micro-Annealing"),),
    "microannealing-all-hq": (event("benchmarks", "about the average of the arms", f"{R8}, Interlude: Micro-Annealing"),),
    "dessert-v3": scores(
        f"{R8}, Interlude: Dessert Runs (GSM8K from 50.9, MATH from 18.4, MMLU from 65.3)",
        {"GSM8K": 61.1, "MATH": 21.1, "MMLU (5-shot)": 65.1},
    ),
    "soft-raccoon": (event("training loss", "crept up as the rate fell", f"{R8}, Raccoon"),),
    "hypnotic-spoonbill": (event("training loss", "still crept up", f"{R8}, Spoonbill"),),
    "spoonbill-norms": (event("norms", "lm_head grew without end", f"{R8}, Spoonbill"),),
    "spoonbill-z-loss": (event("training loss", "fell: the z-loss held lm_head", f"{R8}, Spoonbill"),),
    "sft": scores(f"{PAPER}, table 5", {"average": 43.8, "IFEval": 78.3, "BBH": 46.0, "GPQA": 29.5, "MMLU-Pro": 31.2, "HumanEval": 47.0}),
}
