"""What a component is made of: files by URL, judged by their expanded names and content."""

from fnmatch import fnmatch
from typing import Literal

import fsspec

from trainer.config import Frozen
from trainer.data.manifest import SourceFile
from trainer.errors import DataError
from trainer.storage import digest_of_bytes


class Source(Frozen):
    """The files of a component.

    Attributes:
        url: fsspec URL of the folder that the globs start from; `hf://datasets/OWNER/NAME@REVISION` names a Hugging Face data set.
        include, exclude: globs over paths relative to `url`; a file is read if it matches one of the first and none of the second.
        text_key: the field that holds a document's text.
    """

    url: str
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    format: Literal["jsonl", "parquet"]
    text_key: str


def expand(source: Source) -> tuple[str, ...]:
    """The URLs of the files, sorted.

    Raises:
        DataError: no file matches (a component must not vanish in silence), or they cannot be listed.
    """
    try:
        file_system, root = fsspec.core.url_to_fs(source.url)
        found: list[str] = file_system.find(root)
    except Exception as error:  # each file system has errors of its own
        raise DataError(f"the files under {source.url} cannot be listed: {type(error).__name__}: {error}") from error
    names = sorted(name for name in found if _selected(source, name.removeprefix(root).lstrip("/")))
    if not names:
        raise DataError(f"no file under {source.url} matches {', '.join(source.include)}: a component needs at least one.")
    return tuple(file_system.unstrip_protocol(name) for name in names)


def fingerprint(source: Source) -> tuple[SourceFile, ...]:
    """Every file with its size and the digest of its content."""
    return tuple(_fingerprint_file(url) for url in expand(source))


def _fingerprint_file(url: str) -> SourceFile:
    with fsspec.open(url, "rb") as file:
        content: bytes = file.read()  # pyright: ignore[reportAttributeAccessIssue]  # fsspec's OpenFile is a file once entered
    return SourceFile(url=url, size_bytes=len(content), digest=digest_of_bytes(content))


def _selected(source: Source, relative: str) -> bool:
    hidden = any(part.startswith(".") for part in relative.split("/"))
    included = any(fnmatch(relative, glob) for glob in source.include)
    return included and not hidden and not any(fnmatch(relative, glob) for glob in source.exclude)
