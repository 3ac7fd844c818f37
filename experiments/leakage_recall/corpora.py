"""Clean text for false alarms: real text, sibling data sets, prose about benchmarks. Planted items are inserted into the same text."""

import itertools
import re
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

import orjson
from packaging.utils import canonicalize_name

from experiments.bench.real_text import real_texts
from phasewise.tasks.data.stand_ins import required_packages, roots, texts_of
from phasewise.validations.evidence.leakage.items import BenchmarkItem
from phasewise.validations.evidence.leakage.scan import Document
from tests.shared_data import ROOT

MIN_BYTES, MAX_BYTES, MIN_LONG_BYTES = 200, 4_000, 50_000
MIN_PARAGRAPH_WORDS, MAX_PARAGRAPH_WORDS = 15, 200
# Packages with benchmark prompts and items, which are not clean text.
CARRIERS = ("lm_eval", "evaluate")
ABOUT = Path(__file__).parent / "about_benchmarks.txt"


def corpus_files() -> list[Path]:
    return sorted((ROOT / "corpora").glob("*.txt"))


def host_paragraphs(rng: Random) -> list[str]:
    """Paragraphs of encyclopedia, plays, the language reference and descriptions of required packages, neighbours together."""
    texts = [path.read_text(encoding="utf-8") for path in corpus_files()]
    texts += texts_of("topics", (roots()["stdlib"] / "pydoc_data" / "topics.py").read_text(encoding="utf-8"), "")
    required = required_packages()
    installed = sorted(roots()["site"].glob("*.dist-info/METADATA"))
    descriptions = (path for path in installed if canonicalize_name(path.parent.name.partition("-")[0]) in required)
    texts += itertools.chain.from_iterable(
        texts_of("text", path.read_text(encoding="utf-8", errors="replace"), "") for path in descriptions
    )
    blocks = [[block for block in _blocks(text) if MIN_PARAGRAPH_WORDS <= len(block.split()) <= MAX_PARAGRAPH_WORDS] for text in texts]
    rng.shuffle(blocks)
    return [block for group in blocks for block in group]


def clean_documents(count: int, rng: Random, *, long: int = 0) -> Iterator[Document]:
    prose = [Document(path.name, 0, path.name, path.read_bytes()) for path in corpus_files()]
    made = itertools.chain(
        itertools.islice(_cut(prose, rng), count // 3),
        _cut((_document("prose", text) for text in host_paragraphs(rng)[: count // 10]), rng),
    )
    installed = (_document(f"installed-{number // 50}", text, number) for number, text in enumerate(_installed(2**40)))
    yield from itertools.islice(itertools.chain(made, _cut(installed, rng)), count)
    whole = (_document("long", "\n\n".join(texts), number) for number, texts in enumerate(_in_batches(_installed(2**40), MIN_LONG_BYTES)))
    yield from itertools.islice(whole, long)


def sibling_documents(folder: Path, siblings: Path) -> dict[str, list[tuple[Document, BenchmarkItem]]]:
    found = {
        "GSM8K train": _rows(folder / "gsm8k" / "train.jsonl"),
        "MBPP prompt, train, validation": list(
            itertools.chain.from_iterable(_rows(folder / "mbpp" / f"{split}.jsonl") for split in ("prompt", "train", "validation"))
        ),
        "MMLU dev": _rows(folder / "mmlu" / "dev.jsonl"),
        "SVAMP": _rows(siblings / "svamp" / "test.jsonl"),
        "MathQA": _rows(siblings / "mathqa" / "test.jsonl"),
    }
    return {
        name: as_documents(name, [_sibling(name, number, row) for number, row in enumerate(rows)]) for name, rows in found.items() if rows
    }


def as_documents(name: str, items: Iterable[BenchmarkItem]) -> list[tuple[Document, BenchmarkItem]]:
    file = f"{name.split(',')[0].replace(' ', '-').lower()}/test.jsonl"
    return [(_document(file, _as_text(item), number), item) for number, item in enumerate(items)]


def prose_about_benchmarks() -> list[Document]:
    pieces = ABOUT.read_text(encoding="utf-8").split("\n---\n")
    return [_document(ABOUT.name, piece.strip(), number) for number, piece in enumerate(pieces)]


def _sibling(name: str, number: int, row: dict[str, object]) -> BenchmarkItem:
    question = str(row.get("question") or row.get("text") or row.get("query") or f"{row.get('Body')} {row.get('Question')}")
    choices = row.get("choices") if "subject" in row else re.findall(r"^[A-E]\. (.*)", question, re.MULTILINE) if "query" in row else ()
    if "query" in row:
        question = re.sub(r"\A\s*Question:\s*|\s+A\. .*", "", question, flags=re.DOTALL)
    solution = str(next((row[column] for column in ("code", "answer", "Answer") if column in row), ""))
    if "subject" in row:
        solution = "ABCD"[int(solution)]
    return BenchmarkItem(name, name, str(number), question, tuple(map(str, choices)) if isinstance(choices, list) else (), "", (solution,))


def _as_text(item: BenchmarkItem) -> str:
    choices = "".join(f"\n{letter}. {choice}" for letter, choice in zip("ABCDEFGHIJ", item.choices, strict=False))
    return f"Question: {item.question}{choices}\nAnswer: {item.solutions[0] if item.solutions else item.answer}"


def _rows(path: Path) -> list[dict[str, object]]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()] if path.is_file() else []


def _document(file: str, text: str, number: int = 0) -> Document:
    return Document(file, number, f"{file}:{number}", text.encode("utf-8", "replace"))


def _installed(max_bytes: int) -> Iterator[str]:
    paths = sysconfig.get_paths()
    site = sorted(path for path in Path(paths["purelib"]).iterdir() if path.is_dir() and not path.name.startswith(CARRIERS))
    return real_texts(max_bytes, Path(paths["stdlib"]), *site)


def _cut(documents: Iterable[Document], rng: Random) -> Iterator[Document]:
    for file, found in itertools.groupby(documents, key=lambda document: document.file):
        number = 0
        for document in found:
            start, text = 0, document.text
            while len(text) - start >= MIN_BYTES:
                stop = min(len(text), start + round(MIN_BYTES * (MAX_BYTES / MIN_BYTES) ** rng.random()))
                space = re.compile(rb"\s").search(text, stop)
                stop = space.start() if space else len(text)
                piece = text[start:stop]
                if MIN_BYTES <= len(piece) <= MAX_BYTES:
                    yield Document(file, number, f"{file}:{number}", piece)
                    number += 1
                start = stop


def _in_batches(texts: Iterable[str], min_bytes: int) -> Iterator[list[str]]:
    batch, size = list[str](), 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= min_bytes:
            yield batch
            batch, size = [], 0


def _blocks(text: str) -> list[str]:
    return [block.strip() for block in re.split(r"\n\s*\n", text)]
