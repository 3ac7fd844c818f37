"""A document's field by its key: a dot reaches into an object."""

from collections.abc import Mapping
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
