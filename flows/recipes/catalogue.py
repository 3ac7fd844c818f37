"""The catalogue: components by name, with their data sets and the proxy data sets of proxy scale (`catalogue.yaml`)."""

from pathlib import Path
from typing import Any

from phasewise.tasks.data.source import Source
from phasewise.tasks.data.stand_ins import StandIn
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.storage import read_yaml

CRAWL_BAD_FRACTION = 1e-4
"""Text from web crawls may have one bad record in ten thousand, fewer than the rounding of a mixture's blocks (1 in 2048). A file in an
unexpected format has only bad records and fails."""
SPLITS_FOR_EVALUATION = ("test", "dev", "val", "valid", "validation", "eval")
EVALUATION_FILES = tuple(glob for name in SPLITS_FOR_EVALUATION for glob in (f"{name}[-_./]*", f"*[-_/]{name}[-_./]*"))
"""Names of evaluation files: a folder (`gsm8k/test/0.jsonl`), or a part of a file name (`train_test.jsonl`)."""
COMMON_CRAWL = "https://data.commoncrawl.org"
NEMOTRON = "contrib/Nemotron/Nemotron-CC/data-jsonl"


class ComponentData(Frozen):
    """The text of a component at either scale.

    `source`: None if the data are not public. At full scale, the recipe must then provide a source. `stand_in`: the proxy data set. None if
    no phase draws from the component.
    """

    source: Source | None
    stand_in: StandIn | None


def _stand_in(row: dict[str, Any]) -> StandIn:
    for name in ("where", "without"):
        row[name] = tuple(entry if ":" in entry else f"site:{entry}/**/*.py" for entry in row.get(name, ()))
    row["max_bytes"] = 1000 * row.pop("kilobytes")
    row["followed_by"] = tuple(_stand_in(part) for part in row.get("followed_by", ()))
    return StandIn.model_validate(row)


def _read() -> dict[str, ComponentData]:
    rows: dict[str, Any] = read_yaml(Path(__file__).with_suffix(".yaml"))
    found: dict[str, ComponentData] = {}
    for name, row in rows.items():
        source = row["source"] or {}
        if dataset := source.pop("hub", None):
            repository, _, revision = dataset.partition("@")
            source |= {"url": f"hf://datasets/{repository}", "revision": revision or None, "exclude": EVALUATION_FILES}
            source["format"] = "parquet" if source["include"][0].endswith(".parquet") else "jsonl"
        elif prefix := source.pop("dolma", None):  # the repository (revision 7f48140) has only addresses on a server without listings
            include = [f"{prefix}-{number:04d}.json.gz" for number in range(source.pop("files"))]
            source |= {"url": "https://olmo-data.org/dolma-v1_7", "include": include, "format": "jsonl"}
        elif subset := source.pop("nemotron", None):  # Common Crawl's server has no listings, but a list of all paths
            quality, kind = subset.split("/")
            include = [f"{NEMOTRON}/quality={quality}/kind={kind}/*CC-MAIN-*.jsonl.zstd"]
            source |= {"url": COMMON_CRAWL, "listing": f"{COMMON_CRAWL}/{NEMOTRON}.paths.gz", "include": include}
            source |= {"format": "jsonl", "max_bad_fraction": CRAWL_BAD_FRACTION}
        found[name] = ComponentData(
            source=Source.model_validate(source) if source else None, stand_in=_stand_in(row["stand_in"]) if row["stand_in"] else None
        )
    return found


CATALOGUE = _read()
