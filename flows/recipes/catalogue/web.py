"""Text from crawls of the web."""

from phasewise.flows.recipes.catalogue.component import CRAWL_BAD_FRACTION, DOLMINO, ComponentData, hub, site, stand_in
from phasewise.tasks.data.source import Source

DCLM = "mlfoundations/dclm-baseline-1.0@a3b142c"
COMMON_CRAWL = "https://data.commoncrawl.org"
NEMOTRON = "contrib/Nemotron/Nemotron-CC/data-jsonl"
SCIPY_ELSEWHERE = tuple(
    f"site:scipy/{name}/**/*.py" for name in ("stats", "special", "optimize", "signal", "interpolate", "ndimage", "spatial")
)


def nemotron(quality: str, kind: str) -> Source:
    """One of Nemotron-CC's seven subsets, from Common Crawl's web server, which lists no folder and has a list of all paths instead."""
    return Source(
        url=COMMON_CRAWL,
        listing=f"{COMMON_CRAWL}/{NEMOTRON}.paths.gz",
        include=(f"{NEMOTRON}/quality={quality}/kind={kind}/*CC-MAIN-*.jsonl.zstd",),
        format="jsonl",
        max_bad_fraction=CRAWL_BAD_FRACTION,
    )


WEB: dict[str, ComponentData] = {
    "dclm_baseline": ComponentData(
        source=hub(DCLM, "global-shard_*/local-shard_*/shard_*_processed.jsonl.zst", max_bad_fraction=CRAWL_BAD_FRACTION),
        stand_in=stand_in("text", "site:*.dist-info/METADATA", "site:*.dist-info/**/LICEN*", "stdlib:idlelib/*.txt", kilobytes=2200),
    ),
    "dolmino_dclm": ComponentData(
        source=hub(DOLMINO, "data/dclm/*.json.zst", max_bad_fraction=CRAWL_BAD_FRACTION),
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
}
