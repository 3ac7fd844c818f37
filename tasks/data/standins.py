"""Small stand-ins for the record's data sets, built from the text of this Python installation: real text with no download.

Each is JSON lines under `sources/<component>/`. They are written once and then treated as any other source: a file that somebody
adds there is part of the component.
"""

import json
import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field

from phasewise.tasks.data.conversations.declared import Conversation
from phasewise.tasks.data.conversations.stand_ins import as_record, conversations_in, strings_of
from phasewise.tasks.data.python_text import DIST_INFO, View, documents_in, installed, package_of, required_packages, roots
from phasewise.tasks.data.source import Source
from phasewise.tasks.data.word_problems import word_problems
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import digest_of_bytes
from phasewise.trainer.base.storage import read_json, write_atomically, write_json

SHINGLE_WORDS = 13
MAX_SHARED_SHINGLES = 4
MAX_SHARED_PART = 0.25
RECORD_NAME = "stand-ins.json"
FILE_NAME = "stand-in.jsonl"
TEST_NAME = "test.json"


class StandIn(Frozen):
    """Where a component's small text comes from: a view of the files that match `where` (`site:` or `stdlib:` globs) and not `without`.

    Attributes:
        test_items: whether made-up word problems, a benchmark's test items, lie beside it in a `test.json`.
        conversation: the layout in which the questions and answers of these files are written; None writes text.
        followed_by: stand-ins whose documents come after its own, so that the text is sorted by where it is from.
    """

    view: View
    where: tuple[str, ...]
    without: tuple[str, ...] = ()
    max_bytes: int = Field(gt=0)
    test_items: bool = False
    conversation: Conversation | None = None
    followed_by: tuple["StandIn", ...] = ()


def stand_in_source(stand_in: StandIn, folder: Path) -> Source:
    """How a stand-in is read: every JSON-lines file in its folder, and the test items where it has some."""
    include = ("*.jsonl", TEST_NAME) if stand_in.test_items else ("*.jsonl",)
    return Source(
        url=folder.as_uri(), include=include, exclude=(), format="jsonl", text_key="text", conversation=stand_in.conversation
    )  # fmt: skip


def collect(stand_in: StandIn) -> list[dict[str, Any]]:
    """The documents of one stand-in: `id` (where it is from) and `text`, or what a conversation's layout has.

    Files come in an order that spreads over the packages.

    What it is followed by comes after it, document by document.

    Raises:
        DataError: this installation has none of the files, or no text in them.
    """
    documents: list[dict[str, Any]] = []
    size = 0
    for path, name in _files(stand_in):
        for number, fields in enumerate(_documents(stand_in, path, name)):
            documents.append({"id": f"{name}#{number}", **fields})
            size += len(text_of(documents[-1]).encode())
        if size >= stand_in.max_bytes:
            break
    if not documents:
        raise DataError(
            f"this Python installation has no text for {stand_in.view} of {', '.join(stand_in.where)}: install constraints.txt."
        )
    for later in stand_in.followed_by:
        documents += collect(later)
    return documents


def _documents(stand_in: StandIn, path: Path, name: str) -> Iterator[dict[str, Any]]:
    if stand_in.conversation is None:
        yield from ({"text": text} for text in documents_in(stand_in.view, path, name))
    else:
        yield from (as_record(said, stand_in.conversation) for said in conversations_in(path, name))


def text_of(document: Mapping[str, Any]) -> str:
    """All that a document says: of a conversation what everybody says in it."""
    return "\n".join(text for key, value in document.items() if key != "id" for text in strings_of(value))


@dataclass
class NearDuplicates:
    """Finds documents that repeat earlier ones: copies would put held-out text into the training split."""

    seen: set[int] = field(default_factory=set)

    def is_new(self, text: str) -> bool:
        """Whether at most four of its 13-word shingles, and at most a quarter, are in earlier documents; if so, remember it."""
        words = re.findall(r"\w+", text.lower())
        shingles = {hash(tuple(words[at : at + SHINGLE_WORDS])) for at in range(max(1, len(words) - SHINGLE_WORDS + 1))}
        if len(shingles & self.seen) > min(MAX_SHARED_SHINGLES, MAX_SHARED_PART * len(shingles)):
            return False
        self.seen |= shingles
        return True


def write_test_items(folder: Path) -> None:
    """Write the word problems beside a stand-in, one JSON object a line as in the other files."""
    rows = (json.dumps({"id": problem.id, "text": problem.text}, ensure_ascii=False) + "\n" for problem in word_problems())
    write_atomically(folder / TEST_NAME, "".join(rows).encode())


def write_stand_ins(collected: Mapping[str, list[dict[str, Any]]], sources: Path) -> dict[str, int]:
    """Write every component's file without what repeats it or an earlier stand-in, and last the record; documents written, by name."""
    duplicates = NearDuplicates()
    record = read_json(sources / RECORD_NAME) if (sources / RECORD_NAME).exists() else {"documents": {}}
    for component in sorted(set(record["documents"]) - set(collected)):
        path = sources / component / FILE_NAME
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            duplicates.is_new(text_of(json.loads(line)))
    written: dict[str, int] = {}
    for component, documents in sorted(collected.items()):
        kept = [document for document in documents if duplicates.is_new(text_of(document))]
        lines = "".join(json.dumps(document, ensure_ascii=False) + "\n" for document in kept)
        write_atomically(sources / component / FILE_NAME, lines.encode())
        written[component] = len(kept)
    documents = {**record["documents"], **written}
    write_json(sources / RECORD_NAME, {"python": platform.python_version(), "packages": installed(), "documents": documents})
    return written


def missing_stand_ins(components: Mapping[str, StandIn], sources: Path) -> list[str]:
    """Components whose stand-in was never finished. Once the record is there, the files belong to the user."""
    if (sources / RECORD_NAME).exists():
        return [name for name in sorted(components) if not (sources / name).exists()]
    return sorted(components)


def _files(stand_in: StandIn) -> Iterator[tuple[Path, str]]:
    """Matching files with their dotted names, ordered by the digest of the name. What is installed besides changes nothing."""
    found: dict[str, Path] = {}
    for pattern in stand_in.where:
        root, glob = _split(pattern)
        excluded = [path for other in stand_in.without if _split(other)[0] == root for path in root.glob(_split(other)[1])]
        for path in sorted(set(root.glob(glob)) - set(excluded)):
            relative = path.relative_to(root)
            if _is_foreign(relative.parts[0]):
                continue
            if path.is_file() and not {"tests", "test", "site-packages", "__pycache__"} & set(relative.parts):
                found[".".join(relative.with_suffix("").parts)] = path
    for name in sorted(found, key=lambda name: digest_of_bytes(name.encode())):
        yield found[name], name


def _is_foreign(folder: str) -> bool:
    """Whether it holds the metadata of a package that Phasewise does not need: a tool beside it, or an extra."""
    return folder.endswith(DIST_INFO) and bool(required_packages()) and package_of(folder) not in required_packages()


def _split(pattern: str) -> tuple[Path, str]:
    place, _, glob = pattern.partition(":")
    return roots()[place], glob
