"""A chat template: Jinja that makes text of a conversation, and says which of it the assistant wrote."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from phasewise.tasks.data.conversation import Message, counts, whole
from phasewise.trainer.data.manifest import read_manifest

if TYPE_CHECKING:
    from tokenizers import Tokenizer
import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from phasewise.tasks.data.conversation import BUILT_IN, Conversation, is_jinja, names_file
from phasewise.tasks.data.renderer import LIMITS, as_line, renderer
from phasewise.tasks.data.tokenizer import BEGIN_OF_TEXT, END_OF_TEXT
from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.trainer.base.identity import digest_of_bytes
from phasewise.trainer.base.storage import as_path

LOOKS_SPECIAL = re.compile(r"<\|[^|<>\s]+\|>")
ANSWER = "It is an answer."
TURN = (Message(role="user", content="u"), Message(role="assistant", content=ANSWER))
MADE_UP = "a conversation that is made up"
PROBES = ((Message(role="system", content="s"), *TURN, *TURN), TURN)
TOKENS = (BEGIN_OF_TEXT, END_OF_TEXT)
PROMPTED = b"+"
"""As in `sandbox.py`."""
MAX_TEMPLATE_BYTES = 2**20
Span = tuple[int, int]
Messages = Sequence[Message]


class Refused(Exception):
    """The template itself says that the conversation is none that it takes: by `raise_exception`."""


class NotMarked(Exception):
    """An answer must not count, and the template does not say which text is its."""


class Rendered(NamedTuple):
    """A conversation's text without a begin-of-text token, and the spans of it that the assistant wrote and that count, in characters.

    `begins` says whether the template wrote that token.
    """

    text: str
    spans: tuple[Span, ...]
    begins: bool = False


class Asked(NamedTuple):
    """A conversation that waits for its text.

    Attributes:
        line: it as the process that renders is given it.
        where: its place, for messages.
    """

    messages: Messages
    line: bytes
    where: str


def line_of(messages: Messages) -> bytes:
    """A conversation as the process that renders is given it."""
    is_text = not any(message.get("others") for message in messages)
    return as_line([whole(message) for message in messages], is_text=is_text)


class ChatTemplate:
    """A template that is ready to be used. It is read and run in a process of its own: `renderer.py`.

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
        (kind, *found), *_ = renderer().ask(text, TOKENS, ())
        if kind == "limit":
            raise ConfigError(self._beyond(found[0], "its own text"))
        if kind != "template":
            raise ConfigError(f"the chat template {name} cannot be used: {found[-1]}. Correct it.")
        names, spelled, self.marks_answers = found
        if "strftime_now" in names:
            raise ConfigError(
                f"the chat template {name} asks for the date by strftime_now: the same conversation would be another text tomorrow. Write "
                "a date into it, or take it out."
            )
        self.names = frozenset[str](spelled)
        self.uses_end_of_text = "eos_token" in names
        self.special_tokens = special_tokens_in(text, special_tokens)

    @property
    def digest(self) -> str:
        """What a manifest names it by."""
        return digest_of_bytes(self.text.encode())

    def render(self, messages: Messages, where: str, *, add_generation_prompt: bool = False) -> Rendered:
        """The conversation's text; with what opens the next answer, if that is asked for and the template writes it.

        Raises:
            Refused: the template says that it does not take such a conversation.
            NotMarked: an answer has the weight 0, and it cannot be told which text is its.
            DataError: it fails, goes beyond a limit, or reaches for what it must not; with where the conversation is.
        """
        line = line_of(messages)
        (found,) = self.render_all([Asked(messages, PROMPTED + line if add_generation_prompt else line, where)])
        if isinstance(found, Rendered):
            return found
        raise found

    def render_all(self, conversations: Sequence[Asked]) -> list[Rendered | Refused | NotMarked]:
        """The text of each conversation, or why it has none.

        Raises:
            DataError: as `render`, of the first that it fails at.
        """
        said = renderer().ask(self.text, TOKENS, [one.line for one in conversations])
        for (kind, *found), where in zip(said, ("its own text", *(one.where for one in conversations)), strict=False):
            if kind == "limit":
                raise DataError(self._beyond(found[0], where))
            if kind == "failed":
                raise DataError(f"the chat template {self.name} failed at {where}: {': '.join(found).rstrip('.')}. Correct it.")
        answers = zip(said[1:], conversations, strict=True)
        return [self._finished(one, *found) if kind == "text" else Refused(*found) for (kind, *found), one in answers]

    def _beyond(self, limit: str, where: str) -> str:
        return f"the chat template {self.name} {LIMITS[limit]} at {where}: shorten its loops and what it repeats, or name another template."

    def _finished(self, one: Asked, text: str, answers: list[tuple[int, int]], placed: bool) -> Rendered | NotMarked:
        counting = _counting(one.messages, [text[start:stop] for start, stop in answers])
        if counting is None:
            return NotMarked()
        first = len(BEGIN_OF_TEXT) if text.startswith(BEGIN_OF_TEXT) else 0
        if BEGIN_OF_TEXT in text[first:]:
            raise DataError(
                f"the chat template {self.name} must write {BEGIN_OF_TEXT} once, at the start of a conversation, or not at all; at "
                f"{one.where} it writes it elsewhere. Correct it."
            )
        spans = [(start - first, stop - first) for start, stop in answers if stop > start]
        if not placed or any(start < 0 for start, _ in spans) or any(before[1] > after[0] for before, after in pairwise(spans)):
            raise DataError(
                f"the chat template {self.name} has a generation block inside a macro, a filter or another such block, or around "
                f"{BEGIN_OF_TEXT}: at {one.where} it cannot be told where its answers are. Write the blocks where their text is put out."
            )
        learnt = [counts for counts, (start, stop) in zip(counting, answers, strict=True) if stop > start]
        return Rendered(text[first:], tuple(span for span, counts in zip(spans, learnt, strict=True) if counts), bool(first))

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

    def missing_generation_prompt(self) -> str:
        """What opens an answer, such as `<|im_start|>assistant`, and is not written when an answer is asked for; else an empty string.

        A template that writes nothing between a question and its answer, as Mistral's, misses nothing.
        """
        try:
            turn, question = (self.render(said, MADE_UP).text for said in (TURN, TURN[:1]))
            asked = self.render(TURN[:1], MADE_UP, add_generation_prompt=True).text
        except (Refused, DataError):  # it takes no such conversation: it cannot be told
            return ""
        opening = turn.partition(ANSWER)[0].removeprefix(question)
        return opening if asked == question and turn.startswith(question) and opening.strip() else ""

    def with_generation_prompt(self) -> "ChatTemplate":
        """This template, so that it writes what opens an answer when one is asked for."""
        opening = json.dumps(self.missing_generation_prompt())
        added = f"{{% if add_generation_prompt %}}{{{{ {opening} }}}}{{% endif %}}"
        return ChatTemplate(self.text.removesuffix("\n") + added, self.name, self.special_tokens)

    def probe(self) -> Rendered | None:
        """A conversation of every role, or of as many as it takes; None where it takes neither."""
        for probe in PROBES:
            try:
                return self.render(probe, MADE_UP)
            except Refused:
                continue
        return None


def turn_ends(chats: Iterable[ChatTemplate]) -> tuple[str, ...]:
    """The special tokens that end an answer in these templates, each once, sorted. A model that saw several may write any of them."""
    return tuple(sorted({end for chat in chats if (end := chat.turn_end()) is not None}))


def turn_end_ids(tokenizer: "Tokenizer", chats: Iterable[ChatTemplate]) -> tuple[int, ...]:
    """Their ids, sorted; a token that the tokenizer lacks can't be written."""
    ids = (tokenizer.token_to_id(token) for token in turn_ends(chats))
    return tuple(sorted(number for number in ids if number is not None))


def chats_of_caches(folders: Iterable[Path]) -> tuple[ChatTemplate, ...]:
    """The chat templates of those caches that hold conversations.

    Raises:
        DataError: a folder is no cache.
    """
    found = (chat_of(read_manifest(folder).source) for folder in folders)
    return tuple(chat for chat in found if chat is not None)


def _counting(messages: Messages, answers: Sequence[str]) -> list[bool] | None:
    """Of each answer that the template marks, whether it counts. Where one does not, each of the assistant's messages must have one."""
    said = [message for message in messages if message["role"] == "assistant"]
    if all(counts(message) for message in said):
        return [True] * len(answers)
    if len(said) != len(answers) or any(one["content"].strip() not in text for one, text in zip(said, answers, strict=True)):
        return None
    return [counts(message) for message in said]


def special_tokens_in(text: str, named: Sequence[str] = ()) -> tuple[str, ...]:
    """The special tokens that are named, and those that a template's text spells."""
    found = dict.fromkeys((*LOOKS_SPECIAL.findall(text), *named))
    return tuple(token for token in found if token not in (BEGIN_OF_TEXT, END_OF_TEXT))


def template_text(how: Conversation) -> str:
    """The Jinja of a source's chat template.

    Raises:
        ConfigError: its file is not there, or is no template.
    """
    if how.template in BUILT_IN:
        return BUILT_IN[how.template]
    if not names_file(how.template):
        text = how.template
    else:
        try:
            path = as_path(how.template) if "://" in how.template else Path(how.template).expanduser()
            with path.open("rb") as file:
                text = file.read(MAX_TEMPLATE_BYTES + 1).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"the chat template must be a file of text, found none at {how.template}: {error}. Name another file."
            ) from None
        if not is_jinja(text):
            raise ConfigError(f"the chat template must be Jinja, and the file {how.template} has no braces. Name another file.")
    if len(text) > MAX_TEMPLATE_BYTES:
        raise ConfigError(f"the chat template {how.template[:80]} must have at most {MAX_TEMPLATE_BYTES >> 20} MiB: name another one.")
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
    for name, template in BUILT_IN.items():
        if template == text:
            return name
    return written if names_file(written) else f"{digest_of_bytes(text.encode())[:12]} ({text.strip()[:40]!r} …)"
