"""The manifest of a token cache: what its bytes are and everything that decided them."""

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from trainer.config import Frozen
from trainer.errors import DataError
from trainer.storage import digest_of_json, read_json

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
Split = Literal["train", "held_out"]


class SourceFile(Frozen):
    """One file that was read, and the SHA-256 of what was in it."""

    url: str
    size_bytes: int = Field(ge=0)
    digest: str


class Shard(Frozen):
    """`{name}.bin` holds the token ids, `{name}.parquet` a row a document: id, source_file, offset and length in tokens, in the shard."""

    name: str
    tokens: int = Field(ge=0)
    documents: int = Field(ge=0)
    digest: str
    index_digest: str


class Manifest(Frozen):
    """Written last: a folder without one is not a cache.

    Attributes:
        key: digest of everything that decides the bytes; the folder is named by it.
        text_bytes: UTF-8 bytes of the documents' text, without the begin and end tokens.
    """

    format_version: int
    component: str
    split: Split
    key: str
    sources: tuple[SourceFile, ...]
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    reader: str
    normalizer: str
    tokenizer_digest: str
    dtype: Literal["uint16", "uint32"]
    shards: tuple[Shard, ...]
    documents: int = Field(ge=0)
    tokens: int = Field(ge=0)
    text_bytes: int = Field(ge=0)

    @property
    def digest(self) -> str:
        """What a verdict names when it judges this cache."""
        return digest_of_json(self.model_dump(mode="json"))


def read_manifest(folder: str | Path) -> Manifest:
    """The manifest in a cache's folder.

    Raises:
        DataError: there is none, or it does not read as one.
    """
    path = Path(folder) / MANIFEST_NAME
    try:
        manifest = Manifest.model_validate(read_json(path))
    except FileNotFoundError:
        raise DataError(
            f"{folder} is not a finished token cache: it has no {MANIFEST_NAME}. Build it with `phasewise data prepare`."
        ) from None
    except (ValidationError, ValueError) as error:
        raise DataError(f"{path} does not read as a manifest: {error}") from None
    if manifest.format_version != FORMAT_VERSION:
        raise DataError(f"{path} has format version {manifest.format_version}, this program reads {FORMAT_VERSION}: build the cache again.")
    return manifest
