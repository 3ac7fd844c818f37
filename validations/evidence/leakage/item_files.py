"""Reading benchmark items from JSON lines or JSON: one file, the folder of a benchmark, or a folder of such folders."""

import gzip
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple, cast

from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.storage import parse_json
from phasewise.validations.evidence.leakage.items import (
    QUESTIONS,
    BenchmarkItem,
    Fields,
    ParsedRow,
    as_item,
    first_index,
    merge_equal,
    parse_row,
)

LINES, LIST = (".jsonl", ".jsonl.gz"), (".json", ".json.gz")
TEST, VALIDATION = {"test", "tests"}, {"validation", "valid", "val"}
EXAMPLES = {"train", "training", "dev", "prompt", "prompts", "fewshot", "shot", "shots"}
DEV_FOR_EVALUATION = "dev rand"  # CommonsenseQA's name of its evaluated split
MAX_EXAMPLES = 20_000
WORD = re.compile(r"[a-z0-9]+")
SHARD_NUMBER = re.compile(r"\d+|of|part")


class _ItemFile(NamedTuple):
    path: Path
    benchmark: str
    task: str


def read_items(path: Path) -> list[BenchmarkItem]:
    """Read the test items of a file, a benchmark's folder, or a folder of such folders, and merge equal items of a benchmark.

    In a folder, the function reads the files of the test split, else of the validation split, else files without the name of a split. A
    single file is read whatever its name.
    """
    files = [_lone_file(path)] if path.is_file() else _files(path, is_example=False)
    if not files:
        found = "none" if path.exists() else "no such file or folder"
        raise DataError(
            f"{path} must be a file or a folder of benchmark items (.jsonl, .jsonl.gz or .json), found {found}. "
            "Files of a folder that are named train, dev or prompt are not test items; a file given by itself is read."
        )
    items: list[BenchmarkItem] = []
    taken: set[tuple[str, str]] = set()
    for file in files:
        rows = list(_parsed_rows(file.path))
        first = first_index(parsed for _, parsed in rows)
        for line, parsed in rows:
            location = f"{_stem(file.path)}:{line}"
            id = parsed.id or location
            id = id if (file.benchmark, id) not in taken else f"{id} ({location})"
            taken.add((file.benchmark, id))
            items.append(as_item(parsed, first=first, benchmark=file.benchmark, task=file.task, id=id))
    if not items:
        raise DataError(
            f"{', '.join(str(file.path) for file in files)} must have at least one item, found none. Write one JSON object a line."
        )
    return merge_equal(items)


def read_examples(folder: Path) -> list[BenchmarkItem]:
    """Read up to `MAX_EXAMPLES` items per file of other splits, such as train. Unreadable files are skipped."""
    examples: list[BenchmarkItem] = []
    for file in _files(folder, is_example=True):
        rows: list[tuple[int, ParsedRow]] = []
        with suppress(DataError):  # examples are optional
            rows = list(islice(_parsed_rows(file.path), MAX_EXAMPLES))
        first = first_index(parsed for _, parsed in rows)
        for line, parsed in rows:
            item = as_item(parsed, first=first, benchmark=file.benchmark, task=file.task, id=f"{file.path.relative_to(folder)}:{line}")
            examples.append(item._replace(is_example=True))
    return merge_equal(examples)


def read_benchmarks(path: Path) -> list[BenchmarkItem]:
    """Read the items of an index: test items, then examples."""
    return [*read_items(path), *(read_examples(path) if path.is_dir() else [])]


def _files(folder: Path, *, is_example: bool) -> list[_ItemFile]:
    """List the files of test items, or of examples, in a benchmark's folder or in a folder of benchmarks."""
    inner = [child for child in sorted(folder.glob("*")) if child.is_dir() and not child.name.startswith(".")]
    is_benchmark = all(_split_words(child.name) for child in inner)
    files: list[_ItemFile] = []
    if not (is_benchmark or is_example):
        files += [_lone_file(path) for path in _by_split(folder, folder.glob("*"))[0]]
    for benchmark in [folder] if is_benchmark else inner:
        tests, examples = _by_split(benchmark, benchmark.rglob("*"))
        for path in examples if is_example else tests:
            task = benchmark.name if len(tests) == 1 else _task(path) or benchmark.name
            files.append(_ItemFile(path, benchmark.name, task))
    return files


def _by_split(folder: Path, paths: Iterator[Path]) -> tuple[list[Path], list[Path]]:
    """Return the files of the test split, else of the validation split, else of no split, and the files of unevaluated splits.

    Item files are known by their suffix. Next to `.jsonl` files, a `.json` file is a description.
    """
    seen = [
        path
        for path in sorted(paths, key=lambda path: (path.parent, _stem(path)))
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]
    seen = [path for path in seen if path.name.endswith(LINES)] or [path for path in seen if path.name.endswith(LIST)]
    kinds: dict[Path, str] = {}
    for path in seen:
        words = {word for part in (*path.relative_to(folder).parts[:-1], _stem(path)) for word in _split_words(part)}
        if words & TEST:
            kinds[path] = "test"
        elif words & VALIDATION or DEV_FOR_EVALUATION in " ".join(WORD.findall(_stem(path).lower())):
            kinds[path] = "validation"
        else:
            kinds[path] = "examples" if words & EXAMPLES else "none"
    wanted = next((kind for kind in ("test", "validation", "none") if kind in kinds.values()), "none")
    others = {"examples", "validation"} - {wanted}
    return [path for path, kind in kinds.items() if kind == wanted], [path for path, kind in kinds.items() if kind in others]


def _split_words(name: str) -> list[str]:
    """Return the first and last word of a name, ignoring shard numbers, if the word names a split."""
    words = [word for word in WORD.findall(name.lower()) if not SHARD_NUMBER.fullmatch(word)]
    return [word for word in (*words[:1], *words[-1:]) if word in TEST | VALIDATION | EXAMPLES]


def _lone_file(path: Path) -> _ItemFile:
    """Name the benchmark and task of a single file by its stem, or by its folder if the stem only names a split."""
    name = _stem(path) if _task(path) else path.resolve().parent.name
    return _ItemFile(path, name, name)


def _task(path: Path) -> str:
    """Return the file's stem without the words of its split."""
    split = set(_split_words(_stem(path)))
    words = [word for word in re.split(r"[\s_.-]+", _stem(path)) if word.lower() not in split]
    return _stem(path) if not split else "_".join(words)


def _stem(path: Path) -> str:
    return re.sub(r"\.(jsonl?)(\.gz)?$", "", path.name)


def _parsed_rows(path: Path) -> Iterator[tuple[int, ParsedRow]]:
    """Yield line numbers from 1, or positions in a JSON list, and parsed rows."""
    for line, row in _rows(path):
        parsed = parse_row(row)
        if parsed is None:
            names = sorted({name for shape in QUESTIONS for name in shape})
            raise DataError(
                f"{path}:{line}: a row must have a field with text that reads as a question, found {', '.join(row) or 'no field'}. "
                f"Known names, in any spelling: {', '.join(names)}. Rename the field that holds the question."
            )
        yield line, parsed


def _rows(path: Path) -> Iterator[tuple[int, Fields]]:
    """Yield the rows of JSON lines, of a JSON list, or of the only list in a JSON object."""
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if path.name.endswith(".gz") else content).decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(f"{path} must be a readable file of UTF-8 text, found: {error}. Write it again.") from None
    if path.name.endswith(LIST):
        try:
            value = parse_json(text, allows_nan=True)
            if isinstance(value, Mapping):
                lists = [member for member in cast(Mapping[str, object], value).values() if isinstance(member, list) and member]
                lists = [member for member in lists if isinstance(member[0], Mapping)]
                value = lists[0] if len(lists) == 1 else [value]
            if not isinstance(value, list) or not all(isinstance(member, Mapping) for member in cast(list[object], value)):
                raise DataError(
                    f"{path}: JSON must be a list of objects, or an object with one such list, found {str(value)[:60]!r}. "
                    "Write one object a row."
                )
            yield from enumerate(cast(list[Fields], value), start=1)
            return
        except json.JSONDecodeError:
            pass  # a .json file often holds JSON lines, and the loop below reports a broken line
        except ValueError as error:
            raise DataError(f"{path}: {error}. Correct the file.") from None
    for line, content in enumerate(text.split("\n"), start=1):
        if content.strip():
            try:
                row, problem = parse_json(content, allows_nan=True), ""
            except ValueError as error:
                row, problem = None, f" ({error})"
            if not isinstance(row, Mapping):
                raise DataError(
                    f"{path}:{line}: a line must be one JSON object, found {content[:60]!r}{problem}. Correct or remove the line."
                )
            yield line, cast(Fields, row)
