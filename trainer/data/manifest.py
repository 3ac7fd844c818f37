"""The manifest of a token cache: what its bytes are and everything that decided them."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from trainer.base.errors import DataError
from trainer.base.frozen import Frozen
from trainer.base.storage import as_path, digest_of_json, read_json, write_json

FORMAT_VERSION = 3
MANIFEST_NAME = "manifest.json"
Split = Literal["train", "held_out"]
SPLITS: tuple[Split, ...] = ("train", "held_out")


class SourceFile(Frozen):
    """One file that was read, by its path relative to the source's URL, and the digest of what was in it."""

    name: str
    size_bytes: int = Field(ge=0)
    digest: str


class Shard(Frozen):
    """`{name}.bin` holds the token ids, `{name}.parquet` a row a document: id, source_file, offset and length in tokens, in the shard."""

    name: str
    tokens: int = Field(ge=0)
    documents: int = Field(ge=0)
    digest: str
    index_digest: str
    spans: int | None = None
    spans_digest: str | None = None


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

    @property
    def digest(self) -> str:
        """What a verdict names when it judges this cache."""
        return digest_of_json(self.model_dump(mode="json"))

    @property
    def content(self) -> str:
        """What training sees of this cache: its tokens in order, and what begins and ends a document. No version of any code is in it."""
        seen = self.model_dump(mode="json", include={"dtype", "begin_of_text", "end_of_text", "tokenizer_digest"})
        shards = [[shard.digest, shard.tokens, *([shard.spans_digest] if shard.spans_digest else [])] for shard in self.shards]
        return digest_of_json({**seen, "shards": shards})


def write_manifest(folder: str | Path, manifest: Manifest) -> None:
    """Write a cache's manifest with its own digest beside its fields: one that was edited later is found out."""
    write_json(as_path(folder) / MANIFEST_NAME, {**manifest.model_dump(mode="json"), "digest": manifest.digest})


def read_manifest(folder: str | Path) -> Manifest:
    """The manifest in a cache's folder.

    Raises:
        DataError: there is none, it does not read as one, or it is not the one that was written.
    """
    path = as_path(folder) / MANIFEST_NAME
    try:
        content = read_json(path)
        version, digest = content.get("format_version"), content.pop("digest", None)
    except FileNotFoundError:
        raise DataError(
            f"{folder} is not a finished token cache: it has no {MANIFEST_NAME}. Build it with `phasewise data prepare`."
        ) from None
    except (ValueError, AttributeError) as error:
        raise DataError(f"{path} does not read as a manifest: {error}") from None
    if version != FORMAT_VERSION:
        raise DataError(f"{path} has format version {version}, this program reads {FORMAT_VERSION}: build the cache again.")
    try:
        manifest = Manifest.model_validate(content)
    except ValidationError as error:
        raise DataError(f"{path} does not read as a manifest: {error}") from None
    if manifest.digest != digest:
        raise DataError(f"{path} was changed after it was written: its digest is {manifest.digest[:16]}, it says {str(digest)[:16]}.")
    return manifest
