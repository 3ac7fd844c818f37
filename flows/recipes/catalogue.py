"""Every component by name: the real data set, and the stand-in that takes its place at proxy scale.

Data-set ids and revisions are the record's (Marin experiment code; see `docs/recipes.md`).
"""

from tasks.data.source import Source
from tasks.data.standins import StandIn
from trainer.config import Frozen

KILOBYTE = 1000


class ComponentData(Frozen):
    """Where a component's text comes from at either scale."""

    source: Source
    stand_in: StandIn


def hub(dataset: str, *include: str, text_key: str = "text", file_format: str = "jsonl", exclude: tuple[str, ...] = ()) -> Source:
    """Files of a Hugging Face data set, `OWNER/NAME@REVISION`."""
    return Source.model_validate(
        {"url": f"hf://datasets/{dataset}", "include": include, "exclude": exclude, "format": file_format, "text_key": text_key}
    )


def nemotron(quality: str, kind: str) -> Source:
    """One of Nemotron-CC's seven subsets, from Common Crawl."""
    root = "https://data.commoncrawl.org/contrib/Nemotron/Nemotron-CC/data-jsonl"
    return Source(url=f"{root}/quality={quality}/kind={kind}", include=("**.jsonl.zstd",), exclude=(), format="jsonl", text_key="text")


def stand_in(view: str, *where: str, kilobytes: int, without: tuple[str, ...] = ()) -> StandIn:
    """At most so many kilobytes of a view of this installation's files."""
    return StandIn.model_validate({"view": view, "where": where, "without": without, "max_bytes": kilobytes * KILOBYTE})


DCLM = "mlfoundations/dclm-baseline-1.0@a3b142c"
STARCODER = "bigcode/starcoderdata@9fc30b5"
PROOFPILE = "EleutherAI/proof-pile-2@901a927"
DOLMA = "allenai/dolma@7f48140"
DOLMINO = "allenai/dolmino-mix-1124@bb54cab"
FINEMATH = "HuggingFaceTB/finemath@8f233cf"
MATH_SPLITS = (
    "codesearchnet-owmfilter",
    "dolmino_math_synth",
    "gsm8k",
    "mathcoder2-synthmath",
    "metamath-owmfilter",
    "tinyGSM-MIND",
    "tulu_math",
)
SCIPY_ELSEWHERE = tuple(
    f"site:scipy/{name}/**/*.py" for name in ("stats", "special", "optimize", "signal", "interpolate", "ndimage", "spatial")
)


def site(*packages: str) -> tuple[str, ...]:
    """Every Python file of installed packages."""
    return tuple(f"site:{package}/**/*.py" for package in packages)


CATALOGUE: dict[str, ComponentData] = {
    # Web text
    "dclm_baseline": ComponentData(
        source=hub(DCLM, "**.jsonl.zst"),
        stand_in=stand_in("text", "site:*.dist-info/METADATA", "site:*.dist-info/**/LICEN*", "stdlib:idlelib/*.txt", kilobytes=2200),
    ),
    "dolmino_dclm": ComponentData(
        source=hub(DOLMINO, "data/dclm/**.json.zst"),
        stand_in=stand_in("docstrings", *site("prefect", "dask", "distributed", "great_expectations", "fsspec"), kilobytes=700),
    ),
    "nemotron_hq_actual": ComponentData(source=nemotron("high", "actual"), stand_in=stand_in("docstrings", *site("pandas"), kilobytes=500)),
    "nemotron_hq_synth": ComponentData(
        source=nemotron("high", "synthetic"), stand_in=stand_in("questions", *site("sqlalchemy"), kilobytes=800)
    ),
    "nemotron_medium_high": ComponentData(
        source=nemotron("medium-high", "actual"), stand_in=stand_in("docstrings", *site("sklearn"), kilobytes=400)
    ),
    "nemotron_medium": ComponentData(
        source=nemotron("medium", "actual"), stand_in=stand_in("docstrings", *site("scipy"), without=SCIPY_ELSEWHERE, kilobytes=1000)
    ),
    "nemotron_medium_low": ComponentData(
        source=nemotron("medium-low", "actual"), stand_in=stand_in("docstrings", *site("matplotlib"), kilobytes=500)
    ),
    "nemotron_low_actual": ComponentData(
        source=nemotron("low", "actual"),
        stand_in=stand_in("comments", *site("jax", "pandas", "prefect", "scipy", "sklearn"), kilobytes=400),
    ),
    "nemotron_low_synth": ComponentData(
        source=nemotron("low", "synthetic"), stand_in=stand_in("docstrings", *site("google"), kilobytes=400)
    ),
    # Code
    "starcoderdata": ComponentData(
        source=hub(STARCODER, "**.parquet", text_key="content", file_format="parquet"),
        stand_in=stand_in("code", "stdlib:*.py", "stdlib:asyncio/*.py", *site("fontTools", "PIL", "mako"), kilobytes=800),
    ),
    "algebraic_stack": ComponentData(
        source=hub(DOLMA, "data/algebraic-stack/**.json.gz"),
        stand_in=stand_in("code", *site("scipy/sparse", "numpy/linalg"), kilobytes=300),
    ),
    # Mathematics
    "proofpile_2": ComponentData(
        source=hub(PROOFPILE, "**.jsonl.zst"), stand_in=stand_in("docstrings", *site("scipy/stats", "scipy/special"), kilobytes=500)
    ),
    "finemath_3_plus": ComponentData(
        source=hub(FINEMATH, "finemath-3plus/*.parquet", file_format="parquet"),
        stand_in=stand_in("doctests", *site("numpy"), kilobytes=400),
    ),
    "open_web_math": ComponentData(
        source=hub(DOLMA, "data/open-web-math/**.json.gz"), stand_in=stand_in("docstrings", *site("jax"), kilobytes=400)
    ),
    "all_math": ComponentData(
        source=hub(DOLMINO, *(f"data/math/{split}/**.jsonl*" for split in MATH_SPLITS)),
        stand_in=stand_in("doctests", "stdlib:**/*.py", kilobytes=300),
    ),
    # Papers
    "dolma_pes2o": ComponentData(source=hub(DOLMA, "data/pes2o/**.json.gz"), stand_in=stand_in("docstrings", *site("nltk"), kilobytes=500)),
    "dolma_arxiv": ComponentData(
        source=hub(DOLMA, "data/arxiv/**.json.gz"), stand_in=stand_in("docstrings", *site("orbax", "optax"), kilobytes=400)
    ),
    "dolmino_pes2o": ComponentData(
        source=hub(DOLMINO, "data/pes2o/**.json.gz"),
        stand_in=stand_in("docstrings", *site("scipy/signal", "scipy/interpolate"), kilobytes=400),
    ),
    "arxiv_markdownified": ComponentData(
        source=hub("marin-community/ar5iv-no-problem-markdown", "**.jsonl.gz"),
        stand_in=stand_in("docstrings", *site("scipy/optimize"), kilobytes=400),
    ),
    # Reference works
    "megawika": ComponentData(
        source=hub(DOLMA, "data/megawika/**.json.gz"),
        stand_in=stand_in("comments", *site("numpy", "matplotlib", "sqlalchemy", "tornado"), kilobytes=400),
    ),
    "dolma_wiki": ComponentData(
        source=hub(DOLMA, "data/wiki/**.json.gz"), stand_in=stand_in("topics", "stdlib:pydoc_data/topics.py", kilobytes=900)
    ),
    "dolmino_wiki": ComponentData(
        source=hub(DOLMINO, "data/wiki/**.json.gz"),
        stand_in=stand_in("docstrings", "stdlib:*.py", "stdlib:[a-t]*/**/*.py", without=("stdlib:email/**/*.py",), kilobytes=400),
    ),
    "wikipedia_markdown": ComponentData(
        source=hub("marin-community/wikipedia-markdown", "**.jsonl.gz"),
        stand_in=stand_in("comments", "stdlib:**/*.py", kilobytes=400),
    ),
    # Questions and answers
    "dolma_stackexchange": ComponentData(
        source=hub(DOLMA, "data/stackexchange/**.json.gz"),
        stand_in=stand_in("questions", *site("huggingface_hub", "datasets"), kilobytes=400),
    ),
    "dolmino_stackexchange": ComponentData(
        source=hub(DOLMINO, "data/stackexchange/**.json.gz"), stand_in=stand_in("questions", *site("redis", "docker"), kilobytes=300)
    ),
    "stackexchange_custom": ComponentData(
        source=hub("marin-community/stackexchange-markdown", "**.jsonl.gz"),
        stand_in=stand_in("questions", *site("tornado", "aiohttp", "gcsfs", "pyarrow"), kilobytes=300),
    ),
    "flan": ComponentData(
        source=hub(DOLMINO, "data/flan/**.json.gz"),
        stand_in=stand_in("questions", *site("pydantic", "altair", "click", "rich", "jinja2"), kilobytes=300),
    ),
    "medu_science_qa": ComponentData(
        source=hub("marin-community/datashop-science-qa", "**.jsonl.gz"),
        stand_in=stand_in("questions", *site("scipy/ndimage", "scipy/spatial"), kilobytes=200),
    ),
}
