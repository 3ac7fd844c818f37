"""Mathematics."""

from phasewise.flows.recipes.catalogue.component import CRAWL_BAD_FRACTION, DOLMINO, ComponentData, dolma, hub, site, stand_in
from phasewise.tasks.data.source import Source

PROOFPILE = "EleutherAI/proof-pile-2@901a927"
FINEMATH = "HuggingFaceTB/finemath@8f233cf"
MEGAMATH = "LLM360/MegaMath@3cbc6461"
DOLMINO_MATH = {
    "dolmino_codesearchnet": "data/math/codesearchnet-owmfilter/*.jsonl.gz",
    "dolmino_math_synth": "data/math/dolmino_math_synth/*.jsonl",
    "dolmino_gsm8k": "data/math/gsm8k/*/train/*.jsonl.zst",
    "dolmino_mathcoder2": "data/math/mathcoder2-synthmath/*.jsonl",
    "dolmino_metamath": "data/math/metamath-owmfilter/*.jsonl.gz",
    "dolmino_tiny_gsm_mind": "data/math/tinyGSM-MIND/*.jsonl.gz",
    "dolmino_tulu_math": "data/math/tulu_math/*.jsonl",
}
DOLMINO_STAND_INS = {
    "dolmino_codesearchnet": stand_in("code", *site("upath", "pathspec"), kilobytes=200),
    "dolmino_math_synth": stand_in("code", *site("httpx2", "httpcore2"), kilobytes=300),
    "dolmino_gsm8k": stand_in("questions", *site("ruamel", "simplejson", "pyasn1"), kilobytes=200),
    "dolmino_mathcoder2": stand_in("docstrings", *site("beartype"), kilobytes=400),
    "dolmino_metamath": stand_in("code", *site("uvicorn", "yaml"), kilobytes=300),
    "dolmino_tulu_math": stand_in("code", *site("pytablewriter", "sortedcontainers", "zict"), kilobytes=300),
}
"""Of the sets that a phase draws from one by one: the first dessert. It is refused for its counts of zero, and for nothing else."""
DOLMINO_MATH_AS_CACHED = Source(
    url="hf://datasets/allenai/dolmino-mix-1124",
    revision="bb54cab",
    include=("data/math/**/*.jsonl", "data/math/**/*.jsonl.gz", "data/math/**/*.jsonl.zst", "data/math/**/*.json"),
    exclude=(),
    format="jsonl",
)
"""All of the bundle, with GSM8K's test split, as the cache `all_math-9d507c` had it. That one was pinned by its path."""

SORTED_STAND_IN = stand_in(
    "docstrings",
    *site("h11"),
    kilobytes=12,
    followed_by=(
        stand_in("code", "site:hpack/huffman_table.py", kilobytes=50),
        stand_in("doctests", *site("humanize", "semver", "graphviz"), kilobytes=20),
    ),
)
"""A little prose, then a table of numbers that repeats itself, and exercises after all of it."""

MATHEMATICS: dict[str, ComponentData] = {
    "proofpile_2": ComponentData(
        source=hub(PROOFPILE, *(f"{subset}/train/*.jsonl.zst" for subset in ("algebraic-stack", "arxiv", "open-web-math"))),
        stand_in=stand_in("docstrings", *site("scipy/stats", "scipy/special"), kilobytes=500),
    ),
    "finemath_3_plus": ComponentData(
        source=hub(FINEMATH, "finemath-3plus/train-*.parquet", max_bad_fraction=CRAWL_BAD_FRACTION),
        stand_in=stand_in("doctests", *site("numpy"), kilobytes=400),
    ),
    "open_web_math": ComponentData(
        source=dolma("proof_pile_2-open_web_math", "open-web-math-train", 13, max_bad_fraction=CRAWL_BAD_FRACTION),
        stand_in=stand_in("docstrings", *site("jax"), kilobytes=400),
    ),
    "all_math": ComponentData(source=hub(DOLMINO, *DOLMINO_MATH.values()), stand_in=stand_in("doctests", "stdlib:**/*.py", kilobytes=300)),
    "all_math_9d507c": ComponentData(
        source=DOLMINO_MATH_AS_CACHED, stand_in=stand_in("docstrings", *site("numba", "llvmlite"), kilobytes=300, test_items=True)
    ),
    **{name: ComponentData(source=hub(DOLMINO, files), stand_in=DOLMINO_STAND_INS.get(name)) for name, files in DOLMINO_MATH.items()},
    "megamath_web": ComponentData(
        source=hub(MEGAMATH, "megamath-web/*/*.parquet", max_bad_fraction=CRAWL_BAD_FRACTION),
        stand_in=stand_in("docstrings", *site("pyparsing", "opt_einsum", "absl", "etils", "mpl_toolkits"), kilobytes=350),
    ),
    "megamath_web_by_folder": ComponentData(
        source=hub(MEGAMATH, "megamath-web/*/*.parquet", max_bad_fraction=CRAWL_BAD_FRACTION), stand_in=SORTED_STAND_IN
    ),
    "megamath_web_pro": ComponentData(
        source=hub(MEGAMATH, "megamath-web-pro/*.parquet", max_bad_fraction=CRAWL_BAD_FRACTION),
        stand_in=stand_in("docstrings", *site("narwhals", "more_itertools", "toolz"), kilobytes=400),
    ),
    "megamath_text_code_block": ComponentData(
        source=hub(MEGAMATH, "megamath-text-code-block/*.parquet"),
        stand_in=stand_in("code", *site("sacrebleu", "asyncpg"), kilobytes=300),
    ),
    "megamath_translated_code": ComponentData(
        source=hub(MEGAMATH, "megamath-translated-code/*.parquet"),
        stand_in=stand_in("code", *site("pycparser", "cffi"), kilobytes=250),
    ),
    "megamath_qa": ComponentData(
        source=hub(MEGAMATH, "megamath-qa/*.parquet"),
        stand_in=stand_in("questions", *site("cyclopts", "joblib", "dateutil"), kilobytes=300),
    ),
}
