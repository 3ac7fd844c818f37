"""What the retrospective, the paper and the issues reported of Marin 32B, with the table of base models that its ranks come from."""

from phasewise.flows.recipes.marin.notes import PAPER, R32
from phasewise.flows.recipes.marin.results_8b import date, event, hardware
from phasewise.flows.recipes.reported import Reported, scores

BENCHMARKS = (
    *("AGI Eval LSAT-AR", "ARC Easy", "ARC Challenge", "BoolQ", "CommonSense QA", "COPA", "HellaSwag", "lambada_openai", "OpenBookQA"),
    *("PIQA", "WinoGrande", "WSC", "MMLU", "GPQA", "BBH", "MMLU Pro", "HumanEval", "GSM8K", "MATH"),
)
TABLE = f"{R32}, Base Model Results"
BISON, MANTIS = "Marin 32B (Bison)", "Marin 32B (Mantis)"
_ROWS = {
    BISON: (23.4, 87.8, 65.8, 88.9, 82.3, 94.0, 86.6, 77.4, 46.6, 86.1, 78.61, 82.42, 72.9, 32.13, 55.2, 41.9, 29.27, 54.71, 10.35),
    MANTIS: (24.8, 88.0, 65.7, 89.4, 82.8, 93.0, 86.9, 77.2, 46.4, 85.9, 79.3, 79.5, 74.7, 34.0, 59.6, 45.1, 42.7, 69.1, 15.3),
    "OLMo 2 32B Base": (
        *(22.6, 85.9, 61.86, 83.0, 78.6, 93.0, 85.9, 78.3, 47.2, 83.08, 78.85, 86.81, 71.85, 32.21, 56.07, 42.0),
        *(23.78, 76.35, 12.69),
    ),
    "Qwen 2.5 32B Base": (
        *(30.43, 80.81, 55.89, 87.65, 88.45, 87.0, 84.11, 77.62, 44.4, 82.4, 75.7, 80.95, 80.83, 39.01, 67.35, 57.9),
        *(48.78, 89.31, 36.25),
    ),
    "Gemma 3 27B PT": (
        *(22.17, 88.17, 65.44, 87.09, 73.38, 93.0, 83.02, 78.07, 45.0, 84.06, 79.01, 91.94, 75.33, 35.74, 61.36, 49.44),
        *(17.6, 82.03, 25.83),
    ),
    "NVIDIA Nemotron Nano 12B v2 Base": (
        *(28.7, 83.59, 60.58, 84.83, 76.09, 85.0, 81.42, 72.93, 45.8, 82.81, 74.35, 85.35, 77.9, 36.58, 62.02, 53.13),
        *(59.15, 84.08, 68.28),
    ),
}
BASE_MODELS: dict[str, dict[str, float]] = {model: dict(zip(BENCHMARKS, row, strict=True)) for model, row in _ROWS.items()}
"""Model → benchmark → score in percent, as the retrospective prints them."""
PRINTED_RANKS = {
    BISON: (3.68, 0.39),
    MANTIS: (3.05, 0.44),
    "OLMo 2 32B Base": (3.89, 0.34),
    "Qwen 2.5 32B Base": (3.16, 0.54),
    "Gemma 3 27B PT": (3.37, 0.39),
    "NVIDIA Nemotron Nano 12B v2 Base": (3.68, 0.38),
}
"""Model → mean rank and mean reciprocal rank, as printed; `flows.recipes.ranking` computes them."""
PRINTED_AVERAGES = {
    BISON: 63.0,
    MANTIS: 65.2,
    "OLMo 2 32B Base": 63.2,
    "Qwen 2.5 32B Base": 68.1,
    "Gemma 3 27B PT": 65.1,
    "NVIDIA Nemotron Nano 12B v2 Base": 68.6,
}


def _base_model(model: str) -> tuple[Reported, ...]:
    """Its row of the table, with average and ranks."""
    mean_rank, reciprocal = PRINTED_RANKS[model]
    return (
        *scores(TABLE, {"average": PRINTED_AVERAGES[model], **BASE_MODELS[model]}),
        Reported(kind="score", what="mean rank among six models", value=mean_rank, source=TABLE),
        Reported(kind="score", what="mean reciprocal rank", value=reciprocal, source=TABLE),
    )


RESULTS_32B: dict[str, tuple[Reported, ...]] = {
    "phase-1": (
        hardware("4x v5p-512; 3x from step 18,500; v4-2048 from 21,010", f"{R32}, Hardware"),
        event("spikes", "many more than at 8B; from about step 70,000 on worse, at 80,000 not to be avoided", f"{R32}, Phase 1 and 2"),
        Reported(kind="count", what="steps in or after a spike, of 2,500", value=130, unit="steps", source="issue 1368"),
        event("step 56,400", "gradient clip tightened from 1.0 to 0.2", f"{R32}, Tightened max grad norm clipping"),
        event("step 72,233", "clip of the update norm added; off by mistake from about 74,000 to 80,000", f"{R32}, Clip Update Norm"),
        event("before a spike", "the update norm, about twice as large, leads loss and gradient norm", "issue 1368"),
        date("Levanter has skip-step", "2025-05-27", "Levanter's history"),
        date("Levanter has the clip by root mean square", "2025-06-03", "Levanter's history"),
        date("Levanter has the clip of the update norm", "2025-06-18", "Levanter's history"),
    ),
    "necromancy": (
        Reported(kind="loss", what="training loss at its height, from 1.96", value=2.02, unit="nats a token", source="issue 1390"),
        Reported(kind="loss", what="training loss where it settled", value=1.975, unit="nats a token", source="issue 1390"),
        event("outcome", "steady for a few thousand steps, then spikes again", f"{R32}, Necromancy Restart"),
    ),
    "muon": (event("outcome", "a lower loss at first, spikes a little later, then diverged", f"{R32}, Alternative Optimizers"),),
    "qk-norm": (
        hardware("v4-2048", f"{R32}, Hardware"),
        event("spikes", "none at all", f"{R32}, Phase 3"),
        Reported(kind="count", what="tokens until the loss was back", value="about 10 B", source=f"{R32}, Phase 3; {PAPER}, section 4.4.3"),
        date("Levanter has AdamC", "2025-06-30", "Levanter's history"),
    ),
    "bison": (
        *_base_model(BISON),
        event("near step 190,000", "the training loss shifted and stayed; evaluation losses did not", f"{R32}, Shuffling anomaly"),
        event("GSM8K", "about 22 points below the weakest baseline under the default prompt", f"{R32}, Contamination anomaly"),
    ),
    "mantis": (
        *_base_model(MANTIS),
        event("near step 190,000", "no shift of the training loss", f"{R32}, Shuffling: Linear vs. Feistel"),
        date("the library offers the permutation as a setting", "2025-10-01", "issue 1685"),
    ),
    "bison-flat": (event("outcome", "the shift did not go with a constant rate", "Marin experiment code, bison-flat"),),
}
