"""Document search of `phasewise trace`: by id, by source file, or by text."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from phasewise.flows.trace.trace_context import Traced
from phasewise.flows.trace.trace_query import Asked
from phasewise.tasks.data.caches import ids_of_text, normalized, shards_with
from phasewise.tasks.data.near_copies import find_removed
from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.trainer.base.storage import parse_json
from phasewise.trainer.config import Component
from phasewise.trainer.data.manifest import SPLITS, Split
from phasewise.trainer.data.packing import DocumentIndex, Located

MIN_PREFIX = 8
MAX_TOLD = 3  # near copies in a message
MAX_SEARCHED_DOCUMENTS = 2_000_000
"""Up to this number of documents, indices are read whole and checked, in about a second. Larger caches read only likely shards."""
MAX_TOKENS_INSIDE = 20_000_000
"""Up to this number of tokens in all caches, documents are searched for passages by default, in a few seconds."""


class FoundDocument(NamedTuple):
    """A document, and the requested tokens."""

    component: Component
    split: Split
    asked: Asked


@dataclass(frozen=True)
class Search:
    """The result of a search.

    `components`, `documents`: numbers of searched components and documents, in both splits. `inside`: whether documents were searched for a
    passage. None for a search without text.
    """

    found: tuple[FoundDocument, ...]
    components: int
    documents: int
    inside: bool | None = None
    remarks: tuple[str, ...] = ()


def find_by_id(traced: Traced, prefix: str) -> Search:
    """Find documents by the start of their id. Raises ConfigError for a short prefix, and DataError without a result."""
    if len(prefix) < MIN_PREFIX:
        raise ConfigError(f"--document: expected at least the first {MIN_PREFIX} characters of an id, found {prefix!r}.")
    found = _each(traced, lambda component, index: _named(traced, component, index, (prefix,)))
    if not found:
        raise DataError(_nothing(traced, f"document {prefix}") + _removed(traced, "id", (prefix,)))
    return _search(traced, found)


def find_by_file(traced: Traced, path: str) -> Search:
    """Find documents by their source file: its name in the index, its path or its URL. Raises DataError without a result."""
    is_small = _documents(traced) <= MAX_SEARCHED_DOCUMENTS
    found = _each(traced, lambda component, index: index.of_file(_name_in(traced, component, path), checks_all=is_small))
    if found:
        return _search(traced, found)
    nothing = _nothing(traced, f"document of a file {path}")
    manifests = {component: traced.indices["train"][component].cache.manifest for component in traced.components}
    for component, manifest in manifests.items():
        if any(file.name == _name_in(traced, component, path) for file in manifest.sources):
            removed = _removed(traced, "source_file", (_name_in(traced, component, path),))
            left_out = ", ".join(f"{count} {reason}" for reason, count in manifest.left_out.items() if count)
            raise DataError(
                f"{nothing} {component} read the file, and left all of it out. The component left out: {left_out or 'none'}.{removed}"
            )
    last = path.rpartition("/")[2]
    meant = [f"{m.component}: {file.name}" for m in manifests.values() for file in m.sources if file.name.rpartition("/")[2] == last][:3]
    hint = f"Did you mean {' or '.join(meant)}? Use this name." if meant else "No component was read from such a file."
    raise DataError(f"{nothing} {hint}")


def find_by_text(traced: Traced, path: Path, *, inside: bool) -> Search:
    """Find documents that equal a text or contain it.

    A document equals the text if its id is the digest of the normalised text, with or without the final line end or surrounding space. A
    document contains the text if its bytes contain the stripped, normalised text.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: expected text in UTF-8. Convert the file.") from None
    if not text.strip():
        raise ConfigError(f"{path}: expected text, found none.")
    found = _each(traced, lambda component, index: _named(traced, component, index, ids_of_text(text, index.cache.manifest)))
    tokens = sum(index.cache.manifest.tokens for split in SPLITS for index in traced.indices[split].values())
    ids = {one for index in traced.indices["train"].values() for one in ids_of_text(text, index.cache.manifest)}
    removed = "" if found else _removed(traced, "id", sorted(ids))
    if inside or tokens <= MAX_TOKENS_INSIDE:
        whole_ones = {(one.component, one.asked.document.id) for one in found}
        found += [one for one in _holding(traced, text) if (one.component, one.asked.document.id) not in whole_ones]
        if not found:
            raise DataError(f"{_nothing(traced, f'text of {path}')} {_as_one_text(path, text)}{removed}")
        return _search(traced, found, inside=True, remarks=tuple(filter(None, [removed.strip()])))
    not_searched = f"Longer documents with {tokens:,} tokens were not searched for the text. --inside reads all of them."
    if not found:
        raise DataError(f"{_nothing(traced, f'document that is the text of {path}')} {not_searched} {_as_one_text(path, text)}{removed}")
    return _search(traced, found, inside=False, remarks=(f"These documents are the text. {not_searched}",))


def _as_one_text(path: Path, text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    try:
        are_json = len(lines) > 1 and all(isinstance(parse_json(line), dict) for line in lines[:2])
    except ValueError:
        are_json = False
    if are_json:
        advice = f"its {len(lines):,} lines are JSON. Put the text of one line, without the JSON around it, into a file"
    else:
        advice = "if it has several documents, or other line ends, put a passage of one line into a file"
    return f"The search took {path} as one text: {advice}."


def _each(traced: Traced, find: Callable[[Component, DocumentIndex], list[Located]]) -> list[FoundDocument]:
    return [
        FoundDocument(component, split, Asked(document, document.first, document.first + document.length))
        for component in traced.components
        for split in SPLITS
        for document in find(component, traced.indices[split][component])
    ]


def _named(traced: Traced, component: Component, index: DocumentIndex, prefixes: tuple[str, ...]) -> list[Located]:
    manifest, plan = index.cache.manifest, traced.plan
    if _documents(traced) <= MAX_SEARCHED_DOCUMENTS or plan is None:
        return index.named(prefixes)
    planned = plan.components[component]
    if not planned.documents.is_built or manifest.key != planned.cache(manifest.split).key:
        return index.named(prefixes)
    shards = {shard for prefix in prefixes for shard in shards_with(planned.documents.folder, prefix, manifest, plan.digests)}
    return index.named(prefixes, sorted(shards))


def _holding(traced: Traced, text: str) -> Iterator[FoundDocument]:
    for component in traced.components:
        for split in SPLITS:
            cache = traced.indices[split][component].cache
            decoder = traced.text_of(component)
            if decoder is None or not decoder.is_exact:
                why = "their tokenizer is not in this home" if decoder is None else "their tokenizer does not keep every byte"
                raise DataError(
                    f"documents of {component} cannot be searched for a text: {why}. Name the document by --document or --source-file."
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
    paths = [path] if "://" in path else [path, str(Path(path).absolute())]
    for root in filter(None, roots):
        for one in paths:
            if one.startswith(f"{root.rstrip('/')}/"):
                return one[len(root.rstrip("/")) + 1 :]
    return path


def _search(traced: Traced, found: list[FoundDocument], *, inside: bool | None = None, remarks: tuple[str, ...] = ()) -> Search:
    return Search(tuple(found), len(traced.components), _documents(traced), inside, remarks)


def _nothing(traced: Traced, what: str) -> str:
    phases = ", ".join(one.phase.name for one in traced.phases)
    return (
        f"there is no {what} in the caches of {phases}: searched were {_documents(traced):,} documents of {len(traced.components)} "
        "components, with held-out documents."
    )


def _removed(traced: Traced, column: Literal["id", "source_file"], names: Iterable[str]) -> str:
    """The near copies with these names that the preparation left out, in words. Empty if there are none."""
    planned = traced.plan.components if traced.plan else {}
    rows = {name: find_removed(planned[name], column, tuple(names)) for name in traced.components if name in planned}
    return "".join(
        f" {name} left out document {row['id'][:16]} of {row['source_file']} as a near copy of document {row['kept_id'][:16]} of "
        f"{row['kept_source_file']}: they have {row['similarity']:.0%} of their words in common."
        for name, of_name in rows.items()
        for row in of_name[:MAX_TOLD]
    )


def _documents(traced: Traced) -> int:
    return sum(index.cache.manifest.documents for split in SPLITS for index in traced.indices[split].values())
