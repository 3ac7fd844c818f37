"""Works of reference."""

from phasewise.flows.recipes.catalogue.component import DOLMINO, ComponentData, dolma, hub, site, stand_in
from phasewise.tasks.data.source import TextFilter

WIKIPEDIA_MARKDOWN_FILTERS = (
    TextFilter(measure="digit_percent", max=50),
    TextFilter(measure="words", min=70),
    TextFilter(measure="special_percent", max=50),
)
"""The record applied them before it published the data set: they should leave out nothing more."""

REFERENCE: dict[str, ComponentData] = {
    "megawika": ComponentData(
        source=dolma("wikiref_megawika", "megawika", 262),
        stand_in=stand_in("comments", *site("numpy", "matplotlib", "sqlalchemy", "tornado"), kilobytes=400),
    ),
    "dolma_wiki": ComponentData(source=dolma("wiki", "wiki", 2), stand_in=stand_in("topics", "stdlib:pydoc_data/topics.py", kilobytes=900)),
    "dolmino_wiki": ComponentData(
        source=hub(DOLMINO, "data/wiki/*.json.gz"),
        stand_in=stand_in("docstrings", "stdlib:*.py", "stdlib:[a-t]*/**/*.py", without=("stdlib:email/**/*.py",), kilobytes=400),
    ),
    "wikipedia_markdown": ComponentData(
        source=hub("marin-community/wikipedia-markdown", "*.jsonl.gz", filters=WIKIPEDIA_MARKDOWN_FILTERS),
        stand_in=stand_in("comments", "stdlib:**/*.py", kilobytes=400),
    ),
}
