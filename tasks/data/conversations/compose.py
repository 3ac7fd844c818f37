"""From a record to the text of its conversation, by its source's chat template."""

import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from typing import Any, cast

import orjson

from tasks.data.conversations import declared, messages, sandbox, template
from tasks.data.conversations.declared import Conversation
from tasks.data.conversations.messages import NoConversation, is_read, messages_of
from tasks.data.conversations.sandbox import Refused
from tasks.data.conversations.template import NotMarked, template_of
from tasks.data.formats.findings import MAX_DOCUMENT_BYTES, Fault, Finding, LeftOut, Reason, Record, Sift, sample_of
from tasks.data.normalize import normalize
from tasks.data.source import Normalization
from tasks.data.tokenizer import BEGIN_OF_TEXT, END_OF_TEXT
from trainer.base.code_digest import code_digest

Compose = Callable[[Mapping[str, object], str], Finding]
"""A record's fields and where it is → its conversation's text, or why it is none."""


def build_compose(how: Conversation, normalization: Normalization, sift: Sift, place: str) -> Compose:
    """Reads messages, normalises each, and has the template make text of them. Filters measure that text.

    The text itself is not normalised again: its spans would be of another text. A message that spells a token of the template is no
    conversation here: it would end its own turn.

    Args:
        place: the file, for messages.

    Raises:
        ConfigError: the template cannot be used.
    """
    chat = template_of(how)
    reserved = (BEGIN_OF_TEXT, END_OF_TEXT, *chat.special_tokens)

    def compose(record: Mapping[str, object], where: str) -> Finding:
        try:
            said = messages_of(record, how)
        except NoConversation as reason:
            return _fault(reason.reason, where, record) if reason.is_fault else LeftOut(reason.reason, where)  # pyright: ignore[reportArgumentType]
        for message in said:
            message["content"] = normalize(message["content"], normalization)
            message["others"] = _normalized(message.get("others", {}), normalization)
            if any(token in text for text in _texts([message["content"], message["others"]]) for token in reserved):
                return _fault("special token in a message", where, record)
            if not is_read(message, chat.names):
                return _fault("field of a message that nothing reads", where, record)
        try:
            rendered = chat.render(said, f"{place}, {where}")
        except Refused as error:
            return Fault("refused by the chat template", where, sample_of(str(error).encode(errors="replace")))
        except NotMarked:
            return _fault("weight 0 without marks around the answer", where, record)
        if len(rendered.text.encode()) > MAX_DOCUMENT_BYTES:
            return Fault("too long", where, sample_of(rendered.text.encode()))
        found = sift(rendered.text, where, record)
        return found._replace(spans=rendered.spans if chat.marks_answers else None) if isinstance(found, Record) else found

    return compose


def _normalized(value: object, how: Normalization) -> Any:
    """A field of a message with every text in it normalised."""
    if isinstance(value, str):
        return normalize(value, how)
    if isinstance(value, list):
        return [_normalized(one, how) for one in cast("list[object]", value)]
    if isinstance(value, dict):
        return {name: _normalized(one, how) for name, one in cast("dict[str, object]", value).items()}
    return value


def _texts(value: object) -> Iterator[str]:
    """Every text in a field, and the names of its fields."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for one in cast("list[object]", value):
            yield from _texts(one)
        if isinstance(value, dict):
            yield from _texts([*cast("dict[str, object]", value).values()])


def _fault(reason: Reason, where: str, record: Mapping[str, object]) -> Fault:
    return Fault(reason, where, sample_of(orjson.dumps(record, default=str)))


COMPOSER_CODE = (sys.modules[__name__], declared, messages, sandbox, template)
COMPOSER = f"conversations-1+{code_digest(*COMPOSER_CODE)}+jinja2-{version('jinja2')}"
"""Version of the code that makes text of conversations. The template itself is a part of the source."""
