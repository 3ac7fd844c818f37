"""The mixtures of both runs, with the arithmetic that their shares come from. Weights count tokens, in the unit that each table names."""

from collections.abc import Mapping

from phasewise.trainer.config import MixtureShares

Weights = Mapping[str, float]
GIB = 1 / 1024


def percent(weights: Weights, of: float = 100.0) -> MixtureShares:
    """Weights as shares that sum to `of` percent."""
    total = sum(weights.values())
    return {name: of * weight / total for name, weight in weights.items()}


# Trillions of NeoX tokens.
STARCODER = {"starcoderdata": 0.25}
PROOFPILE = {"proofpile_2": 0.055}
DCLM = {"dclm_baseline": 3.8, **STARCODER, **PROOFPILE}

# Billions of tokens.
JELLYFISH_WEB = {"dolmino_dclm": 700, "starcoderdata": 230 * 0.1}
JELLYFISH_HIGH_QUALITY = {
    "algebraic_stack": 11.5,
    "dolma_arxiv": 27.9,
    "megawika": 4.44,
    "open_web_math": 5.06,
    "dolma_pes2o": 58.1,
    "dolma_stackexchange": 17.1,
    "dolma_wiki": 3.65,
    "finemath_3_plus": 34,
}

# Billions of tokens, without TinyGSM-MIND: the record's sum for all_math is 4.22, and leaves it out (OLMo 2, table 5).
DOLMINO_MATH = {
    "dolmino_codesearchnet": 0.00178,
    "dolmino_gsm8k": 0.00274,
    "dolmino_mathcoder2": 3.87,
    "dolmino_math_synth": 0.0287,
    "dolmino_metamath": 0.0842,
    "dolmino_tulu_math": 0.23,
}
FLAN = {"flan": 17}
ALL_MATH = {"all_math": 4.22}

# Compressed TiB, which the record takes for trillions of tokens.
NEMOTRON = {
    "nemotron_hq_actual": 935.43 * GIB,
    "nemotron_hq_synth": 2.72,
    "nemotron_medium_high": 844.51 * GIB,
    "nemotron_medium": 3.38,
    "nemotron_medium_low": 1.54,
    "nemotron_low_actual": 718.06 * GIB,
    "nemotron_low_synth": 642.78 * GIB,
}

# Trillions of tokens × how often they are repeated.
STARLING_HIGH_QUALITY = {
    "starcoderdata": 0.25,
    "proofpile_2": 0.25,
    "flan": 0.017 * 10,
    "dolmino_pes2o": 0.0581 * 5,
    "dolmino_stackexchange": 0.0171 * 5,
    "dolmino_wiki": 0.00365 * 5,
    "all_math": 0.00422 * 10,
    "arxiv_markdownified": 0.0581 * 5,
    "stackexchange_custom": 0.0171 * 5,
    "wikipedia_markdown": 0.00365 * 5,
    "medu_science_qa": 0.0012 * 5,
    "finemath_3_plus": 0.034 * 5,
}
HIGH_QUALITY_32B = {
    "arxiv_markdownified": 0.0581,
    "dolmino_pes2o": 0.0581,
    "finemath_3_plus": 0.034,
    "flan": 0.017 * 2,
    "dolmino_stackexchange": 0.0171,
    "stackexchange_custom": 0.0171,
    "dolmino_wiki": 0.00365,
    "wikipedia_markdown": 0.00365,
    "medu_science_qa": 0.0012,
}
BISON_MATH = {"all_math_9d507c": 0.00422 * 2}

# Percent, of MegaMath's web text in the order of its folders. Of Bison's 1.074 T tokens these are 322 B: 1.2 epochs of its 263.9 B.
SORTED_MATH = {"megamath_web_by_folder": 30.0}

# Mantis gives MegaMath 0.371 T in proportion to its tokens, and then keeps a quarter of its web text.
MEGAMATH = {
    "megamath_web": 0.2639,
    "megamath_web_pro": 0.0151,
    "megamath_text_code_block": 0.0503,
    "megamath_translated_code": 0.0072,
    "megamath_qa": 0.0070,
}
_ALL_MEGAMATH = percent(MEGAMATH, of=0.371)
MANTIS_MATH = {**_ALL_MEGAMATH, "megamath_web": _ALL_MEGAMATH["megamath_web"] / 4}
STACK_PYTHON = {"stackv2_edu_python": 0.01463}

# Marin 8B
KESTREL_MIXTURE = percent(DCLM)
JELLYFISH_MIXTURE = percent(JELLYFISH_WEB, 70) | percent(JELLYFISH_HIGH_QUALITY, 30)
PHOENIX_BRIDGE = percent(DCLM | NEMOTRON)
PHOENIX_MIXTURE = percent(NEMOTRON | STARCODER)
STARLING_MIXTURE = percent(NEMOTRON, 70) | percent(STARLING_HIGH_QUALITY, 30)

# Marin 32B
PRETRAINING_MIXTURE = percent(NEMOTRON | STARCODER | PROOFPILE)
COOLDOWN_WEB = percent(NEMOTRON | STARCODER | PROOFPILE, 70)
BISON_MIXTURE = COOLDOWN_WEB | percent(HIGH_QUALITY_32B | BISON_MATH, 30)
BISON_CLEAN_MIXTURE = percent({name: share for name, share in BISON_MIXTURE.items() if name not in BISON_MATH}, 70) | SORTED_MATH
MANTIS_MIXTURE = COOLDOWN_WEB | percent(HIGH_QUALITY_32B | MANTIS_MATH, 30)
MANTIS_MIXTURE_WITH_CODE = COOLDOWN_WEB | percent(HIGH_QUALITY_32B | MANTIS_MATH | STACK_PYTHON, 30)
