"""Conversations of a source: their columns, the messages of a record, and the reasons against a record."""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NotRequired, TypedDict, cast

import orjson
from pydantic import Field, model_validator

from phasewise.tasks.data.findings import FileFault, NoText, Reason, has_text, is_there, reach, texts_in, unread_fields
from phasewise.tasks.data.text_files import loads
from phasewise.trainer.base.frozen import Frozen

REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names of the field with the reasoning before an answer. A template gets it under the first two names."""
TRAINED = ("train", "training")  # fields of some data sets that select messages for training. Only a template can read them.
WEIGHT = "weight"  # field of OpenAI's format for fine-tuning: 1 trains on an answer, 0 does not
BUILT_IN = {name: Path(__file__).with_name(f"{name}.jinja").read_text(encoding="utf-8").strip() for name in ("marin", "trinity")}
"""Chat templates. `marin`: equal in output to `MARIN_CHAT_TEMPLATE` in Marin's code (experiments/marin_models.py at exp1237), the turns of
OLMo 2 with the special tokens of Llama 3, a line end after each turn, and no white space around contents. Later tokenizers have another
template. `trinity`: ChatML turns of ours, because the report names none, and the `tokenizer_config.json` of Arcee's models was unavailable.
"""
Role = Literal["system", "user", "assistant"]
CALLS = ("tool_calls", "function_call")
"""Fields of a message with calls of tools. The content without the call would be another conversation."""
TEXT_PARTS = ("text", "input_text", "output_text")  # types of text parts of a message, in chat completions and in responses
TEXT_NAMES = re.compile(
    r"(?:inputs?|contexts?|instructions?|questions?|quer(?:y|ies)|prompts?|problems?|history|system|system_prompt|persona|documents?|passages?|"
    r"articles?|background|references?|tools|functions|tool_calls|function_call|messages|conversations?|dialog(?:ue)?s?|outputs?|responses?|"
    r"answers?|completions?|solutions?|targets?|chosen|rejected|preferred|dispreferred|reasoning|reasoning_content|thinking|thoughts?|"
    r"rationale|explanation|cot|text|content|images?|videos?|audios?)"
)
"""Names of columns that belong to a conversation even if their value is a single word."""
EMPTY_JSON = ("[]", "{}", "null", '""')


class Message(TypedDict):
    """One turn. `others` has the further fields of the record's message for the template, without null values."""

    role: Role
    content: str
    others: NotRequired[dict[str, object]]


def counts(message: Message) -> bool:
    """Whether training counts an answer."""
    return message.get("others", {}).get(WEIGHT) != 0


class AnswerColumn(Frozen):
    """The column with the answer.

    Attributes:
        key: name of the column.
        content: in a column with a list of answers, the field with an answer's text. None if the column is the text.
        best_by: field with an answer's rating. The first answer with the highest rating is taken. None takes the first answer.
    """

    key: str
    content: str | None = None
    best_by: str | None = None

    @model_validator(mode="after")
    def _chooses_among_several(self) -> "AnswerColumn":
        if self.best_by is not None and self.content is None:
            raise ValueError(f"best_by {self.best_by} chooses among the answers of a list: name the field of an answer's text in `content`")
        return self


class Conversation(Frozen):
    """The columns of a conversation: a list of messages, or a question, with optional columns for the answer and the system text.

    Attributes:
        messages: column with the list of messages.
        role, content: fields of a message, such as `from` and `value`.
        roles: role in the source → standard role, such as {"human": "user", "gpt": "assistant"}. Other roles are faults.
        prompt: column with the question, instead of `messages`.
        context: column with context of the question, such as Alpaca's `input`. It follows the question after a blank line.
        answer: column with the last message.
        system: column with a system text. A record with an empty text has no system message.
        leave_out: columns and message fields that are deliberately unused, such as `rejected` or `reasoning_content`. All other fields
            of messages go to the template, and other columns with text are refused.
        template: `marin` or `trinity`, a file (`/`, `./`, `../`, `~/` or a URL), or Jinja.
        special_tokens: tokens of the template in addition to tokens of the form `<|name|>`.
    """

    messages: str | None = None
    role: str = "role"
    content: str = "content"
    roles: dict[str, Role] = Field(default={"system": "system", "user": "user", "assistant": "assistant"})
    prompt: str | None = None
    context: str | None = None
    answer: AnswerColumn | None = None
    system: str | None = None
    leave_out: tuple[str, ...] = ()
    template: str = Field(min_length=1)
    special_tokens: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _has_questions_and_answers(self) -> "Conversation":
        if (self.messages is None) == (self.prompt is None):
            raise ValueError(
                "a conversation is either a list of messages (`messages`, the column's name) or a question in a separate column "
                f"(`prompt`), found {self.messages!r} and {self.prompt!r}"
            )
        if self.prompt is not None and self.answer is None:
            raise ValueError(f"a conversation with a question in the column {self.prompt!r} needs the column of its answer: name `answer`")
        if self.context is not None and self.prompt is None:
            raise ValueError(f"a context ({self.context!r}) follows a question in a separate column: name this column in `prompt`")
        if self.messages is not None and self.answer is None and "assistant" not in self.roles.values():
            raise ValueError(f"one of a conversation's roles must be the assistant's, found {self.roles}: name it in `roles`")
        if not (names_file(self.template) or is_jinja(self.template) or self.template in BUILT_IN):
            raise ValueError(
                f"the chat template must be {' or '.join(BUILT_IN)}, a file (with /, ./, ../ or ~/ first), or Jinja with braces; found "
                f"{self.template!r}"
            )
        if kept := sorted({self.role, self.content} & {*self.leave_out}):
            raise ValueError(f"leave_out names {', '.join(kept)}, which every message needs: take it out")
        if kept := sorted({*self.columns} & {*self.leave_out}):
            raise ValueError(f"leave_out names {', '.join(kept)}, which the conversation is made of: take it out")
        if "" in self.special_tokens:
            raise ValueError("special_tokens has an empty one: take it out")
        return self

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the conversation, without repetition."""
        named = (self.system, self.messages, self.prompt, self.context, self.answer.key if self.answer else None)
        return tuple(dict.fromkeys(name for name in named if name is not None))


def names_file(template: str) -> bool:
    """Whether `template` is the name of a file."""
    return not is_jinja(template) and (template.startswith(("/", "./", "../", "~/")) or "://" in template)


def is_jinja(template: str) -> bool:
    """Whether `template` is Jinja text."""
    return "{{" in template or "{%" in template


class NoConversation(Exception):
    """A record that is not the declared conversation. `is_fault`: false if it is well-formed without text to learn from."""

    def __init__(self, reason: Reason | NoText, *, is_fault: bool = True, found: str = ""):
        super().__init__(reason)
        self.reason, self.is_fault, self.found = reason, is_fault, found


def messages_of(record: Mapping[str, object], how: Conversation) -> list[Message]:
    """The messages in order: the system text, the list or the question, the answer. Empty system texts are dropped.

    Raises NoConversation if a column is missing or has another type, a role is unknown, a message is empty, calls a tool, has a part other
    than text or a weight other than 0 and 1, there are two system texts, or no answer counts.
    """
    found: list[Message] = []
    if how.system is not None:
        found.append(Message(role="system", content=_content(_value(record, how.system))))
    if how.prompt is not None:
        context = "" if how.context is None else _content(_value(record, how.context))
        texts = (_content(_value(record, how.prompt)), context)
        found.append(Message(role="user", content="\n\n".join(filter(has_text, texts))))
    if how.messages is not None:
        known = {how.role, how.content, "role", "content", *how.leave_out}
        num_before = len(found)
        for message in _list(record, how.messages):
            role = message.get(how.role)
            if role is None or how.content not in message:
                raise NoConversation("missing key")
            content = _content(message[how.content])
            if not isinstance(role, str):
                raise NoConversation("wrong type")
            if role not in how.roles:
                raise NoConversation("unknown role")
            if any(message.get(name) for name in CALLS):
                raise NoConversation("call of a tool")
            weight = message.get(WEIGHT)
            if weight is not None and (isinstance(weight, bool) or weight not in (0, 1)):
                raise NoConversation("weight is not 0 or 1")
            others = {name: value for name, value in message.items() if value is not None and name not in known}
            found.append(Message(role=how.roles[role], content=content, others=others))
        if len(found) == num_before:
            raise NoConversation("no messages", is_fault=False)
    if how.answer is not None:
        answer = _answer(record, how.answer)
        if not answer:
            raise NoConversation("no answer", is_fault=False)
        found.append(Message(role="assistant", content=answer))
    found = [message for message in found if message["role"] != "system" or has_text(message["content"])]
    if sum(message["role"] == "system" for message in found) > 1:
        raise NoConversation("two system texts")
    if not all(has_text(message["content"]) for message in found):
        raise NoConversation("empty content", is_fault=False)
    if not any(message["role"] == "assistant" and counts(message) for message in found):
        raise NoConversation("no answer", is_fault=False)
    return found


def _answer(record: Mapping[str, object], how: AnswerColumn) -> str:
    if how.content is None:
        return _content(_value(record, how.key))
    best: object = None
    highest: float | None = None
    for answer in _list(record, how.key):
        rating = answer.get(how.best_by) if how.best_by is not None else 0
        if how.content not in answer or rating is None:
            raise NoConversation("missing key")
        if isinstance(rating, bool) or not isinstance(rating, int | float) or math.isnan(rating):
            raise NoConversation("wrong type")
        if highest is None or rating > highest:
            best, highest = answer[how.content], rating
    return _content(best)


def _content(value: object) -> str:
    """The text of a message: a string, null, or a list of text parts as in OpenAI's format."""
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list):
        raise NoConversation("wrong type")
    texts: list[str] = []
    for one in cast("list[object]", value):
        part = cast("Mapping[str, object]", one) if isinstance(one, Mapping) else {}
        kind, text = part.get("type"), part.get("text")
        if isinstance(kind, str) and kind not in TEXT_PARTS:
            raise NoConversation("part that is not text", found=kind)
        if not isinstance(kind, str) or not isinstance(text, str):
            raise NoConversation("wrong type")
        texts.append(text)
    return "".join(texts)


def _list(record: Mapping[str, object], key: str) -> Iterator[Mapping[str, object]]:
    """The objects of a column with a list, or with a list as JSON text."""
    value = _value(record, key)
    if isinstance(value, str):
        try:
            value = loads(value.encode()) if has_text(value) else None
        except (orjson.JSONDecodeError, UnicodeEncodeError, FileFault):
            raise NoConversation("wrong type") from None
    if value is not None and not isinstance(value, list):
        raise NoConversation("wrong type")
    for entry in cast("list[object]", value or []):
        if not isinstance(entry, Mapping):
            raise NoConversation("wrong type")
        yield cast("Mapping[str, object]", entry)


def _value(record: Mapping[str, object], key: str) -> object:
    if not is_there(record, key):
        raise NoConversation("missing key")
    return reach(record, key)


def unread_of(
    record: Mapping[str, object], messages: Sequence[Message], how: Conversation, names: Collection[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Unread columns and message fields with a value: possible parts of the conversation, such as a context or tools, and all others.

    A single ASCII word is an id, a source, a category or a date, unless the column's name is in `TEXT_NAMES`. `names`: fields of a message
    that the template reads. A template with `items` reads all fields.
    """
    unread = [*unread_fields(record, how.columns)]
    if how.answer is not None and how.answer.content is not None:
        read = (how.answer.content, how.answer.best_by)
        unread += [(name, value) for answer in _list(record, how.answer.key) for name, value in answer.items() if name not in read]
    if "items" not in names:
        others = [field for message in messages for field in message.get("others", {}).items()]
        unread += [(name, value) for name, value in others if name not in names and name != WEIGHT]
    texts: dict[str, None] = {}
    rest: dict[str, None] = {}
    for name, value in unread:
        if name in how.leave_out or not has_text(value) or (isinstance(value, str) and value.strip() in EMPTY_JSON):
            continue
        words = [text.strip() for text in texts_in(value)]
        has_words = any(not text.isascii() or len(text.split(None, 1)) > 1 or text[:1] in ("{", "[") for text in words)
        is_text = has_words or TEXT_NAMES.fullmatch(name.rpartition(".")[2].lower())
        (texts if is_text else rest)[name] = None
    return tuple(texts), tuple(name for name in rest if name not in texts)
