"""What reading a file comes to, document by document: a text, a fault with its reason, or a document that a filter leaves out."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

NOT_AN_OBJECT = object()
"""What is there instead of the object that a key expects."""
MAX_EXPANSION = 200
FREE_EXPANSION_BYTES = 100 * 2**20
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


def reach(document: object, key: str) -> object:
    """The value under `key`, `None` if there is none, `NOT_AN_OBJECT` if the way to it leads through something else.

    A field whose own name has the dots comes first.
    """
    if not isinstance(document, Mapping):
        return NOT_AN_OBJECT
    fields = cast("Mapping[str, object]", document)
    if key in fields or "." not in key:
        return fields.get(key)
    value: object = fields
    for name in key.split("."):
        if value is None:
            return None
        if not isinstance(value, Mapping):
            return NOT_AN_OBJECT
        value = value.get(name)
    return value


def is_there(document: Mapping[str, object], key: str) -> bool:
    """Whether a document has the field: null counts, also as the object that a dot reaches into."""
    outer, _, name = key.rpartition(".")
    if key in document or not outer:
        return key in document
    holder = reach(document, outer)
    return is_there(document, outer) if holder is None else isinstance(holder, Mapping) and name in holder


def unread_fields(document: Mapping[str, object], read: Collection[str]) -> Iterator[tuple[str, object]]:
    """The fields, by their keys, that none of the keys `read` reads. Of an object that a dot reaches into, these are its other fields."""
    dotted = [key for key in read if "." in key]
    for name, value in document.items():
        if name in read:
            continue
        inner = [key.removeprefix(f"{name}.") for key in dotted if key.startswith(f"{name}.")]
        if inner and isinstance(value, Mapping):
            others = unread_fields(cast("Mapping[str, object]", value), inner)
            yield from ((f"{name}.{other}", found) for other, found in others)
        else:
            yield name, value


def texts_in(value: object, *, with_names: bool = True) -> Iterator[str]:
    """Every text in a field, and the names of the fields of its objects if they are wanted. However deep it is nested."""
    waiting: list[object] = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, list):
            waiting += cast("list[object]", one)
        elif isinstance(one, Mapping):
            fields = cast("Mapping[str, object]", one)
            waiting += [*fields, *fields.values()] if with_names else fields.values()


def has_text(value: object) -> bool:
    """Whether a field holds any text but space. An object does by its values: its names alone say nothing."""
    if isinstance(value, str):
        return bool(value) and not value.isspace()
    return any(text and not text.isspace() for text in texts_in(value, with_names=False))


def check_expansion(unpacked_bytes: int, packed_bytes: int) -> None:
    """Refuse what unfolds like a bomb: text rarely packs better than 20 to 1, gzip can reach 1,000 and Zstandard 30,000 to 1.

    Raises:
        FileFault: more than 200 bytes come of one, counted once there are 100 MiB.
    """
    if unpacked_bytes > FREE_EXPANSION_BYTES and unpacked_bytes > MAX_EXPANSION * packed_bytes:
        raise FileFault(
            "expands too much", f"{packed_bytes} bytes unfold into {unpacked_bytes} and more, at most {MAX_EXPANSION} of one are taken"
        )


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


Finding = Record | Fault | LeftOut
Sift = Callable[[str, str, Mapping[str, object]], Record | LeftOut]
"""Text, where it is, and its document's fields → the record, or why it is left out."""


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


Taken = Finding | Unrendered
"""What a record comes to as soon as it is read."""


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
