"""JSON that may come from anybody, read strictly."""

import json
import math
import re
from collections import Counter
from typing import Any

BYTE_ORDER_MARK = "\ufeff"
MAX_DEPTH = 100
STRINGS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)


class _OnlyBrackets(dict[int, str | None]):
    def __missing__(self, _letter: int) -> None:
        return None


ONLY_BRACKETS = _OnlyBrackets({ord(letter): letter for letter in "[]{}"})


def parse_json(content: bytes | str, *, allows_nan: bool = False) -> Any:
    """The JSON value in a text that may come from anybody: each name of an object is there once, and every number is one.

    Raises:
        ValueError: the text is not JSON in UTF-8, an object has a name twice, values are nested deeper than `MAX_DEPTH`, an integer needs
            more than 64 bits, or a number is NaN or infinite and `allows_nan` is False. The message is one line.
    """
    try:
        text = content if isinstance(content, str) else content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"expected text in UTF-8, found the byte 0x{error.object[error.start]:02x} at {error.start}") from None
    if not text.strip():
        raise ValueError("expected a JSON value, found an empty text")
    if text.startswith(BYTE_ORDER_MARK):
        raise ValueError("expected UTF-8 without a byte order mark, found one: save the file without it")
    nested = STRINGS.sub("", text)
    constant = float if allows_nan else _refuse_constant
    number = float if allows_nan else _finite
    try:
        if nested.count("[") + nested.count("{") > MAX_DEPTH and _is_deeper(nested, MAX_DEPTH):
            raise RecursionError
        return json.loads(text, object_pairs_hook=_named_once, parse_int=_in_64_bits, parse_float=number, parse_constant=constant)
    except RecursionError:
        raise ValueError(f"expected at most {MAX_DEPTH} levels of lists and objects, found more") from None


def _is_deeper(text: str, depth: int) -> bool:
    """Whether brackets are nested deeper; each round takes the innermost ones out."""
    left = text.translate(ONLY_BRACKETS)
    for _ in range(depth):
        before, left = left, left.replace("[]", "").replace("{}", "")
        if not left or left == before:  # what stays is not JSON, and the parser names the place
            return False
    return True


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        counted = Counter(name for name, _ in pairs)
        twice = next(name for name, times in counted.items() if times > 1)
        raise ValueError(f"expected each name once in an object, found {twice[:80]!r} more than once")
    return found


def _in_64_bits(digits: str) -> int:
    if len(digits) > 20 or not -(2**63) <= int(digits) < 2**64:
        raise ValueError(f"expected integers of at most 64 bits, found {digits[:24]}{'…' if len(digits) > 24 else ''}")
    return int(digits)


def _finite(digits: str) -> float:
    found = float(digits)
    if not math.isfinite(found):
        raise ValueError(f"expected a finite number, found {digits[:24]}")
    return found


def _refuse_constant(name: str) -> float:
    raise ValueError(f"expected a finite number, found {name}")
