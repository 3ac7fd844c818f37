"""Sentences shared by many items of a benchmark, in prose: instructions and templates, which do not identify an item."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from random import Random

from experiments.leakage_recall.plants import Hosts, among_paragraphs, inside_a_sentence
from experiments.leakage_recall.views import words
from phasewise.validations.evidence.leakage.items import BenchmarkItem
from phasewise.validations.evidence.leakage.scan import Document

MIN_ITEMS, MIN_SENTENCE_WORDS = 10, 4
JOINED_DOCUMENTS, MOST_JOINED = 200, 6
_END = re.compile(r"(?<=[.?!:])\s+|\n+")


def shared_sentences(items: Iterable[BenchmarkItem]) -> dict[str, list[str]]:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for item in items:
        if not item.is_example:
            texts = (item.question, *item.choices, item.answer, *item.solutions, item.passage)
            counts[item.benchmark].update({sentence.strip() for text in texts for sentence in _END.split(text)})
    return {
        benchmark: sorted(one for one, count in found.items() if count >= MIN_ITEMS and len(words(one)) >= MIN_SENTENCE_WORDS)
        for benchmark, found in counts.items()
    }


def alone_in_prose(items: Iterable[BenchmarkItem], hosts: Hosts, seed: int) -> Iterator[Document]:
    rng = Random(f"{seed} alone")
    for benchmark, sentences in shared_sentences(items).items():
        for number, sentence in enumerate(sentences):
            yield _document(f"{benchmark}, alone", number, sentence, hosts, rng)


def joined_in_prose(items: Iterable[BenchmarkItem], hosts: Hosts, seed: int) -> Iterator[Document]:
    """Two to six of a benchmark's sentences, drawn at random, in one document."""
    rng = Random(f"{seed} joined")
    for benchmark, sentences in shared_sentences(items).items():
        for number in range(JOINED_DOCUMENTS if len(sentences) > 1 else 0):
            drawn = rng.sample(sentences, min(len(sentences), rng.randint(2, MOST_JOINED)))
            yield _document(f"{benchmark}, joined", number, " ".join(drawn), hosts, rng)


def _document(file: str, number: int, text: str, hosts: Hosts, rng: Random) -> Document:
    layout = among_paragraphs if number % 2 else inside_a_sentence
    return Document(file, number, f"{file}:{number}", layout(text, hosts, rng)[0].encode("utf-8", "replace"))
