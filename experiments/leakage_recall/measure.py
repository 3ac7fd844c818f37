"""Recall by format and false alarms by corpus, each against its target."""

import difflib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import sqrt
from random import Random

from experiments.leakage_recall.detectors import Detect, Found, ItemKey
from experiments.leakage_recall.formats import Format
from experiments.leakage_recall.plants import Hosts
from experiments.leakage_recall.views import PartAlone, part_text, words
from phasewise.validations.evidence.leakage.items import BenchmarkItem
from phasewise.validations.evidence.leakage.scan import Document

NORMAL_95 = 1.959964
MIN_TWIN_LIKENESS = 0.9
MAX_HARD_ALARM_RATE, MAX_CLEAN_ALARM_RATE, MAX_SHARED_ALARM_RATE = 0.001, 0.0001, 0.01
DOCUMENTS_AT_ONCE = 2_000
PLANTS_PER_FILE = 25
MAX_ALIKE = 3


@dataclass(frozen=True)
class Share:
    count: int
    of: int

    @property
    def value(self) -> float:
        return self.count / self.of if self.of else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        if not self.of:
            return 0.0, 1.0
        z2 = NORMAL_95**2
        middle = (self.value + z2 / (2 * self.of)) / (1 + z2 / self.of)
        half = NORMAL_95 * sqrt(self.value * (1 - self.value) / self.of + z2 / (4 * self.of**2)) / (1 + z2 / self.of)
        return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True)
class Miss:
    item: ItemKey
    planted: str


@dataclass
class RecallRow:
    name: str
    kind: str
    target: float | None
    by_benchmark: dict[str, Share] = field(default_factory=dict[str, Share])
    misses: list[Miss] = field(default_factory=list[Miss])
    others: int = 0

    @property
    def recall(self) -> Share:
        return Share(sum(share.count for share in self.by_benchmark.values()), sum(share.of for share in self.by_benchmark.values()))

    @property
    def passes(self) -> bool:
        return self.target is None or (self.recall.of > 0 and self.recall.value >= self.target)

    @property
    def may_pass(self) -> bool:
        return self.target is None or (self.recall.of > 0 and self.recall.interval[1] >= self.target)


@dataclass(frozen=True)
class Alarm:
    document: str
    item: ItemKey
    why: str
    twin: str | None


@dataclass
class AlarmRow:
    name: str
    max_rate: float | None
    documents: int = 0
    alarms: list[Alarm] = field(default_factory=list[Alarm])

    @property
    def twins(self) -> int:
        return len({alarm.document for alarm in self.alarms}) - self.rate.count

    @property
    def rate(self) -> Share:
        return Share(len({alarm.document for alarm in self.alarms if alarm.twin is None}), self.documents)

    @property
    def may_pass(self) -> bool:
        return self.documents > 0 and (self.max_rate is None or self.rate.interval[0] <= self.max_rate)

    @property
    def passes(self) -> bool:
        return self.documents > 0 and (self.max_rate is None or self.rate.value <= self.max_rate)


@dataclass(frozen=True)
class Planted:
    documents: list[Document]
    places: dict[ItemKey, range]
    texts: dict[ItemKey, str]


def sample(groups: Mapping[str, Sequence[BenchmarkItem]], dress: Format, count: int, seed: int) -> list[BenchmarkItem]:
    rng = Random(f"{seed} {dress.name}")
    turns = [filter(dress.suits, _drawn(group, rng)) for group in groups.values()]
    items: list[BenchmarkItem] = []
    while turns and len(items) < count:
        drawn = [(turn, next(turn, None)) for turn in turns]
        turns = [turn for turn, item in drawn if item is not None]
        items += [item for _, item in drawn if item is not None]
    shown = {name: Counter(text for item in group for text in set(_shown(item, dress))) for name, group in groups.items()}
    return [item for item in items[:count] if all(shown[item.benchmark][text] <= MAX_ALIKE for text in _shown(item, dress))]


def plant(items: Sequence[BenchmarkItem], dress: Format, hosts: Hosts, seed: int) -> Planted:
    rng = Random(f"{seed} {dress.name}")
    planted = Planted([], {}, {})
    for turn, start in enumerate(range(0, len(items), dress.pack)):
        group = items[start : start + dress.pack]
        texts = [dress.text(item, rng) for item in group]
        written = [dress.cover(text, rng) for text in dress.layout("\n\n".join(texts), hosts, rng)]
        first, number = len(planted.documents), turn // PLANTS_PER_FILE
        file = f"{dress.name}/{number}/{'test' if number % 4 == 0 else 'part'}.json"
        for text in [*written, hosts.text(rng)]:
            place = len(planted.documents)
            planted.documents.append(Document(file, place, f"{dress.name} {place}", text.encode("utf-8", "replace")))
        for item, text in zip(group, texts, strict=True):
            key = item.benchmark, item.id
            planted.places[key], planted.texts[key] = range(first, first + len(written)), text
    return planted


def measure_recall(items: Mapping[ItemKey, BenchmarkItem], dress: Format, planted: Planted, detect: Detect) -> RecallRow:
    found = detect(planted.documents)
    row = RecallRow(dress.name, dress.kind, dress.target)
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for key, places in planted.places.items():
        hit = any(key in found[place] for place in places)
        counts[key[0]][0] += hit
        counts[key[0]][1] += 1
        if not hit:
            row.misses.append(Miss(key, planted.texts[key]))
    row.by_benchmark = {benchmark: Share(hits, of) for benchmark, (hits, of) in sorted(counts.items())}
    row.others = _count_others(items, planted, found)
    return row


def measure_alarms(
    row: AlarmRow,
    documents: Iterable[Document],
    items: Mapping[ItemKey, BenchmarkItem],
    detect: Detect,
    siblings: Sequence[BenchmarkItem] = (),
) -> AlarmRow:
    for batch in _batches(documents):
        for place, (document, found) in enumerate(zip(batch, detect(batch), strict=True), start=row.documents):
            for key, why in islice(found.items(), 20):
                sibling = siblings[place] if siblings else None
                row.alarms.append(Alarm(document.id, key, why, twin_proof(items[key], document, sibling)))
        row.documents += len(batch)
    return row


def twin_proof(item: BenchmarkItem, document: Document, sibling: BenchmarkItem | None) -> str | None:
    text = " ".join(words(document.text.decode()))
    for part in ("question", "solution"):
        wanted = words(part_text(item, part))
        if len(wanted) >= 4 and f" {' '.join(wanted)} " in f" {text} ":
            return f"{part} word for word"
        if sibling is not None and wanted:
            likeness = difflib.SequenceMatcher(None, words(part_text(sibling, part)), wanted, autojunk=False).ratio()
            if likeness >= MIN_TWIN_LIKENESS:
                return f"{part} alike by {likeness:.2f}"
    return None


def _shown(item: BenchmarkItem, dress: Format) -> list[str]:
    is_alone = isinstance(dress.view, PartAlone)
    parts = [part for part in dress.view.parts if part_text(item, part)] if is_alone or len(dress.view.parts) == 1 else []
    return [" ".join(words(part_text(item, part))) for part in parts]


def _drawn(group: Sequence[BenchmarkItem], rng: Random) -> Iterator[BenchmarkItem]:
    items = list(group)
    for place in range(len(items)):
        other = rng.randrange(place, len(items))
        items[place], items[other] = items[other], items[place]
        yield items[place]


def _count_others(items: Mapping[ItemKey, BenchmarkItem], planted: Planted, found: Sequence[Found]) -> int:
    texts: dict[int, set[str]] = defaultdict(set)
    for key, places in planted.places.items():
        own = set(words(" ".join(part_text(items[key], part) for part in ("question", "choices", "solution"))))
        for place in places:
            texts[place] |= own
    return sum(any(_is_unlike(items[key], texts[place]) for key in named) for place, named in enumerate(found) if named)


def _is_unlike(item: BenchmarkItem, shown: set[str]) -> bool:
    own = {part: set(words(part_text(item, part))) for part in ("question", "solution")}
    return all(2 * len(part & shown) < len(part) for part in own.values() if part)


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    iterator = iter(documents)
    while batch := list(islice(iterator, DOCUMENTS_AT_ONCE)):
        yield batch
