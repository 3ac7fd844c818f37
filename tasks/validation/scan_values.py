"""The strings of a row as one text: an item whose question and answer are in fields of their own is whole again."""

import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple, cast

import orjson

from phasewise.tasks.data.findings import FileFault
from phasewise.tasks.data.streams import is_text
from phasewise.tasks.data.text_files import BYTE_ORDER_MARK, loads

TEXT_KEY, ID_KEY = "text", "id"
MIN_WORDS_OF_KEY = 4
MAX_TEXT_CHARACTERS = 2**24  # of a row: with four bytes each 64 MiB


class Text(NamedTuple):
    """A document as it is scanned: its own id, if it has one, its text in UTF-8, and whether that is readable."""

    id: str
    text: bytes
    readable: bool = True


def text_of_line(line: bytes) -> Text:
    """Return a line of JSON as a text; one that does not parse, or would take too much memory, as it is."""
    try:
        return text_of_value(loads(line.removeprefix(BYTE_ORDER_MARK)))
    except (orjson.JSONDecodeError, FileFault):
        return Text("", as_utf8(line), readable=is_text(line, cut=False))


def text_of_value(value: object) -> Text:
    """Return a row's own id, and all its strings: the field `text` first, the others in their order, an id that is a text itself last."""
    if not isinstance(value, dict):
        return Text("", joined(strings(value)))
    row = cast("dict[str, object]", value)
    first = row.get(TEXT_KEY)
    found = [first] if isinstance(first, str) else []
    for name, each in row.items():
        if name == ID_KEY or (name == TEXT_KEY and found and found[0] is each):
            continue
        if " " in name and _is_sentence(name):
            found.append(name)
        if isinstance(each, str):
            found.append(each)
        else:
            found.extend(strings(each))
    return next(texts_of(row.get(ID_KEY), found, max_characters=sys.maxsize))


def texts_of(id: object, found: list[str], *, max_characters: int = MAX_TEXT_CHARACTERS) -> Iterator[Text]:
    """Yield the id as a name, and the text, which an id of several words belongs to. A text too long to be held comes in pieces."""
    is_name = isinstance(id, str | int) and len(str(id).split()) <= 1
    if not is_name:
        found = [*found, *strings(id)]
    name = str(id) if isinstance(id, str | int) else ""
    if sum(map(len, found)) <= max_characters:
        yield Text(name, joined(found))
        return
    held: list[str] = []
    for part in (one[start : start + MAX_TEXT_CHARACTERS] for one in found for start in range(0, len(one), MAX_TEXT_CHARACTERS)):
        if held and sum(map(len, held)) + len(part) > max_characters:
            yield Text(name, joined(held))
            held = []
        held.append(part)
    yield Text(name, joined(held))


def joined(found: Iterable[str]) -> bytes:
    """Return strings with line ends between."""
    return "\n".join(found).encode(errors="replace")


def strings(value: object) -> Iterator[str]:
    """Yield every string in a value, in order. Keys that are sentences are strings, too: some files have the question for a key.

    A stack of our own: JSON may be nested more deeply than Python calls itself.
    """
    waiting: list[object] = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            row = cast("dict[str, object]", value)
            for key in reversed(row):
                waiting.append(row[key])
                if _is_sentence(key):
                    waiting.append(key)
        elif isinstance(value, list):
            waiting.extend(reversed(cast("list[object]", value)))


def _is_sentence(key: str) -> bool:
    return key.count(" ") + 1 >= MIN_WORDS_OF_KEY


def as_utf8(raw: bytes) -> bytes:
    """Return the bytes, with the mark for what cannot be read in place of what is not UTF-8."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return raw.decode(errors="replace").encode()
    return raw
