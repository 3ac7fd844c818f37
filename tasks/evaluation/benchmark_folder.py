"""Benchmarks on disk: JSON lines and lm-eval's YAML in one folder, the manifest written last."""

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field, ValidationError

from phasewise.tasks.evaluation.benchmarks import (
    Baseline,
    HeldOut,
    NextWordItem,
    WordOrderItem,
    build_next_word,
    build_word_order,
    next_word_baseline,
    word_order_baseline,
)
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.frozen import Frozen, in_one_line
from phasewise.trainer.base.identity import check_file, digest_of_bytes, digest_of_json, read_sealed, write_sealed
from phasewise.trainer.base.storage import as_path, write_atomically

FORMAT_VERSION = 2
MANIFEST_NAME = "manifest.json"
Item = WordOrderItem | NextWordItem


class Benchmark(Frozen):
    """One benchmark of the folder: its items in `{name}.jsonl`, how lm-eval runs it in `{name}.yaml`."""

    name: Literal["word_order", "next_word"]
    metric: Literal["acc", "exact_match"]
    items: int = Field(gt=0)
    baseline: Baseline
    items_digest: str
    definition_digest: str

    @property
    def files(self) -> dict[str, str]:
        """Its files by name, and the digest of each."""
        return {f"{self.name}.jsonl": self.items_digest, f"{self.name}.yaml": self.definition_digest}


class BenchmarkManifest(Frozen):
    """Written last: a folder without one holds no benchmarks."""

    format_version: int
    benchmarks: tuple[Benchmark, ...]

    @property
    def digest(self) -> str:
        """Names these benchmarks by their content."""
        return digest_of_json(self.model_dump(mode="json"))

    def only(self, names: Collection[str]) -> "BenchmarkManifest":
        """Those of these names, in the folder's order: all of them are the folder itself.

        Raises:
            DataError: the folder has none of that name.
        """
        there = [benchmark.name for benchmark in self.benchmarks]
        if missing := sorted(set(names) - set(there)):
            raise DataError(f"the benchmarks {', '.join(missing)} are not made here; there are {', '.join(there)}.")
        chosen = tuple(benchmark for benchmark in self.benchmarks if benchmark.name in names)
        return BenchmarkManifest(format_version=self.format_version, benchmarks=chosen)


class MadeItem(NamedTuple):
    """What a leakage search needs to know of an item."""

    benchmark: str
    id: str
    text: str


def write_benchmarks(folder: str | Path, held_out: HeldOut) -> BenchmarkManifest:
    """Build both benchmarks and write them into the folder, the manifest last.

    Args:
        held_out: component → its held-out documents.
    """
    word_order = build_word_order(held_out)
    next_word = build_next_word(held_out)
    contents: dict[str, bytes] = {}
    benchmarks = (
        _add(contents, "word_order", "acc", word_order, word_order_baseline(word_order)),
        _add(contents, "next_word", "exact_match", next_word, next_word_baseline(next_word)),
    )
    manifest = BenchmarkManifest(format_version=FORMAT_VERSION, benchmarks=benchmarks)
    for name, content in contents.items():
        write_atomically(as_path(folder) / name, content)
    write_sealed(as_path(folder) / MANIFEST_NAME, manifest.model_dump(mode="json"))
    return manifest


def read_benchmark_folder(folder: str | Path) -> BenchmarkManifest:
    """The manifest, once every file it names has the content it says.

    Raises:
        DataError: the manifest or a file is missing, or is not what the manifest says.
    """
    path = as_path(folder) / MANIFEST_NAME
    try:
        manifest = BenchmarkManifest.model_validate(read_sealed(path))
    except FileNotFoundError:
        raise DataError(f"{folder} holds no benchmarks: it has no {MANIFEST_NAME}. Write them with `phasewise data prepare`.") from None
    except (ValidationError, ValueError) as error:
        raise DataError(
            f"{path} does not read as a manifest of benchmarks: {in_one_line(error)}. Delete {folder} and prepare the data again."
        ) from None
    if manifest.format_version != FORMAT_VERSION:
        raise DataError(f"{path} has format version {manifest.format_version}, this program reads {FORMAT_VERSION}: write it again.")
    for benchmark in manifest.benchmarks:
        for name, digest in benchmark.files.items():
            check_file(as_path(folder) / name, digest, f"Delete {folder} and prepare the data again.")
    return manifest


def benchmark_items(folder: str | Path) -> list[MadeItem]:
    """Every item of every benchmark, for the leakage index: the opening with its true word_order or answer."""
    items: list[MadeItem] = []
    for benchmark in read_benchmark_folder(folder).benchmarks:
        kind = WordOrderItem if benchmark.name == "word_order" else NextWordItem
        lines = (as_path(folder) / f"{benchmark.name}.jsonl").read_text(encoding="utf-8").split("\n")
        read = [kind.model_validate_json(line) for line in lines if line]
        items.extend(MadeItem(benchmark.name, item.id, item.text) for item in read)
    return items


def _add(
    contents: dict[str, bytes],
    name: Literal["word_order", "next_word"],
    metric: Literal["acc", "exact_match"],
    items: Sequence[Item],
    baseline: Baseline,
) -> Benchmark:
    """Put a benchmark's files into `contents`, and describe them."""
    lines = "".join(json.dumps(item.model_dump(mode="json"), ensure_ascii=False) + "\n" for item in items).encode()
    definition = Path(__file__).with_name(f"{name}.yaml").read_bytes()
    contents |= {f"{name}.jsonl": lines, f"{name}.yaml": definition}
    return Benchmark(
        name=name,
        metric=metric,
        items=len(items),
        baseline=baseline,
        items_digest=digest_of_bytes(lines),
        definition_digest=digest_of_bytes(definition),
    )
