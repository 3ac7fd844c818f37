"""What a component is made of, as data: files by URL, how they are read, what is left out and what is normalised."""

import re
from typing import Any, Literal

import fsspec
from pydantic import Field, field_validator, model_validator

from phasewise.tasks.data.conversation import Conversation
from phasewise.tasks.data.filters import Filter, Normalization
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.storage import as_path, check_no_secret
from phasewise.trainer.data.manifest import Split

Format = Literal["jsonl", "parquet", "arrow", "text", "markdown", "paragraphs"]
WITHOUT_FIELDS = ("text", "markdown", "paragraphs")
"""Formats whose documents are text alone."""


class Pin(Frozen):
    """The cache in this folder, whose manifest must have this digest, is the component's. It is checked like any other cache.

    Attributes:
        component, split: which of the recipe's caches it is used as.
        url: the cache's folder, local or an fsspec URL.
        digest: the digest in its manifest, as `phasewise data prepare --json` gives it.
    """

    component: str = Field(min_length=1)
    split: Split
    url: str = Field(min_length=1)
    digest: str = Field(pattern=r"^[0-9a-f]{64}$")

    @field_validator("url")
    @classmethod
    def _carries_no_secret(cls, url: str) -> str:
        check_no_secret(url, "url")
        return url


fsspec.register_implementation("hf", "phasewise.tasks.data.hub.Hub", clobber=True)  # by name: whoever reads nothing there imports nothing


class HubTrouble(OSError):
    """The hub does not answer as it should: it says nothing of the data, and trying again later may help."""


class Source(Frozen):
    """The files of a component and how they become documents.

    Attributes:
        url: fsspec URL of the folder that the globs start from, such as `gs://bucket/folder` or `hf://datasets/OWNER/NAME`.
        revision: commit or tag of a Hugging Face data set.
        listing: URL of a text file (also packed) with a path relative to `url` on each line, for a server that lists nothing itself.
        include, exclude: globs over paths relative to `url`; a file is read if it matches one of the first and none of the second.
        format: `jsonl`, `parquet`, `arrow`; or `text` and `markdown`, where a file is one document, and `paragraphs`, where it is cut at
            blank lines into documents of about 2,000 characters. Each also packed (gzip, Zstandard,
            xz, bzip2, LZ4) and in zip and tar, whatever it is called; a file of another format fails the preparation.
        text_key: the field that holds a document's text; a dot reaches into an object.
        conversation: how a record holds a conversation, and what makes text of it, instead of `text_key`.
        filters: a document must pass each of them.
        max_bad_fraction: the share of documents, and of files, that may be unreadable before the component is refused.
        max_empty_fraction: the share of documents, and of files, that may hold no text: null, `""`, space alone, a conversation with an
            empty message or without an answer, a file without documents. They are left out and counted.
    """

    url: str
    revision: str | None = None
    listing: str | None = None
    include: tuple[str, ...] = Field(min_length=1)
    exclude: tuple[str, ...] = ()
    format: Format
    text_key: str = "text"
    conversation: Conversation | None = None
    filters: tuple[Filter, ...] = ()
    normalization: Normalization = Normalization()
    max_bad_fraction: float = Field(default=0.0, ge=0, le=1)
    max_empty_fraction: float = Field(default=0.5, ge=0, le=1)

    @model_validator(mode="after")
    def _addresses_carry_no_secret(self) -> "Source":
        check_no_secret(self.url, "url")
        check_no_secret(self.listing, "listing")
        return self

    @model_validator(mode="after")
    def _revision_is_of_the_hub(self) -> "Source":
        if self.revision is not None and not re.match(r"hf://[^/]+/[^/]+/[^/]+", self.url):
            raise ValueError(
                f"a revision belongs to a Hugging Face data set (hf://datasets/OWNER/NAME), found {self.revision} with {self.url}"
            )
        return self

    @model_validator(mode="after")
    def _conversation_has_fields(self) -> "Source":
        if self.conversation is None:
            return self
        if self.format in WITHOUT_FIELDS:
            raise ValueError(f"conversations need records with fields (jsonl, parquet or arrow), found the format {self.format}")
        if self.text_key != Source.model_fields["text_key"].default:
            raise ValueError(f"a source has its text in a field, or conversations: found the text_key {self.text_key!r} and both")
        return self

    @property
    def root(self) -> str:
        """As fsspec takes it: a path on this machine without its escapes, a data set of the hub with its revision after its name."""
        if self.url.startswith("file:"):
            return str(as_path(self.url))
        if self.revision is None:
            return self.url
        protocol, _, path = self.url.partition("://")
        kind, owner, name, *folders = path.split("/")
        return f"{protocol}://{'/'.join([kind, owner, f'{name}@{self.revision}', *folders])}"

    def described(self) -> dict[str, Any]:
        """What a manifest says of it. Where a folder of this machine lies is not part of it: a copy is the same source."""
        fields = self.model_dump(mode="json")
        if self.url.startswith("file:") or "://" not in self.url:
            del fields["url"]
        return fields


class Piece(Frozen):
    """A stretch of one file that one worker reads: bytes `[start, stop)` of plain JSON lines, otherwise the whole file (`None`).

    A line belongs to the piece in which its first byte lies. `name` is relative to the source's URL.
    """

    name: str
    url: str
    start: int | None = None
    stop: int | None = None
