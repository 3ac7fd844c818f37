"""What a component is made of, as data: files by URL, how they are read, what is left out and what is normalised."""

import re
from typing import Annotated, Any, Literal

import fsspec
from pydantic import Field, model_validator

from phasewise.tasks.data.conversations.declared import Conversation
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.secrets import check_no_secret
from phasewise.trainer.base.storage import as_path

fsspec.register_implementation("hf", "phasewise.tasks.data.hub.Hub", clobber=True)  # by name: whoever reads nothing there imports nothing
Format = Literal["jsonl", "parquet", "arrow", "text", "markdown", "paragraphs"]
WITHOUT_FIELDS = ("text", "markdown", "paragraphs")
"""Formats whose documents are text alone."""


class HubTrouble(OSError):
    """The hub does not answer as it should: it says nothing of the data, and trying again later may help."""


class FieldFilter(Frozen):
    """Keeps a document whose field is one of these values. A dot reaches into an object: `metadata.extension`."""

    kind: Literal["field"] = "field"
    key: str
    keep: tuple[str, ...] = Field(min_length=1)


class TextFilter(Frozen):
    """Keeps a document whose text measures at least `min` and at most `max`. Shares are in percent of the characters."""

    kind: Literal["text"] = "text"
    measure: Literal["characters", "words", "digit_percent", "special_percent"]
    min: float | None = None
    max: float | None = None

    @model_validator(mode="after")
    def _limits_something(self) -> "TextFilter":
        if self.min is None and self.max is None:
            raise ValueError(f"a filter by {self.measure} needs a min or a max")
        return self


Filter = Annotated[FieldFilter | TextFilter, Field(discriminator="kind")]


class Normalization(Frozen):
    """What is normalised in every text: Unicode's composed form, plain line ends, and, if wished, no spaces at the ends of lines."""

    unicode: Literal["NFC"] | None = "NFC"
    line_ends: Literal["lf", "keep"] = "lf"
    trailing_spaces: Literal["keep", "strip"] = "keep"


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
