"""A source whose filter was changed after its cache was made: the test file is gone from the source, and still in the cache."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer

from experiments.leakage_recall.detectors import Detect, Found
from experiments.leakage_recall.formats import FORMATS
from experiments.leakage_recall.material import Material
from experiments.leakage_recall.measure import RecallRow, measure_recall, plant, sample
from phasewise.tasks.data.tokenizer import train_tokenizer
from phasewise.validations.evidence.leakage.detokenize import build_detokenizer
from phasewise.validations.evidence.leakage.scan import Document, cache_documents
from tests.validations.conftest import CacheMaker

CACHED_FORMAT = replace(FORMATS["OLMES's format"], name="dropped from the source, still in the cache")
TRAIN_FILE, DROPPED_FILE = "train.jsonl", "test.json"
VOCAB_SIZE = 600


def cached_row(material: Material, detect: Detect, folder: Path, *, count: int, reads_cache: bool) -> RecallRow:
    planted = plant(sample(material.by_benchmark, CACHED_FORMAT, count, material.seed), CACHED_FORMAT, material.hosts, material.seed)
    texts = [document.text.decode() for document in planted.documents]
    source = {TRAIN_FILE: list(material.hosts.paragraphs[: len(texts)]), DROPPED_FILE: texts}
    tokenizer = _tokenizer(texts, folder)
    cache = CacheMaker(folder, tokenizer).write("math", [*texts, *source[TRAIN_FILE]], file=DROPPED_FILE)

    def detect_there(documents: Sequence[Document]) -> list[Found]:
        if reads_cache:
            found = detect(list(cache_documents(cache, build_detokenizer(tokenizer))))
        else:
            included = [Document(TRAIN_FILE, number, str(number), text.encode()) for number, text in enumerate(source[TRAIN_FILE])]
            found = [*([{}] * len(documents)), *detect(included)]
        return list(found[: len(documents)])

    return measure_recall(material.by_key, CACHED_FORMAT, planted, detect_there)


def _tokenizer(texts: list[str], folder: Path) -> Tokenizer:
    train_tokenizer([texts], VOCAB_SIZE, folder / "tokenizer.json")
    return Tokenizer.from_file(str(folder / "tokenizer.json"))
