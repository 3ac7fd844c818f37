"""Structs of Thrift's compact protocol as plain values: in these a Parquet file says what it holds.

A struct is a mapping from its fields' numbers to values; numbers, bytes, lists and structs are what they are, of a map there is nothing.
"""

from typing import Any

Struct = dict[int, Any]
MAX_DEPTH = 12
MAX_NUMBER_BITS = 63
TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)


def read_struct(raw: bytes, at: int = 0) -> tuple[Struct, int]:
    """The struct that begins there, and the byte behind it.

    Raises:
        IndexError: it goes on behind the end of `raw`.
        ValueError: it is no struct.
    """
    return _struct(raw, at, 0)


def _struct(raw: bytes, at: int, depth: int) -> tuple[Struct, int]:
    if depth > MAX_DEPTH:
        raise ValueError(f"structs within structs, {depth} deep")
    found: Struct = {}
    field = 0
    while True:
        head = raw[at]
        at += 1
        if head == 0:
            return found, at
        if head >> 4:
            field += head >> 4
        else:
            field, at = _number(raw, at)
        found[field], at = _value(raw, at, head & 15, depth)


def _value(raw: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (I16, I32, I64):
        return _number(raw, at)
    if kind == BINARY:
        return _binary(raw, at)
    if kind == STRUCT:
        return _struct(raw, at, depth + 1)
    if kind in (LIST, SET):
        return _list(raw, at, depth)
    if kind in (TRUE, FALSE):
        return kind == TRUE, at
    if kind in (BYTE, DOUBLE):
        end = at + (1 if kind == BYTE else 8)
        if end > len(raw):
            raise IndexError
        return None, end
    raise ValueError(f"a field of kind {kind}")


def _binary(raw: bytes, at: int) -> tuple[bytes, int]:
    length, at = _length(raw, at)
    if at + length > len(raw):
        raise IndexError
    return raw[at : at + length], at + length


def _list(raw: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    head = raw[at]
    count, at = (head >> 4, at + 1) if head >> 4 < 15 else _length(raw, at + 1)
    kind = head & 15
    found: list[Any] = []
    if count > len(raw) - at:  # each takes a byte at least
        raise IndexError
    for _ in range(count):
        if kind in (TRUE, FALSE):  # a byte each, where a field of its own has none
            value, at = raw[at] == TRUE, at + 1
        else:
            value, at = _value(raw, at, kind, depth + 1)
        found.append(value)
    return found, at


def _length(raw: bytes, at: int) -> tuple[int, int]:
    """Seven bits a byte, the lowest first."""
    byte = raw[at]
    at += 1
    if byte < 128:
        return byte, at
    value, shift = byte & 127, 7
    while True:
        byte = raw[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > MAX_NUMBER_BITS:
            raise ValueError("a number of more than 64 bits")


def _number(raw: bytes, at: int) -> tuple[int, int]:
    """Zigzag: even numbers mean positive ones."""
    value, at = _length(raw, at)
    return value >> 1 ^ -(value & 1), at
