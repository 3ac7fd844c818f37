"""Which documents a question of `phasewise trace` is about: by id, by source file, by text. What was searched is counted."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from phasewise.flows.trace.trace_context import Traced
from phasewise.flows.trace.trace_query import Asked, whole
from phasewise.tasks.data.caches import ids_of_text, normalized, shards_with
from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.trainer.base.storage import parse_json
from phasewise.trainer.config import Component
from phasewise.trainer.data.document_index import DocumentIndex, Located
from phasewise.trainer.data.manifest import SPLITS, Split

MIN_PREFIX = 8
MAX_SEARCHED_DOCUMENTS = 2_000_000
"""Indices of so many documents in all are read whole and checked, which takes about a second; of more, what may hold the answer."""
MAX_TOKENS_INSIDE = 20_000_000
"""Documents are searched for a passage without being asked where all caches together have no more tokens: a few seconds."""


class FoundDocument(NamedTuple):
    """A document, and the tokens that are asked for."""

    component: Component
    split: Split
    asked: Asked

    @property
    def document(self) -> Located:
        """The document."""
        return self.asked.document

    @property
    def is_whole(self) -> bool:
        """Whether all its tokens are asked for."""
        return self.asked == whole(self.document)


@dataclass(frozen=True)
class Search:
    """What was found, and in how much.

    Attributes:
        components, documents: what was searched, in both splits.
        inside: whether documents were searched for a passage; None where no text was asked for.
        remarks: what was not searched, and what else a reader must know.
    """

    found: tuple[FoundDocument, ...]
    components: int
    documents: int
    inside: bool | None = None
    remarks: tuple[str, ...] = ()


def find_by_id(traced: Traced, prefix: str) -> Search:
    """Documents by the beginning of their id.

    Raises:
        ConfigError: it is too short.
        DataError: no cache has such a document.
    """
    if len(prefix) < MIN_PREFIX:
        raise ConfigError(f"a document is named by at least the first {MIN_PREFIX} characters of its id, found {prefix!r}.")
    found = _each(traced, lambda component, index: _named(traced, component, index, (prefix,)))
    return _search(traced, found, f"document {prefix}")


def find_by_file(traced: Traced, path: str) -> Search:
    """Documents by their source file: its name as the index has it, or its whole path or URL.

    Raises:
        DataError: no cache has a document of it.
    """
    found = _each(traced, lambda component, index: index.of_file(_name_in(traced, component, path), checks_all=_is_small(traced)))
    try:
        return _search(traced, found, f"document of a file {path}")
    except DataError as error:
        raise DataError(f"{error} {_about_file(traced, path)}") from None


def find_by_text(traced: Traced, path: Path, *, inside: bool) -> Search:
    """Documents by their text: those that are the text, and those that hold it.

    A document is the text where its id is the digest of it, normalised as the component's documents are, with or without the line end at
    its end or the space around it. It holds the text where its bytes hold those of the normalised text without the space around it.

    Args:
        inside: documents are searched for the text however many there are.

    Raises:
        ConfigError: the file cannot be read, or is no text.
        DataError: no cache has the text.
    """
    text = _read_text(path)
    found = _each(traced, lambda component, index: _named(traced, component, index, ids_of_text(text, index.cache.manifest)))
    tokens = sum(index.cache.manifest.tokens for split in SPLITS for index in traced.indices[split].values())
    if inside or tokens <= MAX_TOKENS_INSIDE:
        whole_ones = {(one.component, one.document.id) for one in found}
        held = [one for one in _holding(traced, text) if (one.component, one.document.id) not in whole_ones]
        if not (found or held):
            raise DataError(f"{_nothing(traced, f'text of {path}')} {_as_one_text(path, text)}")
        return _search(traced, [*found, *held], "", inside=True)
    not_searched = f"whether longer documents hold it was not asked: they have {tokens:,} tokens. --inside reads them all."
    if not found:
        raise DataError(f"{_nothing(traced, f'document that is the text of {path}')} And {not_searched} {_as_one_text(path, text)}")
    return _search(traced, found, "", inside=False, remarks=(f"These documents are the text; {not_searched}",))


def _read_text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} must be text in UTF-8, and is not.") from None
    if not text.strip():
        raise ConfigError(f"{path} has no text to look for.")
    return text


def _as_one_text(path: Path, text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and all(map(_is_json_object, lines[:2])):
        advice = f"its {len(lines):,} lines are JSON: put the text of one of them, without the JSON around it, into a file of its own"
    else:
        advice = "if it has several documents, or line ends that they have not, put a passage of one line into a file of its own"
    return f"All of {path} was looked for as one text; {advice}."


def _is_json_object(line: str) -> bool:
    try:
        return isinstance(parse_json(line), dict)
    except ValueError:
        return False


def _each(traced: Traced, find: Callable[[Component, DocumentIndex], list[Located]]) -> list[FoundDocument]:
    return [
        FoundDocument(component, split, whole(document))
        for component in traced.components
        for split in SPLITS
        for document in find(component, traced.indices[split][component])
    ]


def _named(traced: Traced, component: Component, index: DocumentIndex, prefixes: tuple[str, ...]) -> list[Located]:
    manifest, plan = index.cache.manifest, traced.plan and traced.plan.components[component]
    has_digests = plan and plan.documents.is_built and manifest.key == plan.cache(manifest.split).key
    if _is_small(traced) or not (plan and has_digests):
        return index.named(prefixes)
    shards = {shard for prefix in prefixes for shard in shards_with(plan.documents.folder, prefix, manifest, traced.plan.digests)}  # pyright: ignore[reportOptionalMemberAccess]  # `plan` is of it
    return index.named(prefixes, sorted(shards))


def _holding(traced: Traced, text: str) -> Iterator[FoundDocument]:
    for component in traced.components:
        for split in SPLITS:
            cache = traced.indices[split][component].cache
            decoder = traced.text_of(component)
            if decoder is None or not decoder.is_exact:
                raise DataError(
                    f"documents of {component} cannot be searched for a text: "
                    + ("their tokenizer is not in this home" if decoder is None else "their tokenizer does not keep every byte")
                    + ". Name the document by --document or --source-file."
                )
            wanted = normalized(text.strip(), cache.manifest).encode()
            for shard in range(len(cache.manifest.shards)):
                first = int(cache.starts[shard])
                for document in cache.documents([shard]):
                    located = Located(document.id, document.source_file, first, len(document.tokens), shard)
                    first += len(document.tokens)
                    for begin, end in decoder.find(wanted, document.tokens.tolist()):
                        yield FoundDocument(component, split, Asked(located, located.first + begin, located.first + end))


def _name_in(traced: Traced, component: Component, path: str) -> str:
    source = traced.plan and traced.plan.components[component].source
    roots = [source.root, source.url] if source else [str(traced.indices["train"][component].cache.manifest.source.get("url", ""))]
    places = [path] if "://" in path else [path, str(Path(path).absolute())]
    for root in filter(None, roots):
        for place in places:
            if place.startswith(f"{root.rstrip('/')}/"):
                return place[len(root.rstrip("/")) + 1 :]
    return path


def _about_file(traced: Traced, path: str) -> str:
    manifests = {component: traced.indices["train"][component].cache.manifest for component in traced.components}
    for component, manifest in manifests.items():
        if any(file.name == _name_in(traced, component, path) for file in manifest.sources):
            left_out = ", ".join(f"{count} {reason}" for reason, count in manifest.left_out.items() if count)
            return f"{component} read the file, and left all of it out; of the whole component were left out: {left_out or 'none'}."
    last = path.rpartition("/")[2]
    meant = [f"{m.component}: {file.name}" for m in manifests.values() for file in m.sources if file.name.rpartition("/")[2] == last][:3]
    return f"Was {' or '.join(meant)} meant? Name it as it is here." if meant else "No component was read from such a file."


def _search(traced: Traced, found: list[FoundDocument], what: str, *, inside: bool | None = None, remarks: tuple[str, ...] = ()) -> Search:
    if not found:
        raise DataError(_nothing(traced, what))
    return Search(tuple(found), len(traced.components), _documents(traced), inside, remarks)


def _nothing(traced: Traced, what: str) -> str:
    phases = ", ".join(one.phase.name for one in traced.phases)
    return (
        f"there is no {what} in the caches of {phases}: searched were {_documents(traced):,} documents of "
        f"{len(traced.components)} components, those held out among them."
    )


def _is_small(traced: Traced) -> bool:
    return _documents(traced) <= MAX_SEARCHED_DOCUMENTS


def _documents(traced: Traced) -> int:
    return sum(index.cache.manifest.documents for split in SPLITS for index in traced.indices[split].values())
