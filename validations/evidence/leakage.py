"""Evidence about leakage: which test items stand in the token caches that the trainer will read.

The caches are turned back into text and scanned, not the sources: what was filtered from a source may still be in a cache.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from pydantic import Field
from tokenizers import Tokenizer

from trainer.config import Frozen
from trainer.data.cache import TokenCache
from trainer.storage import digest_of_json
from validations.evidence.caches import name_some
from validations.evidence.ngrams import MIN_ITEM_WORDS, Item, ItemIndex, split_words

DOCUMENTS_AT_ONCE = 32
TABLE_COLUMNS = (
    "component",
    "benchmark",
    "items",
    "items_hit",
    "documents_hit",
    "files",
    "documents_scanned",
    "scan_key",
    "expected_scan_key",
)
LEAKED_ITEM_COLUMNS = ("component", "benchmark", "item", "documents", "containment", "files", "excerpt")


class TextDocument(NamedTuple):
    """A document as text: its id, the file it came from, and what it says."""

    id: str
    source_file: str
    text: str


class Hit(Frozen):
    """One training document that contains one test item. `containment` is a share of the item's distinct n-grams."""

    component: str
    source_file: str
    document: str
    benchmark: str
    item: str
    containment: float
    excerpt: str


class CacheScan(Frozen):
    """The result of scanning one cache, to be kept beside it. `key` says of which bytes, for which items, by which rule."""

    component: str
    key: str
    documents: int = Field(ge=0)
    hits: tuple[Hit, ...]


def scan_key(manifest_digest: str, index: ItemIndex, min_containment: float) -> str:
    """Digest of everything that decides the result of a scan: a kept scan with this key need not be made again."""
    return digest_of_json({"cache": manifest_digest, "items": index.digest, "min_containment": min_containment})


def scan_cache(folder: str | Path, index: ItemIndex, tokenizer: Tokenizer, min_containment: float) -> CacheScan:
    """Scan every document of a token cache, detokenised.

    Raises:
        DataError: the folder is not a whole cache.
    """
    cache = TokenCache.open(folder)
    manifest = cache.manifest
    hits: list[Hit] = []
    documents, count = _detokenised(cache, tokenizer), 0
    while batch := list(islice(documents, DOCUMENTS_AT_ONCE)):
        hits += scan_documents(batch, index, component=manifest.component, min_containment=min_containment)
        count += len(batch)
    return CacheScan(component=manifest.component, key=scan_key(manifest.digest, index, min_containment), documents=count, hits=tuple(hits))


def scan_documents(documents: Sequence[TextDocument], index: ItemIndex, *, component: str, min_containment: float) -> list[Hit]:
    """The test items that stand in these documents, each document for itself."""
    return [
        Hit(
            component=component,
            source_file=documents[match.document].source_file,
            document=documents[match.document].id,
            benchmark=index.items[match.item].benchmark,
            item=index.items[match.item].id,
            containment=match.containment,
            excerpt=match.excerpt,
        )
        for match in index.matches([document.text for document in documents], min_containment)
    ]


def held_out_items(folder: str | Path, tokenizer: Tokenizer) -> list[Item]:
    """The documents of a held-out cache as test items of benchmark `held-out COMPONENT`, without those of fewer than five words."""
    cache = TokenCache.open(folder)
    benchmark = f"held-out {cache.manifest.component}"
    texts = {document.id: document.text for document in _detokenised(cache, tokenizer)}
    return [Item(benchmark, id, text) for id, text in texts.items() if len(split_words(text)) >= MIN_ITEM_WORDS]


def leakage_evidence(
    scans: Iterable[CacheScan], index: ItemIndex, *, manifest_digests: Mapping[str, str], min_containment: float
) -> pd.DataFrame:
    """One row for each component × benchmark, with its hits or with none.

    Args:
        scans: one for each component. A component without a scan has rows in which nothing was scanned.
        manifest_digests: component → digest of the manifest of the cache that will be read.
    """
    by_component = {scan.component: scan for scan in scans}
    rows = [
        _measure(component, benchmark, by_component.get(component), items)
        | {"expected_scan_key": scan_key(manifest_digest, index, min_containment)}
        for component, manifest_digest in manifest_digests.items()
        for benchmark, items in index.items_per_benchmark.items()
    ]
    return pd.DataFrame(rows, columns=list(TABLE_COLUMNS))


def leaked_items(scans: Iterable[CacheScan]) -> pd.DataFrame:
    """One row for each component × item that was hit: in how many documents, the highest containment, the files, an excerpt."""
    groups: dict[tuple[str, str, str], list[Hit]] = {}
    for hit in (hit for scan in scans for hit in scan.hits):
        groups.setdefault((hit.component, hit.benchmark, hit.item), []).append(hit)
    rows: list[dict[str, object]] = []
    for (component, benchmark, item), hits in groups.items():
        clearest = max(hits, key=lambda hit: hit.containment)
        rows.append(
            {
                "component": component,
                "benchmark": benchmark,
                "item": item,
                "documents": len({hit.document for hit in hits}),
                "containment": clearest.containment,
                "files": name_some(sorted({hit.source_file for hit in hits})),
                "excerpt": clearest.excerpt,
            }
        )
    return pd.DataFrame(rows, columns=list(LEAKED_ITEM_COLUMNS))


def _measure(component: str, benchmark: str, scan: CacheScan | None, items: int) -> dict[str, object]:
    hits = [hit for hit in scan.hits if hit.benchmark == benchmark] if scan else []
    return {
        "component": component,
        "benchmark": benchmark,
        "items": items,
        "items_hit": len({hit.item for hit in hits}),
        "documents_hit": len({hit.document for hit in hits}),
        "files": name_some(sorted({hit.source_file for hit in hits})),
        "documents_scanned": scan.documents if scan else 0,
        "scan_key": scan.key if scan else "none",
    }


def _detokenised(cache: TokenCache, tokenizer: Tokenizer) -> Iterator[TextDocument]:
    for document in cache.documents():
        text = tokenizer.decode(document.tokens.tolist(), skip_special_tokens=True)
        yield TextDocument(document.id, document.source_file, text)
