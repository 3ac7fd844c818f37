"""Material: items, paragraphs around planted items, and clean text. Material next to the checkout is real."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random

from experiments.leakage_recall.corpora import as_documents, clean_documents, host_paragraphs, prose_about_benchmarks, sibling_documents
from experiments.leakage_recall.detectors import Detect, Detector, ItemKey
from experiments.leakage_recall.formats import FORMATS, Format
from experiments.leakage_recall.made_items import made_items
from experiments.leakage_recall.measure import (
    MAX_CLEAN_ALARM_RATE,
    MAX_HARD_ALARM_RATE,
    MAX_SHARED_ALARM_RATE,
    AlarmRow,
    RecallRow,
    measure_alarms,
    measure_recall,
    plant,
    sample,
)
from experiments.leakage_recall.plants import Hosts
from experiments.leakage_recall.report import Table
from experiments.leakage_recall.shared_sentences import alone_in_prose, joined_in_prose
from phasewise.validations.evidence.leakage.item_files import read_benchmarks
from phasewise.validations.evidence.leakage.items import BenchmarkItem
from phasewise.validations.evidence.leakage.scan import Document
from tests.shared_data import shared_folder

SHARES_PASSAGES = "MMLU dev"
"""Its questions are about the very passages that test questions are about: reported, without a limit."""
HARD, CLEAN = "hard negatives, together", "clean text"


@dataclass(frozen=True)
class Material:
    items: list[BenchmarkItem]
    siblings: dict[str, list[tuple[Document, BenchmarkItem]]]
    clean: int
    long: int
    seed: int
    planted: Sequence[str] | None = None

    @classmethod
    def real(cls, *, clean: int, long: int = 0, seed: int = 0, one_in: int = 1, planted: Sequence[str] | None = None) -> "Material":
        folder = shared_folder("benchmarks")
        items = [item for place, item in enumerate(read_benchmarks(folder)) if item.is_example or place % one_in == 0]
        return cls(items, sibling_documents(folder, shared_folder("hard-negatives")), clean, long, seed, planted)

    @classmethod
    def made(cls, *, per_benchmark: int, siblings: int, clean: int, seed: int = 0) -> "Material":
        train = as_documents("made train split", made_items(siblings, seed + 1))
        return cls(made_items(per_benchmark, seed), {"made train split": train}, clean, 0, seed)

    @cached_property
    def by_key(self) -> dict[ItemKey, BenchmarkItem]:
        return {(item.benchmark, item.id): item for item in self.items}

    @cached_property
    def by_benchmark(self) -> dict[str, list[BenchmarkItem]]:
        groups: dict[str, list[BenchmarkItem]] = defaultdict(list)
        for item in self.items:
            if not item.is_example and (self.planted is None or item.benchmark in self.planted):
                groups[item.benchmark].append(item)
        return groups

    @cached_property
    def hosts(self) -> Hosts:
        return Hosts(host_paragraphs(Random(self.seed)))

    def table(self, detector: Detector, formats: list[Format] | None = None, count: int = 300) -> Table:
        """Recall on `count` items a format, and false alarms."""
        detect = detector(self.items)
        recall = [self.recall_row(dress, detect, count) for dress in formats or FORMATS.values()]
        return Table(recall, list(self.alarm_rows(detect)))

    def recall_row(self, dress: Format, detect: Detect, count: int) -> RecallRow:
        planted = plant(sample(self.by_benchmark, dress, count, self.seed), dress, self.hosts, self.seed)
        return measure_recall(self.by_key, dress, planted, detect)

    def alarm_rows(self, detect: Detect) -> Iterator[AlarmRow]:
        together = AlarmRow(HARD, MAX_HARD_ALARM_RATE)
        for name, pairs in self.siblings.items():
            documents, siblings = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
            row = AlarmRow(name, None if name == SHARES_PASSAGES else MAX_HARD_ALARM_RATE)
            measured = measure_alarms(row, documents, self.by_key, detect, siblings)
            yield measured if row.max_rate is None else self._add(together, measured)
        about = AlarmRow("prose about benchmarks", MAX_HARD_ALARM_RATE)
        yield self._add(together, measure_alarms(about, prose_about_benchmarks(), self.by_key, detect))
        yield together
        for name, made in (("alone", alone_in_prose), ("joined", joined_in_prose)):
            row = measure_alarms(
                AlarmRow(f"sentences that ten items share, {name}", MAX_SHARED_ALARM_RATE),
                made(self.items, self.hosts, self.seed),
                self.by_key,
                detect,
            )
            if row.documents:
                yield row
        documents = clean_documents(self.clean, Random(self.seed), long=self.long)
        yield measure_alarms(AlarmRow(CLEAN, MAX_CLEAN_ALARM_RATE), documents, self.by_key, detect)

    @staticmethod
    def _add(together: AlarmRow, row: AlarmRow) -> AlarmRow:
        together.documents += row.documents
        together.alarms += row.alarms
        return row
