"""The manifest of a token cache: the digests of its files and everything that decided their bytes."""

from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Int
from pydantic import Field, ValidationError, model_validator

from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.frozen import Frozen, in_one_line
from phasewise.trainer.base.identity import NotAsWritten, digest_of_json, unsealed, write_sealed
from phasewise.trainer.base.storage import as_path, read_json

SPAN = np.dtype("<i8")
SPAN_BYTES = 2 * SPAN.itemsize
FORMAT_VERSION = 3
PLAIN_VERSION = 2  # the format before conversations. It lacks only fields that a cache of plain text does not have
MANIFEST_NAME = "manifest.json"
Split = Literal["train", "held_out"]
SPLITS: tuple[Split, ...] = ("train", "held_out")


class SourceFile(Frozen):
    """A source file: its path relative to the source's URL, and the digest of its content."""

    name: str
    size_bytes: int = Field(ge=0)
    digest: str


class Shard(Frozen):
    """`{name}.bin` has the token ids, `{name}.parquet` a row for each document: id, source_file, offset and length in tokens."""

    name: str
    tokens: int = Field(ge=0)
    documents: int = Field(ge=0)
    digest: str
    index_digest: str
    # number of runs of counted tokens in `{name}.spans`, for a cache of conversations. None if every token counts
    spans: int | None = Field(default=None, ge=0)
    spans_digest: str | None = None  # digest of `{name}.spans`

    @model_validator(mode="after")
    def _has_both_or_neither(self) -> "Shard":
        if (self.spans is None) != (self.spans_digest is None):
            raise ValueError(f"shard {self.name} must have both or neither: a number of spans, and the digest of their file")
        return self

    @property
    def files(self) -> dict[str, str]:
        """File name → digest."""
        found = {f"{self.name}.bin": self.digest, f"{self.name}.parquet": self.index_digest}
        return found if self.spans_digest is None else {**found, f"{self.name}.spans": self.spans_digest}


class Manifest(Frozen):
    """Written last: a folder without a manifest is not a cache."""

    format_version: int
    component: str
    split: Split
    key: str  # digest of everything that decides the bytes, and name of the folder
    source: dict[str, Any]  # the component's source as configured: URL, revision, globs, format, text key, filters, normalisation
    sources: tuple[SourceFile, ...]  # all files of the source
    reader: str  # versions of the code that wrote the bytes
    normalizer: str
    encoder: str
    tokenizer_digest: str
    # the ids of BOS and EOS around every document, None for a tokenizer that lacks one of them
    begin_of_text: int | None = Field(ge=0)
    end_of_text: int | None = Field(ge=0)
    dtype: Literal["uint16", "uint32"]
    shards: tuple[Shard, ...]
    documents: int = Field(ge=0)
    tokens: int = Field(ge=0)
    text_bytes: int = Field(ge=0)  # UTF-8 bytes of the documents' text, without the begin and end tokens
    left_out: dict[str, int]  # reason → number of omitted documents
    template: str | None = None  # digest of the chat template that rendered the conversations, or None for plain text

    @model_validator(mode="after")
    def _spans_are_of_every_shard_or_none(self) -> "Manifest":
        with_spans = sum(shard.spans is not None for shard in self.shards)
        if 0 < with_spans < len(self.shards):
            raise ValueError("some of its shards name the tokens that count, and some do not")
        if self.begin_of_text is None and self.end_of_text is None:
            raise ValueError("its documents neither begin nor end with a token")
        if self.template is None and with_spans:
            raise ValueError("its shards name the tokens that count, and it names no chat template")
        if self.format_version < FORMAT_VERSION and (self.template is not None or with_spans):
            raise ValueError(f"format version {self.format_version} has no conversations")
        return self

    @property
    def digest(self) -> str:
        """The digest by which a verdict names this cache."""
        return digest_of_json(self.as_written())

    @property
    def content(self) -> str:
        """The digest of everything that training reads: the tokens in order, the counted spans, BOS and EOS.

        It depends on no version of code. For plain text it has the same value in both formats.
        """
        seen = self.model_dump(mode="json", include={"dtype", "begin_of_text", "end_of_text", "tokenizer_digest"})
        shards = [
            [shard.digest, shard.tokens] + ([] if shard.spans_digest is None else [shard.spans_digest])  # no digest for plain text
            for shard in self.shards
        ]
        return digest_of_json({**seen, "shards": shards})

    def as_written(self) -> dict[str, Any]:
        """Return the fields of the manifest's own format version."""
        fields = self.model_dump(mode="json")
        if self.format_version == PLAIN_VERSION:
            del fields["template"]
            for shard in fields["shards"]:
                del shard["spans"], shard["spans_digest"]
        return fields


def counted_in_rows(spans: Int[np.ndarray, "n 2"], firsts: Int[np.ndarray, " b"], length: int) -> Bool[np.ndarray, "b length"]:
    """Return whether each token of rows of one length, from these first tokens on, is in a span. Spans ascend and do not overlap.

    A token is inside a span if the number of span edges up to the token is odd. If two spans touch, both edges count.
    """
    edges = spans.reshape(-1)
    numbers = np.asarray(firsts, np.int64)[:, None] + np.arange(length)
    return np.searchsorted(edges, numbers, side="right") % 2 == 1


def answers_of(manifest: Manifest, spans: Int[np.ndarray, "n 2"] | None) -> Int[np.ndarray, "n 2"]:
    """Return the spans of a cache for a loss on answers only. Raises DataError for plain text, or a template that marks no answers."""
    if spans is not None:
        return spans
    if manifest.template is None:
        raise DataError(
            f"component {manifest.component} must be of conversations if only answers count, found plain text: give its source a "
            "`conversation`, or let every token count."
        )
    raise DataError(
        f"component {manifest.component} must mark its answers if only answers count, and its chat template does not: put "
        "{% generation %} … {% endgeneration %} around the assistant's text, with the token that ends its turn."
    )


def write_manifest(folder: str | Path, manifest: Manifest) -> None:
    """Write a cache's manifest with its own digest as a seal, so that a later edit is detected."""
    write_sealed(as_path(folder) / MANIFEST_NAME, manifest.as_written())


def read_manifest(folder: str | Path) -> Manifest:
    """Return the manifest in a cache's folder. Raises DataError if it is missing, not valid, or was changed."""
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


def find_manifest(folder: Path) -> Manifest | None:
    """Return the manifest in a cache's folder, or None if `read_manifest` raises DataError."""
    with suppress(DataError):
        return read_manifest(folder)
    return None
