"""Detectors: this project's scan, and controls that must fail."""

import re
import string
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from experiments.leakage_recall.views import part_text
from phasewise.flows.recipes.words import LEAKAGE
from phasewise.validations.evidence.leakage.index import LeakageIndex
from phasewise.validations.evidence.leakage.items import BenchmarkItem
from phasewise.validations.evidence.leakage.scan import Document, scan_documents

ItemKey = tuple[str, str]
Found = Mapping[ItemKey, str]
"""The items that were found in one document, by benchmark and id, with a word on why."""
Detect = Callable[[Sequence[Document]], Sequence[Found]]
Detector = Callable[[Sequence[BenchmarkItem]], Detect]
JANITOR_WORDS = 13


def ours(items: Sequence[BenchmarkItem]) -> Detect:
    index = LeakageIndex.build(items)

    def detect(documents: Sequence[Document]) -> Sequence[Found]:
        places = {(document.file, document.number): place for place, document in enumerate(documents)}
        found: list[dict[ItemKey, str]] = [{} for _ in documents]
        for hit in scan_documents(documents, index, LEAKAGE).hits:
            why = f"{hit.part} {hit.score:.2f}: {hit.excerpt}"
            found[places[hit.file, hit.document]].setdefault((hit.benchmark, hit.item), why)
        return found

    return detect


def everything(items: Sequence[BenchmarkItem]) -> Detect:
    """Finds every item in every document."""
    all_items = {_key(item): "always" for item in items}
    return lambda documents: [all_items] * len(documents)


def nothing(_items: Sequence[BenchmarkItem]) -> Detect:
    return lambda documents: [{}] * len(documents)


def file_names(items: Sequence[BenchmarkItem]) -> Detect:
    all_items = {_key(item): "the file's name" for item in items}
    return lambda documents: [all_items if document.file.rpartition("/")[2].startswith("test") else {} for document in documents]


def janitor(items: Sequence[BenchmarkItem]) -> Detect:
    owners: dict[int, list[ItemKey]] = defaultdict(list)
    for item in items:
        text = "\n".join(part_text(item, part) for part in ("question", "choices", "answer", "solution"))
        for gram in set(_grams(text)):
            owners[gram].append(_key(item))

    def detect(documents: Sequence[Document]) -> list[Found]:
        return [
            {key: "thirteen words" for gram in _grams(document.text.decode()) for key in owners.get(gram, ())} for document in documents
        ]

    return detect


def _key(item: BenchmarkItem) -> ItemKey:
    return item.benchmark, item.id


def _grams(text: str) -> list[int]:
    words = re.sub(f"[{re.escape(string.punctuation)}]", "", text.lower()).split()
    return [hash(tuple(words[start : start + JANITOR_WORDS])) for start in range(len(words) - JANITOR_WORDS + 1)]


DETECTORS: dict[str, Detector] = {
    "ours": ours,
    "everything": everything,
    "nothing": nothing,
    "file-name": file_names,
    "janitor-13": janitor,
}
