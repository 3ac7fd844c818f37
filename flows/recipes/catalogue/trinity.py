"""The data of Trinity, by kind. They were curated by DatologyAI and are not public, so there are stand-ins and nothing to read at full
scale.

The kinds are those that the report names (§3.1). Files are of packages that no other component here sees in the same way.
"""

from phasewise.flows.recipes.catalogue.component import ComponentData, asked_about, site, stand_in
from phasewise.tasks.data.conversations.declared import Conversation


def closed(view: str, *packages: str, kilobytes: int) -> ComponentData:
    """Data that are not public, with a view of these packages in their place."""
    return ComponentData(source=None, stand_in=stand_in(view, *site(*packages), kilobytes=kilobytes))


INSTRUCTION_LAYOUT = Conversation(messages="messages", template="trinity")
"""Of the data of its supervised fine-tuning nothing is public. The template is ours (`tasks/data/conversations/built_in.py`)."""

TRINITY: dict[str, ComponentData] = {
    "web_trinity": closed("docstrings", "sqlalchemy", "altair", kilobytes=1800),
    "web_trinity_synthetic": closed("questions", "pandas", "great_expectations", kilobytes=1800),
    "multilingual_trinity_synthetic": closed("code", "dateparser/data", kilobytes=700),
    "code_trinity": closed("code", "dask", "distributed", kilobytes=1200),
    "code_trinity_synthetic": closed("code", "prefect", kilobytes=800),
    "mathematics_trinity": closed("doctests", "scipy", kilobytes=1000),
    "stem_trinity": closed("questions", "sklearn", kilobytes=1000),
    "stem_trinity_synthetic": closed("questions", "matplotlib", kilobytes=700),
    "instruction_trinity": ComponentData(source=None, stand_in=asked_about("nltk", "fsspec", layout=INSTRUCTION_LAYOUT)),
    "pretraining_trinity_long": closed("code", "jax", kilobytes=1000),
    "pdf_trinity": closed("docstrings", "redis", "huggingface_hub", kilobytes=400),
    "repositories_trinity": closed("code", "orbax", "numba", kilobytes=800),
    "books_trinity": closed("docstrings", "pyarrow", "numpy", kilobytes=400),
    "instruction_trinity_long": closed("questions", "optax", "narwhals", kilobytes=400),
    "mathematics_trinity_long": closed("code", "opt_einsum", "more_itertools", kilobytes=300),
}
