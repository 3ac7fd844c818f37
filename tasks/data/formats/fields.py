"""A document's field by its key: a dot reaches into an object."""

from collections.abc import Collection, Iterator, Mapping
from typing import cast

NOT_AN_OBJECT = object()
"""What is there instead of the object that a key expects."""


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


def texts_in(value: object) -> Iterator[str]:
    """Every text in a field, and the names of the fields of its objects. However deep it is nested."""
    waiting: list[object] = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, list):
            waiting += cast("list[object]", one)
        elif isinstance(one, Mapping):
            fields = cast("Mapping[str, object]", one)
            waiting += [*fields, *fields.values()]


def has_text(value: object) -> bool:
    """Whether a field holds any text but space. An object does by its values: its names alone say nothing."""
    if isinstance(value, str):
        return bool(value) and not value.isspace()
    if not isinstance(value, dict) and not isinstance(value, list):
        return False
    waiting: list[object] = [cast("object", value)]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            if one and not one.isspace():
                return True
        elif isinstance(one, list):
            waiting += cast("list[object]", one)
        elif isinstance(one, dict):
            waiting += cast("dict[str, object]", one).values()
    return False
