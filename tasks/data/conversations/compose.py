"""From a record to the text of its conversation, by its source's chat template."""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any, cast

import orjson

from phasewise.tasks.data.conversations import declared, messages, renderer, template
from phasewise.tasks.data.conversations.declared import Conversation
from phasewise.tasks.data.conversations.messages import NoConversation, beside, is_read, messages_of
from phasewise.tasks.data.conversations.template import Asked, NotMarked, Refused, Rendered, line_of, template_of
from phasewise.tasks.data.formats.fields import texts_in
from phasewise.tasks.data.formats.findings import (
    MAX_DOCUMENT_BYTES,
    Fault,
    Finding,
    LeftOut,
    Reason,
    Record,
    Sift,
    Taken,
    Unrendered,
    sample_of,
)
from phasewise.tasks.data.normalize import normalize
from phasewise.tasks.data.source import Normalization
from phasewise.tasks.data.tokenizer import BEGIN_OF_TEXT, END_OF_TEXT
from phasewise.trainer.base.code_digest import code_digest

BATCH, BATCH_BYTES = 128, 2**20
"""Conversations are rendered so many at once, or as soon as they are so long."""
Compose = Callable[[Mapping[str, object], str], Fault | LeftOut | Unrendered]
"""A record's fields and where it is → its conversation for `rendered`, or why it is none."""


def build_compose(how: Conversation, normalization: Normalization) -> Compose:
    """Reads messages and normalises each, for the template to make text of them. Filters measure that text.

    The text itself is not normalised again: its spans would be of another text. A message that spells a token of the template is no
    conversation here: it would end its own turn.

    Raises:
        ConfigError: the template cannot be used.
    """
    chat = template_of(how)
    reserved = re.compile("|".join(map(re.escape, (BEGIN_OF_TEXT, END_OF_TEXT, *chat.special_tokens))))

    def compose(record: Mapping[str, object], where: str) -> Fault | LeftOut | Unrendered:
        try:
            said = messages_of(record, how)
        except NoConversation as reason:
            return _fault(reason.reason, where, record, reason.found) if reason.is_fault else LeftOut(reason.reason, where)  # pyright: ignore[reportArgumentType]
        for message in said:
            message["content"] = normalize(message["content"], normalization)
            message["others"] = _normalized(message.get("others", {}), normalization)
            if any(map(reserved.search, texts_in([message["content"], message["others"]]))):
                return _fault("special token in a message", where, record)
            if not is_read(message, chat.names):
                return _fault("field of a message that nothing reads", where, record)
        return Unrendered(said, line_of(said), where, record)

    return compose


def rendered(found: Iterable[Taken], how: Conversation, sift: Sift, place: str) -> Iterator[Finding]:
    """What was found, in order, with the text of each conversation. Many are rendered at once.

    Raises:
        DataError: the template fails, with where the conversation is.
    """
    batch = list[Taken]()
    size = 0
    try:
        for one in found:
            batch.append(one)
            size += len(one.line) if isinstance(one, Unrendered) else 0
            if size >= BATCH_BYTES or len(batch) == BATCH:
                full, batch, size = batch, [], 0
                yield from _rendered(full, how, sift, place)
    except Exception:  # whatever ends the reading: what was read before it comes first
        yield from _rendered(batch, how, sift, place)
        raise
    yield from _rendered(batch, how, sift, place)


def _rendered(batch: Sequence[Taken], how: Conversation, sift: Sift, place: str) -> Iterator[Finding]:
    chat = template_of(how)
    waiting = [one for one in batch if isinstance(one, Unrendered)]
    texts = iter(chat.render_all([Asked(one.messages, one.line, f"{place}, {one.where}") for one in waiting]) if waiting else ())
    for one in batch:
        yield _finding(one, next(texts), how, sift) if isinstance(one, Unrendered) else one


def _finding(one: Unrendered, text: Rendered | Refused | NotMarked, how: Conversation, sift: Sift) -> Finding:
    """What a conversation comes to with what its template made of it."""
    chat = template_of(how)
    if isinstance(text, Refused):
        return Fault("refused by the chat template", one.where, sample_of(str(text).encode(errors="replace")))
    if isinstance(text, NotMarked):
        return _fault("weight 0 without marks around the answer", one.where, one.record)
    if 4 * len(text.text) > MAX_DOCUMENT_BYTES and len(text.text.encode()) > MAX_DOCUMENT_BYTES:
        return Fault("too long", one.where, sample_of(text.text.encode()))
    found = sift(text.text, one.where, one.record)
    if not isinstance(found, Record):
        return found
    unread = beside(one.record, one.messages, how, chat.names)
    return found._replace(spans=text.spans if chat.marks_answers else None, beside=unread.others, unread=unread.texts)


def _normalized(value: object, how: Normalization) -> Any:
    """A field of a message with every text in it normalised."""
    if isinstance(value, str):
        return normalize(value, how)
    if isinstance(value, list):
        return [_normalized(one, how) for one in cast("list[object]", value)]
    if isinstance(value, dict):
        return {name: _normalized(one, how) for name, one in cast("dict[str, object]", value).items()}
    return value


def _fault(reason: Reason, where: str, record: Mapping[str, object], found: str = "") -> Fault:
    about = f"{found} in " if found else ""
    return Fault(reason, where, sample_of(about.encode() + orjson.dumps(record, default=str)))


COMPOSER_CODE = (sys.modules[__name__], declared, messages, renderer, template)
SANDBOX = "tasks/data/conversations/sandbox.py"
COMPOSER = f"conversations-1+{code_digest(*COMPOSER_CODE, SANDBOX)}+jinja2-{version('jinja2')}"
"""Version of the code that makes text of conversations. The template itself is a part of the source."""
