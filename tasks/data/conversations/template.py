"""A chat template: Jinja that makes text of a conversation, and says which of it the assistant wrote."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import nodes
from jinja2.exceptions import TemplateError

from tasks.data.conversations.built_in import BUILT_IN
from tasks.data.conversations.declared import Conversation, is_jinja, names_file
from tasks.data.conversations.messages import Message, counts, whole
from tasks.data.conversations.sandbox import RUN, Refused, Run, Sandbox
from tasks.data.tokenizer import BEGIN_OF_TEXT, END_OF_TEXT
from trainer.base.errors import ConfigError, DataError
from trainer.base.storage import as_path, digest_of_bytes

LOOKS_SPECIAL = re.compile(r"<\|[^|<>\s]+\|>")
ANSWER = "It is an answer."
TURN = (Message(role="user", content="u"), Message(role="assistant", content=ANSWER))
PROBES = ((Message(role="system", content="s"), *TURN, *TURN), TURN)
Span = tuple[int, int]
Messages = Sequence[Message]


class NotMarked(Exception):
    """An answer must not count, and the template does not say which text is its."""


class Rendered(NamedTuple):
    """A conversation's text without a begin-of-text token, and the spans of it that the assistant wrote and that count, in characters.

    `begins` says whether the template wrote that token.
    """

    text: str
    spans: tuple[Span, ...]
    begins: bool = False


class ChatTemplate:
    """A template that is ready to be used.

    Attributes:
        text: its Jinja.
        name: for messages.
        marks_answers: whether it says what an answer is.
        names: what it reads of a message, as far as it spells it.
        special_tokens: what it writes that must be one token each, without the tokens that begin and end a document.

    Raises:
        ConfigError: it is no Jinja, or its text would depend on the day.
    """

    def __init__(self, text: str, name: str, special_tokens: Sequence[str] = ()):
        self.text, self.name = text, name
        sandbox = Sandbox()
        try:
            tree = sandbox.parse(text)
            names = {node.name for node in tree.find_all(nodes.Name)}
            self._generate = sandbox.compiled(text)
        except TemplateError as error:
            raise ConfigError(f"the chat template {name} cannot be used: {error}. Correct it.") from None
        if "strftime_now" in names:
            raise ConfigError(
                f"the chat template {name} asks for the date by strftime_now: the same conversation would be another text tomorrow. Write "
                "a date into it, or take it out."
            )
        self.marks_answers = any(isinstance(block.call.node, nodes.ExtensionAttribute) for block in tree.find_all(nodes.CallBlock))
        self.names = _spelled(tree)
        self.uses_end_of_text = "eos_token" in names
        found = dict.fromkeys((*LOOKS_SPECIAL.findall(text), *special_tokens))
        self.special_tokens = tuple(token for token in found if token not in (BEGIN_OF_TEXT, END_OF_TEXT))

    @property
    def digest(self) -> str:
        """What a manifest names it by."""
        return digest_of_bytes(self.text.encode())

    def render(self, messages: Messages, where: str) -> Rendered:
        """The conversation's text.

        Raises:
            Refused: the template says that it does not take such a conversation.
            NotMarked: an answer has the weight 0, and it cannot be told which text is its.
            DataError: it fails, does not end, or reaches for what it must not; with where the conversation is.
        """
        run = Run()
        variables = {
            "messages": [whole(message) for message in messages], "tools": None, "documents": None, "add_generation_prompt": False,
            "bos_token": BEGIN_OF_TEXT, "eos_token": END_OF_TEXT, RUN: run,
        }  # fmt: skip
        try:
            for piece in self._generate(**variables):
                run.written.append(piece)
        except Refused:
            raise
        except Exception as error:  # a template is a program of somebody else: it may raise anything
            raise DataError(f"the chat template {self.name} failed at {where}: {type(error).__name__}: {error}. Correct it.") from None
        return self._finished("".join(run.written), run, where, _counting(messages, [answer for _, answer in run.answers]))

    def _finished(self, text: str, run: Run, where: str, counting: Sequence[bool]) -> Rendered:
        """Without the begin token that it may write first; with the spans of those answers that count."""
        first = len(BEGIN_OF_TEXT) if text.startswith(BEGIN_OF_TEXT) else 0
        if BEGIN_OF_TEXT in text[first:]:
            raise DataError(
                f"the chat template {self.name} must write {BEGIN_OF_TEXT} once, at the start of a conversation, or not at all; at {where} "
                "it writes it elsewhere. Correct it."
            )
        text = text[first:]
        spans = tuple((start - first, start - first + len(answer)) for start, answer in run.answers if answer)
        answers = [answer for _, answer in run.answers if answer]
        placed = all(start >= 0 and text[start:stop] == answer for (start, stop), answer in zip(spans, answers, strict=True))
        if not placed or any(before[1] > after[0] for before, after in pairwise(spans)):
            raise DataError(
                f"the chat template {self.name} has a generation block inside a macro, a filter or another such block, or around "
                f"{BEGIN_OF_TEXT}: at {where} it cannot be told where its answers are. Write the blocks where their text is put out."
            )
        learnt = [counts for counts, (_, answer) in zip(counting, run.answers, strict=True) if answer]
        return Rendered(text, tuple(span for span, counts in zip(spans, learnt, strict=True) if counts), bool(first))

    def with_begin(self) -> str:
        """Its Jinja, so that it writes the begin-of-text token that every document has, also where it did not."""
        probe = self.probe()
        return self.text if probe and probe.begins else f"{{{{ bos_token }}}}{self.text}"

    def turn_end(self) -> str | None:
        """The special token that ends an assistant's turn, where the template has one.

        It ends the answer that is marked. Where none is, as in most templates that come with tokenizers, it is right behind the answer.
        """
        rendered = self.probe()
        if rendered is None:
            return None
        if rendered.spans:
            answer = rendered.text[slice(*rendered.spans[-1])]
            return next((token for token in (*self.special_tokens, END_OF_TEXT) if answer.endswith(token)), None)
        behind = rendered.text.rpartition(ANSWER)[2]
        return next((token for token in (*self.special_tokens, END_OF_TEXT) if behind.startswith(token)), None)

    def probe(self) -> Rendered | None:
        """A conversation of every role, or of as many as it takes; None where it takes neither."""
        for probe in PROBES:
            try:
                return self.render(probe, "a conversation that is made up")
            except Refused:
                continue
        return None


def _counting(messages: Messages, answers: Sequence[str]) -> list[bool]:
    """Of each answer that the template marks, whether it counts. Where one does not, each of the assistant's messages must have one."""
    said = [message for message in messages if message["role"] == "assistant"]
    if all(counts(message) for message in said):
        return [True] * len(answers)
    if len(said) != len(answers) or any(one["content"].strip() not in text for one, text in zip(said, answers, strict=True)):
        raise NotMarked
    return [counts(message) for message in said]


def _spelled(tree: nodes.Template) -> frozenset[str]:
    """The names that a template takes of things by a dot or in quotes."""
    dotted = {node.attr for node in tree.find_all(nodes.Getattr)}
    return frozenset({*dotted, *(node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str))})


def template_text(how: Conversation) -> str:
    """The Jinja of a source's chat template.

    Raises:
        ConfigError: its file is not there, or is no template.
    """
    if how.template in BUILT_IN:
        return BUILT_IN[how.template]
    if not names_file(how.template):
        return how.template
    try:
        path = as_path(how.template) if "://" in how.template else Path(how.template).expanduser()
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the chat template must be a file of text, found none at {how.template}: {error}. Name another file.") from None
    if not is_jinja(text):
        raise ConfigError(f"the chat template must be Jinja, and the file {how.template} has no braces. Name another file.")
    return text


def resolved(how: Conversation) -> Conversation:
    """With the template itself instead of its name: what decides the text is then in every key, wherever the file is."""
    return how.but(template=template_text(how))


def template_of(how: Conversation) -> ChatTemplate:
    """The template of a source.

    Raises:
        ConfigError: it is not there, or cannot be used.
    """
    text = template_text(how)
    return _template(text, _name(how.template, text), how.special_tokens)


def chat_of(source: Mapping[str, Any]) -> ChatTemplate | None:
    """The template of a source as a manifest has it; None of plain text, and of what was made before there were conversations.

    Raises:
        ConfigError: as `template_of`.
    """
    how = source.get("conversation")
    return None if how is None else template_of(Conversation.model_validate(how))


@lru_cache(maxsize=16)
def _template(text: str, name: str, special_tokens: tuple[str, ...]) -> ChatTemplate:
    return ChatTemplate(text, name, special_tokens)


def _name(written: str, text: str) -> str:
    """What messages call it: a built-in one by its name, also where only its text is left."""
    for name, template in BUILT_IN.items():
        if template == text:
            return name
    return written if names_file(written) else f"{digest_of_bytes(text.encode())[:12]} ({text.strip()[:40]!r} …)"
