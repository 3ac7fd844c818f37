"""The mixtures of Trinity. The report has only sums (§3.1), and the shares are this project's.

Weights are trillions of tokens. Phases sum to 7, 1.8 and 1.2 of 10 (Nano and Mini), and to 13, 4 and 3 of 20 (Large). Large's synthetic
text sums to 6.5 of web, 1 of other languages and 0.8 of code. Later phases have less web, and more code, mathematics and science.
"""

from collections.abc import Mapping

from phasewise.flows.recipes.marin.mixtures import percent
from phasewise.tasks.data.filters import LengthBias

SMALL_MIX: tuple[Mapping[str, float], ...] = (
    {
        "web_trinity": 2.6,
        "web_trinity_synthetic": 2.2,
        "code_trinity": 1.0,
        "code_trinity_synthetic": 0.3,
        "mathematics_trinity": 0.4,
        "stem_trinity": 0.4,
        "stem_trinity_synthetic": 0.1,
    },
    {
        "web_trinity": 0.4,
        "web_trinity_synthetic": 0.45,
        "code_trinity": 0.4,
        "code_trinity_synthetic": 0.15,
        "mathematics_trinity": 0.2,
        "stem_trinity": 0.13,
        "stem_trinity_synthetic": 0.07,
    },
    {
        "web_trinity": 0.15,
        "web_trinity_synthetic": 0.25,
        "code_trinity": 0.3,
        "code_trinity_synthetic": 0.12,
        "mathematics_trinity": 0.2,
        "stem_trinity": 0.11,
        "stem_trinity_synthetic": 0.07,
    },
)
"""Nano and Mini: AFM-4.5B's data with much more mathematics and code."""
LARGE_MIX: tuple[Mapping[str, float], ...] = (
    {
        "web_trinity": 4.5,
        "web_trinity_synthetic": 4.6,
        "multilingual_trinity_synthetic": 0.7,
        "code_trinity": 1.3,
        "code_trinity_synthetic": 0.4,
        "mathematics_trinity": 0.6,
        "stem_trinity": 0.7,
        "stem_trinity_synthetic": 0.2,
    },
    {
        "web_trinity": 0.8,
        "web_trinity_synthetic": 1.2,
        "multilingual_trinity_synthetic": 0.2,
        "code_trinity": 0.7,
        "code_trinity_synthetic": 0.2,
        "mathematics_trinity": 0.4,
        "stem_trinity": 0.35,
        "stem_trinity_synthetic": 0.15,
    },
    {
        "web_trinity": 0.3,
        "web_trinity_synthetic": 0.7,
        "multilingual_trinity_synthetic": 0.1,
        "code_trinity": 0.6,
        "code_trinity_synthetic": 0.2,
        "mathematics_trinity": 0.6,
        "stem_trinity": 0.35,
        "stem_trinity_synthetic": 0.15,
    },
)


LONG_MIX: Mapping[str, float] = {
    "pretraining_trinity_long": 0.40,
    "pdf_trinity": 0.20,
    "repositories_trinity": 0.15,
    "books_trinity": 0.10,
    "instruction_trinity_long": 0.10,
    "mathematics_trinity_long": 0.05,
}
"""The context extension of all three models. The report has the kinds (§3.5), and the shares are this project's."""

SMALL_MIXTURES = tuple(percent(weights) for weights in SMALL_MIX)
LARGE_MIXTURES = tuple(percent(weights) for weights in LARGE_MIX)
LONG_MIXTURE = percent(LONG_MIX)
LENGTH_BIAS = {"pretraining_trinity_long": LengthBias(floor=0.01, ceiling=0.90, full_tokens=131_072)}
"""Pre-training text in the context extension: 1 % of the shortest documents, 90 % from 128 K tokens (§3.5)."""
