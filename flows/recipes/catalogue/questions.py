"""Questions and their answers, as plain text."""

from phasewise.flows.recipes.catalogue.component import DOLMINO, ComponentData, dolma, hub, site, stand_in

QUESTIONS: dict[str, ComponentData] = {
    "dolma_stackexchange": ComponentData(
        source=dolma("redpajama-stackexchange", "stackexchange", 26),
        stand_in=stand_in("questions", *site("huggingface_hub", "datasets"), kilobytes=400),
    ),
    "dolmino_stackexchange": ComponentData(
        source=hub(DOLMINO, "data/stackexchange/*.json.gz"), stand_in=stand_in("questions", *site("redis", "docker"), kilobytes=300)
    ),
    "stackexchange_custom": ComponentData(
        source=hub("marin-community/stackexchange-markdown", "*.jsonl.gz"),
        stand_in=stand_in("questions", *site("tornado", "aiohttp", "gcsfs", "pyarrow"), kilobytes=300),
    ),
    "flan": ComponentData(
        source=hub(DOLMINO, "data/flan/*.json.gz"),
        stand_in=stand_in("questions", *site("pydantic", "altair", "click", "rich", "jinja2"), kilobytes=300),
    ),
    "dolma_flan": ComponentData(
        source=dolma("tulu_flan", "tulu_flan", 66),
        stand_in=stand_in("questions", *site("cryptography", "opentelemetry", "pendulum", "dateparser"), kilobytes=300),
    ),
    "medu_science_qa": ComponentData(
        source=hub("marin-community/datashop-science-qa", "*.jsonl.gz"),
        stand_in=stand_in("questions", *site("scipy/ndimage", "scipy/spatial"), kilobytes=200),
    ),
}
