"""The manifest of a token cache: what its bytes are and everything that decided them."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import NotAsWritten, digest_of_json, unsealed, write_sealed
from phasewise.trainer.base.problems import in_one_line
from phasewise.trainer.base.storage import as_path, read_json

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
