"""Tiny token caches made by hand, and the evidence of a phase that is in order."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from phasewise.trainer.config import DataOrder, MixtureShares, Steps, always
from phasewise.trainer.data.manifest import SourceFile, read_manifest, write_manifest
from phasewise.trainer.data.mixture import MixtureSchedule
from phasewise.validations.evidence.caches import cache_evidence, differences_evidence, hand_off_evidence
from phasewise.validations.evidence.mixture import PACKING_COLUMNS, mixture_evidence
from phasewise.validations.expectations.judging import load_library
from phasewise.validations.expectations.suites import SUITES, Check
from phasewise.validations.limits import DataLimits, LeakageLimits, OrderLimits, PackingLimits
from phasewise.validations.verdict import DataEvidence
from tests.trainer.token_caches import write_token_cache

PROSE = {
    "wikipedia": "The river rises in the northern hills and runs for two hundred miles through farms and towns before it meets the sea.",
    "starcoderdata": "def read_lines(path): open the file, strip every line, drop the empty ones and give back what is left, sorted.",
}
PLANTED = "Quiz night. Which of these metals melts in a warm hand: iron, gallium, copper or tin? Gallium. Well done."
BENCHMARKS = {"continuation": 20, "held-out wikipedia": 7}  # benchmark → items, of the scan whose outcome `data_evidence` tells


@pytest.fixture(scope="session", autouse=True)
def library():
    return load_library()


def build_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<|begin|>", "<|end|>"], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(PROSE.values(), trainer)
    return tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return build_tokenizer()


@dataclass(frozen=True)
class CacheMaker:
    """Writes caches as data preparation does."""

    root: Path
    tokenizer: Tokenizer

    def write(self, component: str, texts: Sequence[str], *, file: str = "part-0.jsonl", split: str = "train") -> Path:
        """A cache of one shard, in which every text is a document of `file`."""
        folder, name = self.root / split / component, f"sources/{component}/{file}"
        documents = [np.array([0, *self.tokenizer.encode(text).ids, 1], np.uint16) for text in texts]
        write_token_cache(folder, [documents], source_files=[[name] * len(texts)])
        sources = (SourceFile(name=name, size_bytes=1, digest=f"digest of {component}"),)
        text_bytes = len("".join(texts).encode())
        write_manifest(folder, read_manifest(folder).but(split=split, sources=sources, text_bytes=text_bytes))
        return folder


@pytest.fixture
def caches(tmp_path: Path, tokenizer: Tokenizer) -> CacheMaker:
    return CacheMaker(tmp_path, tokenizer)


DATA_LIMITS = DataLimits(
    max_share_error_points=0.5, max_share_error_percent=25.0, max_epochs=4.0,
    leakage=LeakageLimits(min_words=13, min_score=0.7, min_copy_share=0.8, max_items=0),
    order=OrderLimits(false_alarm_rate=1e-3, max_shift_deviations=0.5),
    packing=PackingLimits(min_counted_percent=5.0, max_cut_percent=10.0, max_padding_percent=20.0),
)  # fmt: skip


def order_checks(limits: OrderLimits, tables: Mapping[str, pd.DataFrame]) -> list[Check]:
    suite = SUITES["data"]
    every = {name: tables.get(name, pd.DataFrame()) for name in suite.tables}
    thresholds = DATA_LIMITS.model_copy(update={"order": limits}).model_dump()
    return [check for check in suite.checks(thresholds, every) if check.table in tables and "mixture draws" not in check.asks]


PACKING = ("greedy", "answers", 20, 8, 1024, 950, 7.2, 1, 5.0, 12, 1.2, 400, 42.1, 0)
ORDER = {
    "permutation": "feistel", "measure": "serial correlation", "bound": "max", "passes": True, "detail": "", "rows": 300, "drawn": 200,
    "value": 0.01, "limit": 0.1, "components": 2, "components_failing": 0, "p_value": 0.5, "judged_p_value": 0.5,
}  # fmt: skip
SHIFT = {
    "signal": "source file", "rows_looked_at": 200, "change_at_step": 50, "before": 1.0, "after": 1.01, "shift_deviations": 0.01,
    "p_value": 0.5, "sure_deviations": 0.0,
}  # fmt: skip


@pytest.fixture
def data_evidence(caches: CacheMaker) -> Callable[..., DataEvidence]:
    """The evidence of a phase over two caches in order.

    `extra` plants documents into components, each with an item of its own of benchmark `continuation`; `drawn` moves the realised counts.
    """

    def build(extra: dict[str, list[str]] | None = None, drawn: dict[str, int] | None = None) -> DataEvidence:
        planted = extra or {}
        folders = {name: caches.write(name, [text, *planted.get(name, [])]) for name, text in PROSE.items()}
        return DataEvidence(
            caches=cache_evidence(folders),
            differences=differences_evidence({name: [] for name in folders}, folders),
            mixture=_mixture(drawn or {"wikipedia": 600, "starcoderdata": 200}),
            leakage=_leakage(planted),
            leaked_items=_leaked_items(planted),
            order=pd.DataFrame([{"component": name, **ORDER} for name in PROSE]),
            shifts=pd.DataFrame([{"component": name, **SHIFT} for name in PROSE]),
            packing=pd.DataFrame([(name, *PACKING) for name in PROSE], columns=list(PACKING_COLUMNS)),
            hand_off=hand_off_evidence(["mixture"], {"mixture": ("wikipedia 100", "wikipedia 75, starcoderdata 25")}),
        )

    return build


def _leakage(planted: dict[str, list[str]]) -> pd.DataFrame:
    rows: list[dict[str, object]] = []
    for component in PROSE:
        for benchmark, items in BENCHMARKS.items():
            hit = len(planted.get(component, [])) if benchmark == "continuation" else 0
            counts = {"items": items, "items_hit": hit, "hit_percent": 100 * hit / items, "documents_hit": hit, "tokens_hit": 30 * hit}
            scan = {"documents_scanned": 1 + len(planted.get(component, [])), "items_out_of_reach": 1}
            keys = dict.fromkeys(("scan_key", "expected_scan_key"), f"scan of {component}")
            files = f"sources/{component}/part-0.jsonl" if hit else ""
            rows.append({"component": component, "benchmark": benchmark, **counts, "files": files, **scan, **keys})
    return pd.DataFrame(rows)


def _leaked_items(planted: dict[str, list[str]]) -> pd.DataFrame:
    columns = ("component", "benchmark", "item", "part", "score", "documents", "files", "excerpt", "start", "end")
    rows: list[tuple[object, ...]] = []
    for component, texts in planted.items():
        for number, text in enumerate(texts):
            place = (str(1 + number), f"sources/{component}/part-0.jsonl", text, 12, 90)
            rows.append((component, "continuation", f"mc-{12 + number:04}", "question", 1.0, *place))
    return pd.DataFrame(rows, columns=list(columns))


@dataclass
class Drawn(MixtureSchedule):
    """A schedule that has drawn these sequences, whatever the steps."""

    mixture: Steps[MixtureShares]
    order: DataOrder
    drawn: dict[str, int]

    def realised(self, start_step: int, stop_step: int) -> dict[str, int]:
        return self.drawn

    def cut_at(self, step: int) -> int:
        return 0


def _mixture(drawn: dict[str, int]) -> pd.DataFrame:
    mixture: Steps[MixtureShares] = always({"wikipedia": 75.0, "starcoderdata": 25.0})
    schedule = Drawn(mixture, DataOrder(seed=0, permutation="linear", block_sequences=100), drawn)
    return mixture_evidence(schedule, start_step=0, stop_step=100, rows={"wikipedia": 300, "starcoderdata": 200}, seq_len=32)
