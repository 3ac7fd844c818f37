"""Real text in any amount: the files of this Python installation in a fixed shuffled order."""

import gzip
import hashlib
import os
import random
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import IO, cast

import orjson

from phasewise.tasks.data.stand_ins import roots

MIN_FILE_BYTES, MAX_FILE_BYTES = 512, 200_000
FAST_GZIP = 1


def real_texts(max_bytes: int, *folders: Path) -> Iterator[str]:
    paths = _paths(folders or tuple(roots().values()))
    size = 0
    for copy in count():
        seen: set[bytes] = set()
        for path in paths:
            content = path.read_bytes()
            digest = hashlib.sha256(content).digest()
            try:
                text = content.decode()
            except UnicodeDecodeError:
                continue
            if digest in seen:
                continue
            seen.add(digest)
            if size >= max_bytes:
                return
            size += len(content)
            yield f"# Copy {copy} of this text.\n{text}" if copy else text


def write_json_lines(folder: Path, max_bytes: int, *, num_files: int, packed: bool = False) -> None:
    folder.mkdir(parents=True)
    texts = iter(enumerate(real_texts(max_bytes)))
    for number in range(num_files):
        is_packed = packed and number % 2 == 1
        file_bytes, written = max_bytes // num_files, 0
        with _open(folder / f"text-{number:03d}.jsonl", is_packed) as file:
            while written < file_bytes or number == num_files - 1:
                document = next(texts, None)
                if document is None:
                    break
                identity, text = document
                file.write(orjson.dumps({"id": identity, "text": text}) + b"\n")
                written += len(text.encode())


def _open(path: Path, is_packed: bool) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(f"{path}.gz", "wb", FAST_GZIP)) if is_packed else path.open("wb")


def _paths(folders: tuple[Path, ...]) -> list[Path]:
    """Files per folder, without packages that are installed into a standard library."""
    found = [path for folder in folders for path in _text_files(folder) if "site-packages" not in path.relative_to(folder).parts]
    if not found:
        raise FileNotFoundError(f"no Python file of {MIN_FILE_BYTES} to {MAX_FILE_BYTES} bytes under {', '.join(map(str, folders))}")
    random.Random(0).shuffle(found)
    return found


def _text_files(root: Path) -> list[Path]:
    found: list[Path] = []
    for folder, folders, names in os.walk(root):
        folders.sort()
        paths = [Path(folder, name) for name in sorted(names) if name.endswith(".py") or name == "METADATA"]
        found += [path for path in paths if path.is_file() and MIN_FILE_BYTES <= path.stat().st_size <= MAX_FILE_BYTES]
    return found
