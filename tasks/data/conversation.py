"""From a record to the messages of its conversation, or why it is none."""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, NotRequired, TypedDict, cast

import orjson
from pydantic import Field, model_validator

from phasewise.tasks.data.findings import FileFault, NoText, Reason, has_text, is_there, reach, texts_in, unread_fields
from phasewise.tasks.data.text_files import loads
from phasewise.trainer.base.frozen import Frozen

REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names of one field: what is thought before an answer. The first that a message has is given to a template as the first two of them."""
TRAINED = ("train", "training")
"""Some sets say so whether a message counts. Nothing here reads it."""
WEIGHT = "weight"
"""As in OpenAI's format for fine-tuning: 0 is an answer that is not learnt, 1 one that is."""
MARIN = r"""
{{- bos_token -}}
{%- for message in messages -%}
    {{- "<|start_header_id|>" + message.role + "<|end_header_id|>\n" -}}
    {%- if message.role == "assistant" -%}
        {%- generation -%}
            {{- message.content | trim + "<|eot_id|>" -}}
        {%- endgeneration -%}
    {%- else -%}
        {{- message.content | trim + "<|eot_id|>" -}}
    {%- endif -%}
    {{- "\n" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- "<|start_header_id|>assistant<|end_header_id|>\n" -}}
{%- endif -%}
""".strip()
"""Puts out what `MARIN_CHAT_TEMPLATE` of Marin's code does (experiments/marin_models.py, as exp1237 had it): the turns of OLMo 2 with the
special tokens of Llama 3, a line end after each turn, contents without space around them. The tokenizer of later models has another
template, with thinking and tools.
"""
TRINITY = r"""
{{- bos_token -}}
{%- for message in messages -%}
    {%- if message.role == "system" and not loop.first -%}
        {{- raise_exception("a system message must be the first") -}}
    {%- endif -%}
    {{- "<|im_start|>" + message.role + "\n" -}}
    {%- if message.role == "assistant" -%}
        {%- generation -%}
            {{- message.content + "<|im_end|>" -}}
        {%- endgeneration -%}
    {%- else -%}
        {{- message.content + "<|im_end|>" -}}
    {%- endif -%}
    {{- "\n" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- "<|im_start|>assistant\n" -}}
{%- endif -%}
""".strip()
"""ChatML's turns. This one is ours: the report names no template, and the `tokenizer_config.json` of Arcee's models was not at hand. What
that says of tools and of thinking is not here.
"""
BUILT_IN = {"marin": MARIN, "trinity": TRINITY}
Role = Literal["system", "user", "assistant"]
CALLS = ("tool_calls", "function_call")
"""Fields of a message in which it says something beside its content: text without them would be another conversation."""
TEXT_PARTS = ("text", "input_text", "output_text")
"""Types of a part of a message that is text: of chat completions, and of responses."""
TEXT_NAMES = re.compile(
    r"(?:inputs?|contexts?|instructions?|questions?|quer(?:y|ies)|prompts?|problems?|history|system|system_prompt|persona|documents?|passages?|"
    r"articles?|background|references?|tools|functions|tool_calls|function_call|messages|conversations?|dialog(?:ue)?s?|outputs?|responses?|"
    r"answers?|completions?|solutions?|targets?|chosen|rejected|preferred|dispreferred|reasoning|reasoning_content|thinking|thoughts?|"
    r"rationale|explanation|cot|text|content|images?|videos?|audios?)"
)
"""Names of columns that are a part of a conversation also where a record has a single word there."""
EMPTY_JSON = ("[]", "{}", "null", '""')


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


class AnswerColumn(Frozen):
    """The column that holds the answer.

    Attributes:
        key: its name.
        content: where the column is a list of answers, the field of one that is its text; None where the column is the text itself.
        best_by: the field of an answer whose highest number decides, and of equal ones the first; None takes the first answer.
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
    """A list of messages, or a question in a column of its own; with an answer, and a system text, from columns beside it where named.

    Attributes:
        messages: the column with the list of messages.
        role, content: the fields of a message, such as `from` and `value`.
        roles: what the source calls a role → which it is, such as {"human": "user", "gpt": "assistant"}. Any other role is no conversation.
        prompt: the column with the question, instead of `messages`.
        context: the column with what the question is about, such as Alpaca's `input`. It follows the question after a blank line.
        answer: the column whose text is the last message.
        system: the column with a system text. A record without one has no system message, and an empty one is none.
        leave_out: columns, and fields of a message, that are knowingly not used, such as `rejected` or `reasoning_content`. All other
            fields go to the template; another column with text in it is refused.
        template: the chat template: `marin` or `trinity`; a file, which begins with `/`, `./`, `../` or `~/` or is a URL; or Jinja itself.
        special_tokens: tokens that the template writes, and that do not look like `<|name|>`: those are found in it.
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
                "a conversation is either a list of messages (`messages`, the column's name) or a question in a column of its own "
                f"(`prompt`); found {self.messages!r} and {self.prompt!r}"
            )
        if self.prompt is not None and self.answer is None:
            raise ValueError(f"a conversation with a question in the column {self.prompt!r} needs the column of its answer: name `answer`")
        if self.context is not None and self.prompt is None:
            raise ValueError(f"a context ({self.context!r}) follows a question in a column of its own: name that in `prompt`")
        if self.messages is not None and self.answer is None and "assistant" not in self.roles.values():
            raise ValueError(f"one of a conversation's roles must be the assistant's, found {self.roles}: name it in `roles`")
        if not (names_file(self.template) or is_jinja(self.template) or self.template in BUILT_IN):
            raise ValueError(
                f"the chat template must be {' or '.join(BUILT_IN)}, a file (it begins with /, ./, ../ or ~/), or Jinja with braces; found "
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
        """The columns that are read, each once."""
        named = (self.system, self.messages, self.prompt, self.context, self.answer.key if self.answer else None)
        return tuple(dict.fromkeys(name for name in named if name is not None))


def names_file(template: str) -> bool:
    """Whether a template is named by its file."""
    return not is_jinja(template) and (template.startswith(("/", "./", "../", "~/")) or "://" in template)


def is_jinja(template: str) -> bool:
    """Whether it is the template itself."""
    return "{{" in template or "{%" in template


class NoConversation(Exception):
    """A record that is not as its source declares.

    Attributes:
        reason: counted by it.
        is_fault: False of a record that reads well and has nothing to learn from.
        found: what the reason is about.
    """

    def __init__(self, reason: Reason | NoText, *, is_fault: bool = True, found: str = ""):
        super().__init__(reason)
        self.reason, self.is_fault, self.found = reason, is_fault, found


def messages_of(record: Mapping[str, object], how: Conversation) -> list[Message]:
    """The messages in order: the system text of its column, the list or the question, the answer of its column.

    A system text without characters is none, in a column and in a message.

    Raises:
        NoConversation: a column is missing or holds something else, a role is unknown, a message is empty, calls a tool, has a part that is
            not text, or another weight than 0 and 1, there are two system texts, or there is no answer that counts.
    """
    found = [*_system(record, how), *_said(record, how), *_answered(record, how)]
    found = [message for message in found if message["role"] != "system" or has_text(message["content"])]
    if sum(message["role"] == "system" for message in found) > 1:
        raise NoConversation("two system texts")
    if any(not message["content"] or message["content"].isspace() for message in found):
        raise NoConversation("empty content", is_fault=False)
    if not any(message["role"] == "assistant" and counts(message) for message in found):
        raise NoConversation("no answer", is_fault=False)
    return found


def _system(record: Mapping[str, object], how: Conversation) -> Iterator[Message]:
    if how.system is not None:
        yield Message(role="system", content=_text(record, how.system))


def _said(record: Mapping[str, object], how: Conversation) -> Iterator[Message]:
    if how.prompt is not None:
        context = "" if how.context is None else _text(record, how.context)
        yield Message(role="user", content="\n\n".join(filter(has_text, (_text(record, how.prompt), context))))
        return
    assert how.messages is not None
    listed = _list(record, how.messages)
    if not listed:
        raise NoConversation("no messages", is_fault=False)
    for entry in listed:
        if not isinstance(entry, Mapping):
            raise NoConversation("wrong type")
        message = cast("Mapping[str, object]", entry)
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
        yield Message(role=how.roles[role], content=content, others=_others(message, how))


def _content(value: object) -> str:
    """What a message says: a text, none, or, as OpenAI's format has it, parts of which each is a text."""
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list):
        raise NoConversation("wrong type")
    return "".join(_part(one) for one in cast("list[object]", value))


def _part(value: object) -> str:
    part = cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}
    kind, text = part.get("type"), part.get("text")
    if not isinstance(kind, str):
        raise NoConversation("wrong type")
    if kind not in TEXT_PARTS:
        raise NoConversation("part that is not text", found=kind)
    if not isinstance(text, str):
        raise NoConversation("wrong type")
    return text


def _others(message: Mapping[str, object], how: Conversation) -> dict[str, object]:
    weight = message.get(WEIGHT)
    if weight is not None and (isinstance(weight, bool) or weight not in (0, 1)):
        raise NoConversation("weight is not 0 or 1")
    known = {how.role, how.content, "role", "content", *how.leave_out}
    return {name: value for name, value in message.items() if value is not None and name not in known}


def _answered(record: Mapping[str, object], how: Conversation) -> Iterator[Message]:
    if how.answer is None:
        return
    if how.answer.content is None:
        answer = _text(record, how.answer.key)
    else:
        answer = _content(_chosen(_list(record, how.answer.key), how.answer, how.answer.content))
    if not answer:
        raise NoConversation("no answer", is_fault=False)
    yield Message(role="assistant", content=answer)


class _Rated(NamedTuple):
    rating: float
    text: object


def _chosen(listed: Sequence[object], how: AnswerColumn, content: str) -> object:
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
    return _content(reach(record, key))


def _list(record: Mapping[str, object], key: str) -> Sequence[object]:
    _check_is_there(record, key)
    value = reach(record, key)
    if isinstance(value, str):
        value = _spelled_out(value)
    if value is not None and not isinstance(value, list):
        raise NoConversation("wrong type")
    return cast("list[object]", value or [])


def _spelled_out(value: str) -> object:
    try:
        return loads(value.encode()) if has_text(value) else None
    except (orjson.JSONDecodeError, UnicodeEncodeError, FileFault):
        raise NoConversation("wrong type") from None


def _check_is_there(record: Mapping[str, object], key: str) -> None:
    if not is_there(record, key):
        raise NoConversation("missing key")


class Beside(NamedTuple):
    """What a record holds and its conversation does not read, by name.

    Attributes:
        texts: columns, and fields of messages, that may be a part of the conversation: a context, tools, another answer.
        others: what reads as a name or a number: an id, a source, a category.
    """

    texts: tuple[str, ...]
    others: tuple[str, ...]


def beside(record: Mapping[str, object], messages: Sequence[Message], how: Conversation, names: Collection[str]) -> Beside:
    """What of a record nobody reads.

    Args:
        names: what the template reads of a message. One that reads all fields, by `items`, leaves none.
    """
    unread = [*unread_fields(record, how.columns), *_beside_answers(record, how)]
    if "items" not in names:
        unread += [one for message in messages for one in message.get("others", {}).items() if one[0] not in names and one[0] != WEIGHT]
    unread = [one for one in unread if one[0] not in how.leave_out]
    texts = dict.fromkeys(name for name, value in unread if _reads_as_text(name, value))
    others = dict.fromkeys(name for name, value in unread if name not in texts and _says_something(value))
    return Beside(tuple(texts), tuple(others))


def _beside_answers(record: Mapping[str, object], how: Conversation) -> Iterator[tuple[str, object]]:
    if how.answer is None or how.answer.content is None:
        return
    for entry in _list(record, how.answer.key):
        fields = cast("Mapping[str, object]", entry) if isinstance(entry, Mapping) else {}
        yield from ((name, value) for name, value in fields.items() if name not in (how.answer.content, how.answer.best_by))


def _reads_as_text(name: str, value: object) -> bool:
    """Whether a field may be what a person wrote: more than one word, other letters than ASCII's, JSON, or anything under a telling name.

    What has one word of ASCII under another name is an id, a source, a category, a date.
    """
    if not _says_something(value):
        return False
    texts = (one.strip() for one in texts_in(value))
    is_named = TEXT_NAMES.fullmatch(name.rpartition(".")[2].lower()) is not None
    return is_named or any(not text.isascii() or len(text.split(None, 1)) > 1 or text[:1] in ("{", "[") for text in texts)


def _says_something(value: object) -> bool:
    return has_text(value) and not (isinstance(value, str) and value.strip() in EMPTY_JSON)
