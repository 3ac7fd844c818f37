"""A folder of text as named subsets of documents, read with the readers of the data; what cannot be read is an error that names it.

The text that is measured is the text that a model would be trained on: without a byte order mark, in Unicode's composed form, with plain
line ends. How many documents that changed is counted, and so is all else that would change a value unseen.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from phasewise.tasks.data.filters import Normalization, normalize
from phasewise.tasks.data.findings import LeftOut, Record
from phasewise.tasks.data.listing import expand
from phasewise.tasks.data.reading import pieces_of, read_piece
from phasewise.tasks.data.source import Format, Source
from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.trainer.base.identity import digest_of_bytes, digest_of_json
from phasewise.trainer.base.wording import name_some
from phasewise.trainer.data.manifest import SourceFile

FORMATS: dict[str, Format] = {
    ".txt": "text",
    ".md": "markdown",
    ".markdown": "markdown",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
"""By the ending of a file's name; one of `PACKINGS` may be behind it."""
PACKINGS = (".gz", ".zst", ".bz2", ".xz", ".lz4")
MAX_NAMED = 5


class Document(NamedTuple):
    """A text as it is measured, and where it is: file and place in it."""

    subset: str
    where: str
    text: str


@dataclass
class SubsetText:
    """What was read of a subset.

    Attributes:
        documents: those that are measured; each has a byte of text at least.
        empty_documents: without text, or of white space alone: they have nothing to measure.
        copies: documents whose text an earlier one of the folder has as well. They are measured like any other.
        normalized: documents that the normalisation changed.
        text_bytes: UTF-8 bytes of the text as it is measured.
    """

    name: str
    files: int
    documents: int = 0
    empty_documents: int = 0
    copies: int = 0
    normalized: int = 0
    text_bytes: int = 0
    digests: list[str] = field(default_factory=list, repr=False)

    @property
    def text_digest(self) -> str:
        """Of every text, whatever file it is in: it changes with any character and with any document that is added or left out."""
        return digest_of_json(sorted(self.digests))


class Corpus:
    """The files of a folder by subset: each file in it, and each folder in it with all that is beneath.

    Args:
        root: the folder, or one file.
        text_key: the field with the text, of formats that have fields.

    Raises:
        ConfigError: there is no such folder.
        DataError: it has no file, or one that no reader takes.
    """

    def __init__(self, root: Path, *, text_key: str = "text") -> None:
        if not root.exists():
            raise ConfigError(f"--text must name a folder or a file of text, found none at {root}.")
        self.root = root if root.is_dir() else root.parent
        self.hidden = 0 if root.is_file() else sum(1 for path in root.rglob("*") if path.is_file() and _is_hidden(path.relative_to(root)))
        self._text_key = text_key
        self._names = [root.name] if root.is_file() else _names(root)
        check_formats(self.root, self._names)
        self.subsets = {name: SubsetText(name, len(names)) for name, names in self._by_subset().items()}
        self._seen: set[str] = set()

    def documents(self) -> Iterator[Document]:
        """Every document in order of subset and file; `subsets` has the counts when all were taken.

        Raises:
            DataError: a document or a file cannot be read, or a subset has no text.
        """
        for subset, names in self._by_subset().items():
            for name in names:
                yield from self._documents_of(self.subsets[subset], name)
            if not self.subsets[subset].text_bytes:
                raise DataError(
                    f"every subset must have text, found none in {self.root / subset} ({self.subsets[subset].empty_documents} empty "
                    "documents). Take it out of the folder, or give it text."
                )

    def _by_subset(self) -> dict[str, list[str]]:
        subsets: dict[str, list[str]] = {}
        for name in self._names:
            subsets.setdefault(name.partition("/")[0], []).append(name)
        return subsets

    def _documents_of(self, subset: SubsetText, name: str) -> Iterator[Document]:
        url = str(self.root / name)
        source = Source(url=str(self.root), include=("**",), format=format_of(name) or "text", text_key=self._text_key)
        file = SourceFile(name=name, size_bytes=Path(url).stat().st_size, digest="")
        for piece in pieces_of(source, [file]):
            for finding in read_piece(source, piece):
                if isinstance(finding, Record):
                    yield self._counted(subset, name, finding)
                elif isinstance(finding, LeftOut):
                    subset.empty_documents += 1
                else:
                    raise DataError(
                        f"every document must be readable {source.format}, found in {url}, {finding.where}: {finding.reason} "
                        f"({finding.sample[:80]!r}). Repair the file or take it out of the folder{self._hint(source.format)}."
                    )

    def _counted(self, subset: SubsetText, name: str, record: Record) -> Document:
        text = normalize(record.text, Normalization())
        content = text.encode()
        digest = digest_of_bytes(content)
        subset.documents += 1
        subset.text_bytes += len(content)
        subset.normalized += text != record.text
        subset.copies += digest in self._seen
        subset.digests.append(digest)
        self._seen.add(digest)
        return Document(subset.name, f"{self.root / name}, {record.where}", text)

    def _hint(self, format_: Format) -> str:
        return (
            f"; the text is looked for under '{self._text_key}', --text-key names another field" if format_ in ("jsonl", "parquet") else ""
        )


def format_of(name: str) -> Format | None:
    """How a file is read, by its name; None where no reader takes it."""
    path = Path(name.lower())
    if path.suffix in PACKINGS:
        path = path.with_suffix("")
    return FORMATS.get(path.suffix)


def check_formats(root: Path, names: Sequence[str]) -> None:
    """Refuse files that no reader takes: left out, they would change what is measured without a word.

    Raises:
        DataError: names the first few.
    """
    unknown = [name for name in names if format_of(name) is None]
    if unknown:
        raise DataError(
            f"every file under {root} must end in {', '.join(FORMATS)} (or packed: {', '.join(PACKINGS)}), found "
            f"{name_some(unknown, MAX_NAMED)}. Take them out of the folder, or give them the ending of what they are."
        )


def _names(root: Path) -> list[str]:
    """Every file that is not hidden, by its path relative to the folder."""
    if not any(path.is_file() and not _is_hidden(path.relative_to(root)) for path in root.rglob("*")):
        raise DataError(f"the folder of text {root} must hold a file, found none that is not hidden.")
    found = expand(Source(url=str(root), include=("**",), format="text"))
    if found.rejected:
        refused = name_some((f"{file.name} ({file.reason})" for file in found.rejected), MAX_NAMED)
        raise DataError(f"every file under {root} must be one of this folder that can be read, found {refused}. Take them out of it.")
    return list(found.files)


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
