"""The mixtures of Trinity. Their shares are not published: these are this project's, within what is.

Weights are trillions of tokens of the whole mix (Trinity Large report, §3.1), of which the phases sum to what the report says: 7, 1.8 and
1.2 of 10 (Nano and Mini), and 13, 4 and 3 of 20 (Large). Large's synthetic text sums to the report's 6.5 of web, 1 of other languages and
0.8 of code over its phases. From phase to phase there is less web, and more code, mathematics and science, as the report says.
"""

from collections.abc import Mapping

from phasewise.tasks.data.filters import LengthBias
from phasewise.trainer.config import MixtureShares

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
"""Of Nano and Mini: AFM-4.5B's data with much more mathematics and code."""
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


def percent(weights: Mapping[str, float]) -> MixtureShares:
    """Weights as shares that sum to 100 percent."""
    total = sum(weights.values())
    return {name: 100 * weight / total for name, weight in weights.items()}


LONG_MIX: Mapping[str, float] = {
    "pretraining_trinity_long": 0.40,
    "pdf_trinity": 0.20,
    "repositories_trinity": 0.15,
    "books_trinity": 0.10,
    "instruction_trinity_long": 0.10,
    "mathematics_trinity_long": 0.05,
}
"""Of the extension of the context, for all three models: the kinds are the report's (§3.5), the shares this project's."""

SMALL_MIXTURES = tuple(percent(weights) for weights in SMALL_MIX)
LARGE_MIXTURES = tuple(percent(weights) for weights in LARGE_MIX)
LONG_MIXTURE = percent(LONG_MIX)
LENGTH_BIAS = {"pretraining_trinity_long": LengthBias(floor=0.01, ceiling=0.90, full_tokens=131_072)}
"""Of the text of pre-training that the extension draws from again: 1 % of its shortest documents, 90 % from 128 K tokens on (§3.5)."""
