"""What an entry of the catalogue is, and the places that data sets come from."""

from phasewise.tasks.data.conversations.declared import Conversation
from phasewise.tasks.data.source import Filter, Source
from phasewise.tasks.data.standins import StandIn
from phasewise.trainer.base.frozen import Frozen

KILOBYTE = 1000
CRAWL_BAD_FRACTION = 1e-4
"""For text from crawls of the web. Among so many pages some lines are cut off or empty, and that must not stop a component; a file of
another format is bad throughout, and that must. One in ten thousand is less than what a mixture's blocks round away (1 in 2048)."""
SPLITS_FOR_EVALUATION = ("test", "dev", "val", "valid", "validation", "eval")
EVALUATION_FILES = tuple(glob for name in SPLITS_FOR_EVALUATION for glob in (f"{name}[-_./]*", f"*[-_/]{name}[-_./]*"))
"""Names that say that a file is held for evaluation, as a folder (`gsm8k/test/0.jsonl`) or within a file's name (`train_test.jsonl`)."""
DOLMA_FILES = "https://olmo-data.org/dolma-v1_7"
DOLMINO = "allenai/dolmino-mix-1124@bb54cab"


class ComponentData(Frozen):
    """Where a component's text comes from at either scale.

    Attributes:
        source: None where the data are not public: only a source of the recipe's own can take their place at full scale.
        stand_in: None where no phase draws from it.
    """

    source: Source | None
    stand_in: StandIn | None


def hub(dataset: str, *include: str, text_key: str = "text", filters: tuple[Filter, ...] = (), max_bad_fraction: float = 0.0) -> Source:
    """Files of a Hugging Face data set, `OWNER/NAME[@REVISION]`, without those for evaluation: Parquet by their name, else JSON lines."""
    name, _, revision = dataset.partition("@")
    return Source(
        url=f"hf://datasets/{name}",
        revision=revision or None,
        include=include,
        exclude=EVALUATION_FILES,
        format="parquet" if include[0].endswith(".parquet") else "jsonl",
        text_key=text_key,
        filters=filters,
        max_bad_fraction=max_bad_fraction,
    )


def conversations(dataset: str, *include: str, layout: Conversation, packages: tuple[str, ...]) -> ComponentData:
    """A data set of conversations, and conversations in the same layout about these packages in its place."""
    source = hub(dataset, *include).but(conversation=layout.model_dump())
    return ComponentData(source=source, stand_in=asked_about(*packages, layout=layout))


def asked_about(*packages: str, layout: Conversation) -> StandIn:
    """Questions about the functions and classes of these packages, with what they say of themselves as the answers."""
    return stand_in("questions", *site(*packages), kilobytes=250).but(conversation=layout.model_dump())


def dolma(folder: str, prefix: str, files: int, *, max_bad_fraction: float = 0.0) -> Source:
    """Files of Dolma 1.7. The data set's repository (revision 7f48140) holds only their addresses, on a server that lists no folder."""
    include = tuple(f"{folder}/{prefix}-{number:04d}.json.gz" for number in range(files))
    return Source(url=DOLMA_FILES, include=include, format="jsonl", max_bad_fraction=max_bad_fraction)


def stand_in(
    view: str,
    *where: str,
    kilobytes: int,
    without: tuple[str, ...] = (),
    test_items: bool = False,
    followed_by: tuple[StandIn, ...] = (),
) -> StandIn:
    """At most so many kilobytes of a view of this installation's files, and then what it is followed by."""
    fields = {"view": view, "where": where, "without": without, "max_bytes": kilobytes * KILOBYTE}
    return StandIn.model_validate({**fields, "test_items": test_items, "followed_by": followed_by})


def site(*packages: str) -> tuple[str, ...]:
    """Every Python file of installed packages."""
    return tuple(f"site:{package}/**/*.py" for package in packages)
