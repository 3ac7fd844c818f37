"""The leakage scan against the peers' decontamination: the same documents in memory, one core, turn by turn.

The peers index their own list of items, in runs of thirteen words. This project looks for those, and for all that it has.
"""

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from experiments.bench.measure import Options, Row, in_turns, seconds
from experiments.bench.peers import Place
from experiments.bench.scan_process import LIMITS
from phasewise.validations.evidence.leakage.index import LeakageIndex
from phasewise.validations.evidence.leakage.items import BenchmarkItem
from phasewise.validations.evidence.leakage.scan import Document, Scan, scan_documents

MEGABYTES_VARIABLE = "PEERS_MB"
SAME_ITEMS = "the peers' own items"


@dataclass(frozen=True)
class Peer:
    name: str
    venv: str
    command: str
    at_least: float


PEERS = (
    Peer("datatrove's n-grams", "dt", "d_leak_datatrove.py", 20),
    Peer("lm-eval's janitor", "torch", "d_leak_janitor.py", 5),
    Peer("dolma's 13-gram filter", "dolma", "d_leak_dolma.py ngram", 1.5),
)


@dataclass(frozen=True)
class Corpus:
    documents: tuple[Document, ...]
    is_planted: tuple[bool, ...]

    @classmethod
    def read(cls, path: Path, megabytes: int) -> "Corpus":
        documents = list[Document]()
        planted = list[bool]()
        size = 0
        with path.open("rb") as lines:
            for number, line in enumerate(lines):
                row = orjson.loads(line)
                documents.append(Document(path.name, number, row["id"], row["text"].encode()))
                planted.append(bool(row["planted"]))
                size += len(documents[-1].text)
                if size >= megabytes * 1e6:
                    break
        return cls(tuple(documents), tuple(planted))

    @property
    def num_bytes(self) -> int:
        """Of the texts."""
        return sum(len(document.text) for document in self.documents)

    def found(self, scan: Scan) -> dict[str, Any]:
        flagged = {hit.document for hit in scan.hits}
        counts = [sum(number in flagged for number, is_one in enumerate(self.is_planted) if is_one is side) for side in (True, False)]
        planted = sum(self.is_planted)
        return {"planted": planted, "found": counts[0], "flagged_unplanted": counts[1], "unplanted": len(self.is_planted) - planted}


def demanded(items_of: str) -> Iterator[Row]:
    for peer in PEERS:
        yield Row(_name(items_of, peer), None, at_least=peer.at_least, note="see below")


def compared(place: Place, index: Path, items_of: str, options: Options) -> Iterator[Row]:
    corpus = Corpus.read(place.data / "corpus.jsonl", options.megabytes)
    indexes = {items_of: LeakageIndex.load(index), SAME_ITEMS: LeakageIndex.build(read_peer_items(place.data / "test_items.jsonl"))}
    found: dict[str, dict[str, Any]] = {}

    def ours(name: str) -> float:
        scans: list[Scan] = []
        took = seconds(lambda: scans.append(scan_documents(corpus.documents, indexes[name], LIMITS)))
        found[name] = corpus.found(scans[0])
        return corpus.num_bytes / took / 1e6

    def theirs(peer: Peer) -> float:
        found[peer.name] = place.measure(peer.venv, peer.command)
        return found[peer.name]["mb_s"]

    os.environ[MEGABYTES_VARIABLE] = str(options.megabytes)
    scan_documents(corpus.documents[:1], indexes[SAME_ITEMS], LIMITS)  # compiles
    sides = {name: partial(ours, name) for name in indexes} | {peer.name: partial(theirs, peer) for peer in PEERS}
    rates = in_turns(sides, options.repeats)
    for name in indexes:
        for peer in PEERS:
            demand = peer.at_least if name == items_of else None
            note = f"{rates[name]:.1f} and {rates[peer.name]:.2f} MB/s of {corpus.num_bytes / 1e6:.0f} MB"
            yield Row(_name(name, peer), rates[name] / rates[peer.name], at_least=demand, note=note)
    yield from _recall(found, indexes.keys())


def _recall(found: Mapping[str, Mapping[str, Any]], ours: Collection[str]) -> Iterator[Row]:
    best = max(found[peer.name]["found"] for peer in PEERS)
    for name, counts in found.items():
        flagged = f"{counts['flagged_unplanted']} of {counts['unplanted']} others flagged"
        share, least = counts["found"] / counts["planted"], best / counts["planted"]
        yield Row(f"planted items found, {name}", share, at_least=least if name in ours else None, note=flagged)


def read_peer_items(path: Path) -> list[BenchmarkItem]:
    items: list[BenchmarkItem] = []
    for line in path.read_bytes().splitlines():
        row = orjson.loads(line)
        is_choice = row["task"] == "mmlu"
        choices, solutions = ((row["label"],), ()) if is_choice else ((), (row["label"],))
        items.append(BenchmarkItem(row["task"], row["task"], row["id"], row["query"], choices, "", solutions))
    return items


def _name(items_of: str, peer: Peer) -> str:
    return f"scan for {items_of}, times as fast as {peer.name}"
