"""The manifest of a token cache: what its bytes are and everything that decided them."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Int
from pydantic import Field, ValidationError, model_validator

from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.frozen import Frozen, in_one_line
from phasewise.trainer.base.identity import NotAsWritten, digest_of_bytes, digest_of_json, unsealed, write_sealed
from phasewise.trainer.base.storage import as_path, read_json

SPAN = np.dtype("<i8")

SPAN_BYTES = 2 * SPAN.itemsize

FORMAT_VERSION = 3

PLAIN_VERSION = 2
"""The format before conversations. It is read as it is: what it lacks, a cache of plain text does not have."""

MANIFEST_NAME = "manifest.json"

Split = Literal["train", "held_out"]

SPLITS: tuple[Split, ...] = ("train", "held_out")


class SourceFile(Frozen):
    """One file that was read, by its path relative to the source's URL, and the digest of what was in it."""

    name: str
    size_bytes: int = Field(ge=0)
    digest: str


class Shard(Frozen):
    """`{name}.bin` holds the token ids, `{name}.parquet` a row a document: id, source_file, offset and length in tokens, in the shard.

    Attributes:
        spans: of a cache of conversations how many runs of tokens count, which `{name}.spans` holds; None where every token counts.
        spans_digest: of that file.
    """

    name: str
    tokens: int = Field(ge=0)
    documents: int = Field(ge=0)
    digest: str
    index_digest: str
    spans: int | None = Field(default=None, ge=0)
    spans_digest: str | None = None

    @model_validator(mode="after")
    def _has_both_or_neither(self) -> "Shard":
        if (self.spans is None) != (self.spans_digest is None):
            raise ValueError(f"shard {self.name} must have both or neither: a number of spans, and the digest of their file")
        return self

    @property
    def files(self) -> dict[str, str]:
        """Its files by name, and the digest of each."""
        found = {f"{self.name}.bin": self.digest, f"{self.name}.parquet": self.index_digest}
        return found if self.spans_digest is None else {**found, f"{self.name}.spans": self.spans_digest}


class Manifest(Frozen):
    """Written last: a folder without one is not a cache.

    Attributes:
        key: digest of everything that decides the bytes; the folder is named by it.
        source: the component's source as it was configured: URL, revision, globs, format, text key, filters, normalisation.
        sources: the files that were read.
        reader, normalizer, encoder: versions of the code that made the bytes.
        begin_of_text, end_of_text: the token ids before and after every document.
        left_out: documents that were not taken, by reason.
        text_bytes: UTF-8 bytes of the documents' text, without the begin and end tokens.
        template: digest of the chat template that made text of conversations; None for plain text.
    """

    format_version: int
    component: str
    split: Split
    key: str
    source: dict[str, Any]
    sources: tuple[SourceFile, ...]
    reader: str
    normalizer: str
    encoder: str
    tokenizer_digest: str
    begin_of_text: int = Field(ge=0)
    end_of_text: int = Field(ge=0)
    dtype: Literal["uint16", "uint32"]
    shards: tuple[Shard, ...]
    documents: int = Field(ge=0)
    tokens: int = Field(ge=0)
    text_bytes: int = Field(ge=0)
    left_out: dict[str, int]
    template: str | None = None

    @model_validator(mode="after")
    def _spans_are_of_every_shard_or_none(self) -> "Manifest":
        if len({shard.spans is None for shard in self.shards}) > 1:
            raise ValueError("some of its shards say which tokens count, and some do not")
        if self.template is None and self.has_spans:
            raise ValueError("it says which tokens count, and names no chat template")
        if self.format_version < FORMAT_VERSION and (self.template is not None or self.has_spans):
            raise ValueError(f"format version {self.format_version} has no conversations")
        return self

    @property
    def has_spans(self) -> bool:
        """Whether its shards say which tokens count."""
        return bool(self.shards) and self.shards[0].spans is not None

    @property
    def digest(self) -> str:
        """What a verdict names when it judges this cache."""
        return digest_of_json(self.as_written())

    @property
    def content(self) -> str:
        """What training sees of this cache: its tokens in order, which of them count, and what begins and ends a document.

        No version of any code is in it. Of plain text it is what it was in the format before conversations.
        """
        seen = self.model_dump(mode="json", include={"dtype", "begin_of_text", "end_of_text", "tokenizer_digest"})
        counting = [[] if shard.spans_digest is None else [shard.spans_digest] for shard in self.shards]
        shards = [[shard.digest, shard.tokens, *spans] for shard, spans in zip(self.shards, counting, strict=True)]
        return digest_of_json({**seen, "shards": shards})

    def as_written(self) -> dict[str, Any]:
        """Its fields as its own format has them."""
        fields = self.model_dump(mode="json")
        if self.format_version == PLAIN_VERSION:
            del fields["template"]
            for shard in fields["shards"]:
                del shard["spans"], shard["spans_digest"]
        return fields


def read_spans(folder: Path, shard: Shard) -> Int[np.ndarray, "n 2"]:
    """The spans of a shard.

    Raises:
        DataError: the file is missing, is not the one that was written, or holds no such spans.
    """
    path = as_path(folder) / f"{shard.name}.spans"
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path} is missing, which says what tokens count. Delete {folder} and prepare the data again.") from None
    if (found := digest_of_bytes(content)) != shard.spans_digest:
        raise DataError(
            f"{path} must have the digest {str(shard.spans_digest)[:16]} that the manifest names, found {found[:16]}: it is not the file "
            f"that was written. Delete {folder} and prepare the data again."
        )
    if len(content) != SPAN_BYTES * (shard.spans or 0):
        raise DataError(f"{path} must hold {shard.spans} spans, found {len(content)} bytes. Delete {folder} and prepare the data again.")
    spans = np.frombuffer(content, SPAN).reshape(-1, 2).astype(np.int64)
    # Whether they ascend, do not overlap, are not empty, and lie within so many tokens
    edges = spans.reshape(-1)
    within = not len(edges) or (edges[0] >= 0 and edges[-1] <= shard.tokens)
    if not bool(within and (np.diff(edges) >= 0).all() and (spans[:, 0] < spans[:, 1]).all()):
        raise DataError(f"{path} holds no ascending spans of {shard.tokens} tokens. Delete {folder} and prepare the data again.")
    return spans


def counted(spans: Int[np.ndarray, "n 2"], first: int, length: int) -> Bool[np.ndarray, " length"]:
    """Which of the tokens `[first, first + length)` lie in a span. Spans ascend and do not overlap, as `TokenCache.spans` has them."""
    return counted_in_rows(spans, np.array([first]), length)[0]


def counted_in_rows(spans: Int[np.ndarray, "n 2"], firsts: Int[np.ndarray, " b"], length: int) -> Bool[np.ndarray, "b length"]:
    """The same for rows of one length that begin at these tokens.

    Of all edges of spans up to a token, an odd number means that it is inside one: where one ends and the next begins, both are passed.
    """
    edges = spans.reshape(-1)
    numbers = np.asarray(firsts, np.int64)[:, None] + np.arange(length)
    return np.searchsorted(edges, numbers, side="right") % 2 == 1


def answers_of(manifest: Manifest, spans: Int[np.ndarray, "n 2"] | None) -> Int[np.ndarray, "n 2"]:
    """The spans of a cache, where only answers are asked for.

    Args:
        spans: what `TokenCache.spans` says.

    Raises:
        DataError: it has none: it is plain text, or its chat template does not say what an answer is.
    """
    if spans is not None:
        return spans
    if manifest.template is None:
        raise DataError(
            f"component {manifest.component} must be of conversations where only answers count, found plain text: give its source a "
            "`conversation`, or let every token count."
        )
    raise DataError(
        f"component {manifest.component} must say what an answer is where only answers count, and its chat template does not: put "
        "{% generation %} … {% endgeneration %} around what the assistant writes, with the token that ends its turn."
    )


def write_manifest(folder: str | Path, manifest: Manifest) -> None:
    """Write a cache's manifest with its own digest beside its fields: one that was edited later is found out."""
    write_sealed(as_path(folder) / MANIFEST_NAME, manifest.as_written())


def read_manifest(folder: str | Path) -> Manifest:
    """The manifest in a cache's folder.

    Raises:
        DataError: there is none, it does not read as one, or it is not the one that was written.
    """
    path = as_path(folder) / MANIFEST_NAME
    try:
        content = read_json(path)
        version = content.get("format_version")
    except FileNotFoundError:
        raise DataError(
            f"{folder} is not a finished token cache: it has no {MANIFEST_NAME}. Build it with `phasewise data prepare`."
        ) from None
    except (ValueError, AttributeError) as error:
        raise DataError(f"{path} does not read as a manifest: {error}. Delete {folder} and prepare the data again.") from None
    if version not in (PLAIN_VERSION, FORMAT_VERSION):
        raise DataError(
            f"{path} has format version {version}, this program reads {PLAIN_VERSION} (plain text) and {FORMAT_VERSION}: build it again."
        )
    try:
        return Manifest.model_validate(unsealed(content, path))
    except NotAsWritten as error:
        raise DataError(f"{error}. Delete {folder} and prepare the data again.") from None
    except ValidationError as error:
        raise DataError(f"{path} does not read as a manifest: {in_one_line(error)}") from None
