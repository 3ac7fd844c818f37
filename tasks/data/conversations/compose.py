"""From a record to the text of its conversation, by its source's chat template."""

import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version

import orjson

from tasks.data.conversations import declared, messages, sandbox, template
from tasks.data.conversations.declared import Conversation
from tasks.data.conversations.messages import NoConversation, messages_of
from tasks.data.conversations.sandbox import Refused
from tasks.data.conversations.template import template_of
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
            if any(token in message["content"] for token in reserved):
                return _fault("special token in a message", where, record)
        try:
            rendered = chat.render(said, f"{place}, {where}")
        except Refused as error:
            return Fault("refused by the chat template", where, sample_of(str(error).encode(errors="replace")))
        if len(rendered.text.encode()) > MAX_DOCUMENT_BYTES:
            return Fault("too long", where, sample_of(rendered.text.encode()))
        found = sift(rendered.text, where, record)
        return found._replace(spans=rendered.spans if chat.marks_answers else None) if isinstance(found, Record) else found

    return compose


def _fault(reason: Reason, where: str, record: Mapping[str, object]) -> Fault:
    return Fault(reason, where, sample_of(orjson.dumps(record, default=str)))


COMPOSER_CODE = (sys.modules[__name__], declared, messages, sandbox, template)
COMPOSER = f"conversations-1+{code_digest(*COMPOSER_CODE)}+jinja2-{version('jinja2')}"
"""Version of the code that makes text of conversations. The template itself is a part of the source."""
