"""The declaration of a component's source: files by URL, format, selection and normalisation."""

import re
from typing import Any, Literal

import fsspec
from pydantic import Field, field_validator, model_validator

from phasewise.tasks.data.conversation import Conversation
from phasewise.tasks.data.filters import Filter, Normalization
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.storage import as_path, check_no_secret
from phasewise.trainer.data.manifest import Split

Deduplicate = Literal["exact", "near"]
Format = Literal["jsonl", "parquet", "arrow", "text", "markdown", "paragraphs"]
WITHOUT_FIELDS = ("text", "markdown", "paragraphs")  # formats whose documents have only text
fsspec.register_implementation("hf", "phasewise.tasks.data.hub.Hub", clobber=True)  # by name, so that only users of the hub import it


class HubTrouble(OSError):
    """The hub fails in a way that says nothing about the data. A later retry may help."""


class Pin(Frozen):
    """An existing cache for a component. It is verified like any other cache.

    Attributes:
        component, split: replaced cache of the recipe.
        url: folder of the cache, local or an fsspec URL.
        digest: digest of its manifest, from `phasewise data prepare --json`.
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


class Source(Frozen):
    """The files of a component and their conversion to documents.

    Attributes:
        url: fsspec URL of the folder for the globs, such as `gs://bucket/folder` or `hf://datasets/OWNER/NAME`.
        revision: commit or tag of a Hugging Face data set.
        listing: URL of a text file, optionally packed, with one path relative to `url` on each line, for servers without listings.
        include, exclude: globs over paths relative to `url`. A file must match an `include` glob and no `exclude` glob.
        format: `jsonl`, `parquet` or `arrow` for records. In `text` and `markdown` a file is a document. `paragraphs` cuts files at blank
            lines into documents of about 2,000 characters. Files may be packed (gzip, Zstandard, xz, bzip2, LZ4) or in zip and tar, under
            any name. A file of another format fails the preparation.
        text_key: field with a document's text. A dot selects a field of an object.
        conversation: layout and template of conversations, instead of `text_key`.
        filters: a document must pass all filters.
        deduplicate: `exact` leaves out documents that repeat the text of an earlier one, `near` documents that repeat most words of an
            earlier one as well. None keeps every document.
        max_bad_fraction: limit for the share of unusable documents, and of files with faults.
        max_empty_fraction: limit for the share of documents, and of files, without text: null, `""`, white space, a conversation with an
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
    deduplicate: Deduplicate | None = "exact"
    max_bad_fraction: float = Field(default=0.0, ge=0, le=1)
    max_empty_fraction: float = Field(default=0.5, ge=0, le=1)

    @model_validator(mode="after")
    def _is_consistent(self) -> "Source":
        check_no_secret(self.url, "url")
        check_no_secret(self.listing, "listing")
        if self.revision is not None and not re.match(r"hf://[^/]+/[^/]+/[^/]+", self.url):
            raise ValueError(
                f"a revision belongs to a Hugging Face data set (hf://datasets/OWNER/NAME), found {self.revision} with {self.url}"
            )
        if self.conversation is None:
            return self
        if self.format in WITHOUT_FIELDS:
            raise ValueError(f"conversations need records with fields (jsonl, parquet or arrow), found the format {self.format}")
        if self.text_key != Source.model_fields["text_key"].default:
            raise ValueError(f"a source has its text in a field, or conversations: found the text_key {self.text_key!r} and both")
        return self

    @property
    def root(self) -> str:
        """The URL for fsspec: an unescaped local path, or a data set with its revision."""
        if self.url.startswith("file:"):
            return str(as_path(self.url))
        if self.revision is None:
            return self.url
        protocol, _, path = self.url.partition("://")
        kind, owner, name, *folders = path.split("/")
        return f"{protocol}://{'/'.join([kind, owner, f'{name}@{self.revision}', *folders])}"

    def described(self) -> dict[str, Any]:
        """The source in a manifest, without the folder of local files, because a copy is the same source, and without `exact`."""
        fields = self.model_dump(mode="json")
        if self.deduplicate == "exact":
            del fields["deduplicate"]
        if self.url.startswith("file:") or "://" not in self.url:
            del fields["url"]
        return fields


class Piece(Frozen):
    """A part of a file for one worker: a whole file, or plain JSON lines whose first byte is in `[start, stop)`."""

    name: str
    url: str
    start: int | None = None
    stop: int | None = None
