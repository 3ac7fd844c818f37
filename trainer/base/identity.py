"""Identity: digests of content and of code, and their comparison.

A result's JSON file carries its seal: the digest of all its other fields. The fields name the run, key or subject of the result, so a
reader also detects a swapped file. The digest of code keys caches, indexes, evidence, verdicts, evaluations, plans and reports.
"""

import ast
import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, cast

from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.storage import as_path, has_no_end, read_json, store_entry, user_cache, write_atomically, write_json

READ_BYTES = 2**22
SEAL = "digest"  # the field of a sealed file that holds the digest of the others
DIGITS = 8
NOT_CODE = {"kind", "type_comment", "type_ignores"}
HOUSE = Path(__file__).parents[2]
ROOMS = ("deployments", "flows", "tasks", "trainer", "validations")
NAME = "phasewise"


class NotAsWritten(ValueError):
    """A file's content is not the content that was written to it."""


def digest_of_bytes(content: bytes) -> str:
    """Return the SHA-256 in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def digest_of_json(value: Any) -> str:
    """Return the SHA-256 of the canonical JSON form (sorted keys, no spaces): equal values have equal digests."""
    return digest_of_bytes(json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode())


def digest_of_file(url: str | Path) -> str:
    """Return the SHA-256 of a file's content, read in pieces. Raises DataError for a pipe or a device."""
    if has_no_end(url):
        raise DataError(f"{url}: expected a file, found a pipe, a socket or a device. Delete it and run the command again.")
    with as_path(url).open("rb") as file:
        return size_and_digest(cast(BinaryIO, file))[1]


def content_digest(url: str | Path) -> tuple[int, str]:
    """Return a file's size and the digest of its content with the digest's kind, from the store if the store has one."""
    entry = store_entry(url)
    if entry is not None and entry.digest and entry.size_bytes is not None:
        return entry.size_bytes, entry.digest
    with as_path(url).open("rb") as file:
        size, digest = size_and_digest(cast(BinaryIO, file))
    return size, f"sha256:{digest}"


def size_and_digest(file: BinaryIO) -> tuple[int, str]:
    """Return size and SHA-256 of the rest of an open file, read in pieces."""
    digest = hashlib.sha256()
    size = 0
    while piece := file.read(READ_BYTES):
        digest.update(piece)
        size += len(piece)
    return size, digest.hexdigest()


def write_sealed(url: str | Path, value: Mapping[str, Any]) -> None:
    """Write the fields with a new seal as indented JSON, atomically."""
    fields = {name: field for name, field in value.items() if name != SEAL}
    write_json(url, {**fields, SEAL: digest_of_json(fields)})


def read_sealed(url: str | Path) -> dict[str, Any]:
    """Return the fields of a sealed file, without the seal. Raises NotAsWritten if the file was changed, or has no seal."""
    try:
        content = read_json(url)
    except (ValueError, RecursionError) as error:
        raise NotAsWritten(f"{url} was changed after it was written: it is not JSON any more ({error})") from None
    return unsealed(content, url)


def find_sealed(url: str | Path) -> dict[str, Any] | None:
    """Return the fields of a sealed file, or None if it is missing or was changed."""
    with suppress(FileNotFoundError, NotAsWritten):
        return read_sealed(url)
    return None


def unsealed(content: Any, place: str | Path, *, may_lack_seal: bool = False) -> dict[str, Any]:
    """Return the fields of a sealed file's content, as `read_sealed` does.

    `may_lack_seal`: a person or another program writes such files.
    """
    if not isinstance(content, dict):
        raise NotAsWritten(f"{place} was changed after it was written: it is not a JSON object")
    fields = cast(dict[str, Any], content)
    rest = {name: value for name, value in fields.items() if name != SEAL}
    if SEAL not in fields and not may_lack_seal:
        raise NotAsWritten(f"{place} has no {SEAL} of its own fields: an earlier version wrote it, or it was changed")
    if SEAL in fields and fields[SEAL] != digest_of_json(rest):
        raise NotAsWritten(f"{place} was changed after it was written: its fields do not have the {SEAL} that it names")
    return rest


def check_file(path: Path, digest: str, remedy: str) -> None:
    """Raise `DataError` with the file and the remedy if the file is missing or its content has another digest."""
    found = digest_of_file(path) if path.exists() else "nothing"
    if found != digest:
        raise DataError(f"{path} was changed after it was written: expected the digest {digest[:16]}, found {found[:16]}. {remedy}")


def code_digest(*code: ModuleType | str) -> str:
    """Return 8 hexadecimal digits over the syntax trees of modules and of globs below the repository, such as `tasks/data/*.py`.

    Docstrings, comments, layout and paths of files do not count: an import from the project counts by the imported names. A glob that finds
    nothing is an error, as a file that was moved would be missing in the digest.
    """
    return digest_of_json(sorted(digest_of_source(path) for path in files_of(*code)))[:DIGITS]


def files_of(*code: ModuleType | str) -> set[Path]:
    """Return the files of modules and of globs below the repository."""
    found: set[Path] = set()
    for one in code:
        paths = list(HOUSE.glob(one)) if isinstance(one, str) else [Path(str(one.__file__))]
        assert paths, f"{one} names no file"
        found.update(paths)
    return found


_fields: dict[type[ast.AST], list[str]] = {}


@cache
def digest_of_source(path: Path) -> str:
    """Return the digest of a file's syntax tree. (`ast.dump` would print fields that not every version of Python has.)

    A file in the user's cache keeps it, named by the content of the source and of this module: a walk takes milliseconds per source.
    """
    content = path.read_bytes()
    kept = user_cache() / "syntax" / digest_of_bytes(content + Path(__file__).read_bytes())
    with suppress(OSError, ValueError):
        if len(known := kept.read_text(encoding="ascii")) == len(kept.name):
            return known
    parts, imported = list[str](), list[str]()
    _walk(ast.parse(content), parts, imported)
    digest = digest_of_bytes("\n".join([*parts, *sorted(imported)]).encode())
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(kept, digest.encode())
    return digest


def _walk(value: Any, parts: list[str], imported: list[str]) -> None:
    if isinstance(value, ast.AST):
        parts.append(f"({type(value).__name__}")
        if (names := _fields.get(type(value))) is None:
            names = _fields[type(value)] = sorted(value._fields)
        for name, field in [(name, getattr(value, name)) for name in names if hasattr(value, name)]:
            if name == "body" and isinstance(value, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                texts = [each for each in field if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)]
                docstrings = [each for each in texts if isinstance(cast(ast.Constant, each.value).value, str)]
                field = [statement for statement in field if statement not in docstrings]
            if isinstance(value, ast.JoinedStr):  # Python 3.12 ends some with an empty text
                field = [part for part in field if not (isinstance(part, ast.Constant) and part.value == "")]
            if name not in NOT_CODE and not (name != "value" and field is None) and field != []:
                parts.append(f".{name}")
                _walk(field, parts, imported)
        parts.append(")")
    elif isinstance(value, list):
        parts.append("[")
        for each in value:
            if isinstance(each, ast.ImportFrom) and each.level == 0 and str(each.module).split(".")[0] == NAME:
                imported += [f"{alias.name} as {alias.asname}" for alias in each.names]
            else:
                _walk(each, parts, imported)
        parts.append("]")
    else:
        parts.append(f"{type(value).__name__} {value!r}")
