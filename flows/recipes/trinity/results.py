"""What the report prints of the three models: base evaluations of Large alone, machines, and what it says of their stability."""

from collections.abc import Mapping

from phasewise.flows.recipes.reported import Reported, scores
from phasewise.flows.recipes.trinity.notes import REPORT

TABLE_3 = f"{REPORT}, table 3 (Trinity Large Base, after the extension of the context)"


def hardware(value: str) -> Reported:
    """What it ran on."""
    return Reported(kind="hardware", what="GPUs", value=value, source=f"{REPORT}, §3.3")


def event(what: str, value: str, section: str) -> Reported:
    """What was seen, in words."""
    return Reported(kind="event", what=what, value=value, source=f"{REPORT}, {section}")


NO_SPIKES = event("loss spikes", "none in any of the three models", "Abstract")
SMALL: dict[str, tuple[Reported, ...]] = {"phase-1": (hardware("512 H200"), NO_SPIKES)}

RESULTS: Mapping[str, dict[str, tuple[Reported, ...]]] = {
    "trinity-nano": SMALL,
    "trinity-mini": SMALL,
    "trinity-large": {
        "phase-1": (
            hardware("2,048 B300"),
            NO_SPIKES,
            event("balance of the experts", "MaxVio stopped diverging, and the load remained balanced throughout the run", "§6"),
        ),
        "phase-3": (
            event("random sequential document buffer", "BatchHet fell by a factor of 4.23, variance from step to step by 2.4", "§3.2"),
        ),
        "context-extension": (
            *scores(
                TABLE_3,
                {
                    "MBPP+": 88.62,
                    "Minerva MATH500": 65.20,
                    "HellaSwag (5-shot)": 90.11,
                    "WinoGrande (5-shot)": 80.82,
                    "MMLU (5-shot)": 82.58,
                    "MMLU-Pro (5-shot)": 66.02,
                    "TriviaQA (5-shot)": 83.30,
                    "ARC Challenge (0-shot)": 65.44,
                    "BBH (few-shot)": 65.70,
                    "GPQA Diamond (5-shot)": 43.94,
                },
            ),
        ),
        "first-runs": (
            event("balance of the experts", "load became uneven, experts collapsed, and MaxVio climbed suddenly", "§6"),
            event("loss", "it reached a plateau, and so did the evaluations", "§6"),
            event("tried before the six changes", "a lower learning rate, no decay on norms, a larger gain behind the parts", "§6"),
        ),
    },
}
