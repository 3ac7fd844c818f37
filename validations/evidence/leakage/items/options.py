"""The options that a row offers, in any of the ways that benchmark files have."""

import re
from collections.abc import Sequence
from typing import NamedTuple, cast

from phasewise.validations.evidence.leakage.items import fields as known
from phasewise.validations.evidence.leakage.items.prompts import letter_index, split_options, strip_letters
from phasewise.validations.evidence.leakage.items.values import Fields, named_fields, spells_list, texts_of


class Options(NamedTuple):
    """What is offered. `labels` name the choices, where they have names; `numbered` where those are columns that count from 1."""

    texts: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    gold: object = None
    numbered: bool = False


def options_of(fields: Fields) -> Options:
    """What the row offers: in one field, in a column a choice, or as a right choice beside wrong ones."""
    for name in known.CHOICES + (("answers",) if "label" in fields else ()):
        if name in fields and (found := _listed_options(fields[name])).texts:
            return found
    columns: dict[str, dict[str, str]] = {}
    for name, value in fields.items():
        match = re.fullmatch(known.CHOICE_COLUMN, name)
        if match and isinstance(value, str | int | float) and (texts := texts_of(value)):
            columns.setdefault(match[1], {})[match[2].upper()] = texts[0].strip()
    for column in columns.values():
        labels = tuple(sorted(column, key=lambda label: (len(label), label)))
        if len(labels) > 1 and labels[0] in ("A", "0", "1"):
            return Options(tuple(column[label] for label in labels), labels if labels[0] == "A" else (), numbered=labels[0] == "1")
    wrong = [text for name, value in fields.items() if re.fullmatch(known.WRONG_CHOICE, name) for text in texts_of(value)]
    right = next((texts[0] for name in known.RIGHT_CHOICE if (texts := texts_of(fields.get(name)))), "")
    return Options(tuple(text.strip() for text in (right, *wrong)), gold=right) if wrong and right else Options()


def _listed_options(value: object) -> Options:
    """Options of one field: a list, a list of rows, texts beside labels, labels as names, or one string."""
    if isinstance(value, str) and not spells_list(value):
        value = split_options(f"Options: {value}").options
    labels: tuple[str, ...] = ()
    gold: object = None
    if isinstance(value, dict):
        inner = named_fields(cast(Fields, value))
        marks = cast(Sequence[object], inner.get("label", inner.get("labels", inner.get("key"))) or ())
        texts = texts_of(cast(Fields, value))
        if all(isinstance(text, str) and letter_index(str(name)) is not None for name, text in cast(Fields, value).items()):
            texts, labels = tuple(str(text) for text in cast(Fields, value).values()), tuple(str(name) for name in cast(Fields, value))
        elif len(marks) == len(texts) and all(mark in (0, 1) for mark in marks):
            gold = texts[list(marks).index(1)] if 1 in marks else None
        elif len(marks) == len(texts):
            labels = texts_of(tuple(marks))
    else:
        texts = texts_of(value)
        members = cast(Sequence[object], value) if isinstance(value, list | tuple) else ()
        rows = [named_fields(cast(Fields, member)) for member in members if isinstance(member, dict)]
        labels = tuple(str(row.get("label", row.get("key", row.get("id", "")))) for row in rows)
    texts = tuple(text.strip() for text in texts)
    if not labels:
        texts, labels = strip_letters(texts)
    return Options(texts, labels if len(labels) == len(texts) else (), gold)
