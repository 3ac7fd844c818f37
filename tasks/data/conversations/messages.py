"""From a record to the messages of its conversation, or why it is none."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, NotRequired, TypedDict, cast

from tasks.data.conversations.declared import AnswerColumn, Conversation, Role
from tasks.data.formats.fields import NOT_AN_OBJECT, reach
from tasks.data.formats.findings import Reason

NotWanted = Literal["empty content", "no answer", "no messages"]
CALLS = ("tool_calls", "function_call")
"""Fields of a message in which it says something beside its content: text without them would be another conversation."""


REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names of one field: what is thought before an answer. The first that a message has is given to a template as the first two of them."""
TRAINED = ("train", "training")
"""Some sets say so whether a message counts. Nothing here reads it."""
WEIGHT = "weight"
"""As in OpenAI's format for fine-tuning: 0 is an answer that is not learnt, 1 one that is."""


class Message(TypedDict):
    """One turn.

    `others` are the further fields of the record's message, for the template; what is null there is not among them.
    """

    role: Role
    content: str
    others: NotRequired[dict[str, object]]


def whole(message: Message) -> dict[str, object]:
    """A message as `transformers` gives it to a template (`_alias_reasoning_fields` of 5.23): with all that its record's message has."""
    others = message.get("others", {})
    found: dict[str, object] = {"role": message["role"], "content": message["content"], **others}
    thought = next((others[name] for name in REASONING if name in others), None)
    return found if thought is None else {"thinking": thought, **found, "reasoning_content": thought}


def is_read(message: Message, names: Collection[str]) -> bool:
    """Whether a template that reads these names reads what the message says of its answer, and of whether that counts."""
    others = message.get("others", {})
    thought = {name for name in REASONING if name in others}
    unread = [name for name in TRAINED if name in others and name not in names]
    return not unread and (not thought or not {*REASONING[:2], *thought}.isdisjoint(names))


def counts(message: Message) -> bool:
    """Whether an answer is learnt."""
    return message.get("others", {}).get(WEIGHT) != 0


class NoConversation(Exception):
    """A record that is not as its source declares.

    Attributes:
        reason: counted by it.
        is_fault: False of a record that reads well and has nothing to learn from.
    """

    def __init__(self, reason: Reason | NotWanted, *, is_fault: bool = True):
        super().__init__(reason)
        self.reason, self.is_fault = reason, is_fault


def messages_of(record: Mapping[str, object], how: Conversation) -> list[Message]:
    """The messages in order: the system text of its column, the list or the question, the answer of its column.

    Raises:
        NoConversation: a column is missing or holds something else, a role is unknown, a message is empty, calls a tool or has another
            weight than 0 and 1, there are two system texts, or there is no answer that counts.
    """
    found = [*_system(record, how), *_said(record, how), *_answered(record, how)]
    if sum(message["role"] == "system" for message in found) > 1:
        raise NoConversation("two system texts")
    if any(not message["content"] or message["content"].isspace() for message in found):
        raise NoConversation("empty content", is_fault=False)
    if not any(message["role"] == "assistant" and counts(message) for message in found):
        raise NoConversation("no answer", is_fault=False)
    return found


def _system(record: Mapping[str, object], how: Conversation) -> Iterator[Message]:
    """The text of its column, where a record has one: null and nothing but space mean that there is none."""
    if how.system is None:
        return
    _check_is_there(record, how.system)
    value = reach(record, how.system)
    if value is not None and not isinstance(value, str):
        raise NoConversation("wrong type")
    if value and not value.isspace():
        yield Message(role="system", content=value)


def _said(record: Mapping[str, object], how: Conversation) -> Iterator[Message]:
    if how.prompt is not None:
        yield Message(role="user", content=_text(record, how.prompt))
        return
    assert how.messages is not None
    listed = _list(record, how.messages)
    if not listed:
        raise NoConversation("no messages", is_fault=False)
    for entry in listed:
        if not isinstance(entry, Mapping):
            raise NoConversation("wrong type")
        message = cast("Mapping[str, object]", entry)
        role, content = message.get(how.role), message.get(how.content)
        if role is None or how.content not in message:
            raise NoConversation("missing key")
        if not isinstance(role, str) or not (content is None or isinstance(content, str)):
            raise NoConversation("wrong type")
        if role not in how.roles:
            raise NoConversation("unknown role")
        if any(message.get(name) for name in CALLS):
            raise NoConversation("call of a tool")
        yield Message(role=how.roles[role], content=content or "", others=_others(message, how))


def _others(message: Mapping[str, object], how: Conversation) -> dict[str, object]:
    """The fields that are given to the template beside role and content."""
    weight = message.get(WEIGHT)
    if weight is not None and (isinstance(weight, bool) or weight not in (0, 1)):
        raise NoConversation("weight is not 0 or 1")
    known = {how.role, how.content, "role", "content", *how.leave_out}
    return {name: value for name, value in message.items() if value is not None and name not in known}


def _answered(record: Mapping[str, object], how: Conversation) -> Iterator[Message]:
    if how.answer is None:
        return
    if how.answer.content is None:
        _check_is_there(record, how.answer.key)
        answer = reach(record, how.answer.key)
    else:
        answer = _chosen(_list(record, how.answer.key), how.answer, how.answer.content)
    if answer is None or answer == "":
        raise NoConversation("no answer", is_fault=False)
    if not isinstance(answer, str):
        raise NoConversation("wrong type")
    yield Message(role="assistant", content=answer)


class _Rated(NamedTuple):
    rating: float
    text: object


def _chosen(listed: Sequence[object], how: AnswerColumn, content: str) -> object:
    """The text of the first answer of the list, or of the best one."""
    rated: list[_Rated] = []
    for entry in listed:
        if not isinstance(entry, Mapping):
            raise NoConversation("wrong type")
        answer = cast("Mapping[str, object]", entry)
        rating = answer.get(how.best_by) if how.best_by is not None else 0
        if content not in answer or rating is None:
            raise NoConversation("missing key")
        if isinstance(rating, bool) or not isinstance(rating, int | float) or math.isnan(rating):
            raise NoConversation("wrong type")
        rated.append(_Rated(rating, answer[content]))
    return max(rated, key=lambda one: one.rating).text if rated else None  # of equal ones the first


def _text(record: Mapping[str, object], key: str) -> str:
    _check_is_there(record, key)
    value = reach(record, key)
    if value is not None and not isinstance(value, str):
        raise NoConversation("wrong type")
    return value or ""


def _list(record: Mapping[str, object], key: str) -> Sequence[object]:
    _check_is_there(record, key)
    value = reach(record, key)
    if value is not None and not isinstance(value, list):
        raise NoConversation("wrong type")
    return cast("list[object]", value or [])


def _check_is_there(record: Mapping[str, object], key: str) -> None:
    """A column that is null is there."""
    outer, _, name = key.rpartition(".")
    holder = record if key in record or not outer else reach(record, outer)
    if holder is NOT_AN_OBJECT or (key not in record and not (isinstance(holder, Mapping) and name in holder)):
        raise NoConversation("missing key")
