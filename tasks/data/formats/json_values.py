"""JSON of bounded size in memory: of three bytes (`[],`) CPython makes seventy-two. NaN and Infinity, as Python writes them, are null."""

import re

import orjson

from phasewise.tasks.data.formats.findings import FileFault

ALWAYS_PARSED_BYTES = 2**20
MAX_VALUES_BYTES = 320 * 2**20
OBJECT_BYTES, VALUE_BYTES = 200, 64  # of an object with one field, of a short string: a little more than CPython's
STRING = re.compile(rb'"(?:[^"\\]+|\\.)*+"', re.DOTALL)
NOT_FINITE = re.compile(STRING.pattern + rb"|(NaN|-?Infinity)\b", re.DOTALL)


def loads(raw: bytes) -> object:
    """The value that is there. `json.dumps`, and with it pandas, writes NaN and Infinity for numbers that JSON has not: they become null.

    Raises:
        orjson.JSONDecodeError: there is no value.
        FileFault: its lists, objects and numbers would take more memory than they may.
    """
    if len(raw) > ALWAYS_PARSED_BYTES and _held_bytes(raw) > MAX_VALUES_BYTES and _held_bytes(STRING.sub(b'""', raw)) > MAX_VALUES_BYTES:
        raise FileFault(
            "expands too much", f"{len(raw)} bytes of JSON hold more than {MAX_VALUES_BYTES} bytes of lists, objects and numbers"
        )
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        if b"NaN" not in raw and b"Infinity" not in raw:
            raise
        return orjson.loads(NOT_FINITE.sub(lambda found: b"null" if found[1] else found[0], raw))


def _held_bytes(raw: bytes) -> int:
    """What the values take at most: of objects, lists, and what is between commas and behind colons."""
    return OBJECT_BYTES * (raw.count(b"{") + raw.count(b"[")) + VALUE_BYTES * (raw.count(b",") + raw.count(b":"))
