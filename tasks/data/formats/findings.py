"""What reading a file comes to, document by document: a text, a fault with its reason, or a document that a filter leaves out."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

MAX_DOCUMENT_BYTES = 32 * 2**20
MAX_SAMPLE_CHARACTERS = 200

Reason = Literal[
    "broken JSON",
    "not UTF-8",
    "missing key",
    "wrong type",
    "half a surrogate pair",
    "truncated",
    "too long",
    "unknown role",
    "two system texts",
    "call of a tool",
    "part that is not text",
    "weight is not 0 or 1",
    "weight 0 without marks around the answer",
    "field of a message that nothing reads",
    "special token in a message",
    "refused by the chat template",
    "expands too much",
    "unreadable",
    "other format",
    "broken link",
    "outside the root",
    "no regular file",
    "name not readable",
]
NoText = Literal["empty file", "empty text", "empty content", "no answer", "no messages"]
"""Why a file, a document or a conversation holds no text: left out, counted, and no fault."""


class Record(NamedTuple):
    """A document's text as it is in the file. `where` is `byte 1234` of JSON lines, `row 5` of a table, both from 0, or `file`.

    Of a conversation it is what its chat template wrote, already normalised, and `spans` are the characters that count: `[start, stop)`.
    `beside` names the fields with text that are not read, and `unread` those of them that may be a part of the conversation.
    """

    text: str
    where: str
    spans: tuple[tuple[int, int], ...] | None = None
    beside: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


class Fault(NamedTuple):
    """A document, or with `whole_file` the rest of a file, that cannot be used. `sample` is how it begins, or what the library says."""

    reason: Reason
    where: str
    sample: str
    whole_file: bool = False


class LeftOut(NamedTuple):
    """A document, or with `whole_file` a file, that reads well and is not wanted."""

    reason: str
    where: str
    whole_file: bool = False


class Unrendered(NamedTuple):
    """A conversation whose chat template has not made text of it yet.

    Attributes:
        messages: `messages.Message` each.
        line: the messages as the process that renders is given them.
    """

    messages: Sequence[Any]
    line: bytes
    where: str
    record: Mapping[str, object]


Finding = Record | Fault | LeftOut
Taken = Finding | Unrendered
"""What a record comes to as soon as it is read."""
Sift = Callable[[str, str, Mapping[str, object]], Record | LeftOut]
"""Text, where it is, and its document's fields → the record, or why it is left out."""


class FileFault(Exception):
    """Reading of the file ends here; what was read before is kept."""

    def __init__(self, reason: Reason | Literal["empty file"], found: str):
        super().__init__(found)
        self.reason: Reason | Literal["empty file"] = reason


def sample_of(raw: bytes) -> str:
    """How a document begins, whatever its bytes are."""
    return raw[: 4 * MAX_SAMPLE_CHARACTERS].decode(errors="replace")[:MAX_SAMPLE_CHARACTERS]


def reason_against(raw: bytes) -> Reason:
    """Why these bytes do not decode: some writers spell half of a surrogate pair as if it were a character."""
    try:
        raw.decode(errors="surrogatepass")
    except UnicodeDecodeError:
        return "not UTF-8"
    return "half a surrogate pair"
