"""Scientific papers."""

from phasewise.flows.recipes.catalogue.component import DOLMINO, ComponentData, dolma, hub, site, stand_in

PAPERS: dict[str, ComponentData] = {
    "dolma_pes2o": ComponentData(source=dolma("pes2o", "pes2o", 26), stand_in=stand_in("docstrings", *site("nltk"), kilobytes=500)),
    "dolma_arxiv": ComponentData(
        source=dolma("redpajama-arxiv", "arxiv", 100), stand_in=stand_in("docstrings", *site("orbax", "optax"), kilobytes=400)
    ),
    "dolmino_pes2o": ComponentData(
        source=hub(DOLMINO, "data/pes2o/*.json.gz"),
        stand_in=stand_in("docstrings", *site("scipy/signal", "scipy/interpolate"), kilobytes=400),
    ),
    "arxiv_markdownified": ComponentData(
        source=hub("marin-community/ar5iv-no-problem-markdown", "*.jsonl.gz"),
        stand_in=stand_in("docstrings", *site("scipy/optimize"), kilobytes=400),
    ),
}
