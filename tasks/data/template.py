"""Chat templates: Jinja that renders a conversation and marks the text of the assistant.

A chat template is an untrusted program. `sandbox.py` runs it in a separate process, with limits on processor time, memory and text and
without file access. A reading process restarts its renderer after a failure.
"""

import atexit
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

import orjson

from phasewise.tasks.data.conversation import BUILT_IN, REASONING, Conversation, Message, counts, is_jinja, names_file
from phasewise.tasks.data.tokenizer import BEGIN_OF_TEXT, END_OF_TEXT
from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.trainer.base.identity import digest_of_bytes
from phasewise.trainer.base.storage import as_path

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LOOKS_SPECIAL = re.compile(r"<\|[^|<>\s]+\|>")
ANSWER = "It is an answer."
TURN = (Message(role="user", content="u"), Message(role="assistant", content=ANSWER))
PROBE_PLACE = "a test conversation"
PROBES = ((Message(role="system", content="s"), *TURN, *TURN), TURN)
TOKENS = (BEGIN_OF_TEXT, END_OF_TEXT)
PROMPTED = b"+"  # as in `sandbox.py`
MAX_TEMPLATE_BYTES = 2**20
Messages = Sequence[Message]
PROGRAM = Path(__file__).with_name("sandbox.py")
SECONDS, MEMORY_MIB, CHARACTERS, CHARACTERS_A_BYTE = 0.5, 192, 2**18, 16
"""Limits of a conversation, as in `sandbox.Limits`. They grow with its length."""
WALL_SECONDS = 60.0  # limit of a request, for a stopped process or a machine under load
MAX_ANSWER_BYTES = 2**28
LIMITS = {
    "memory": f"takes more than {MEMORY_MIB} MiB of memory",
    "text": f"writes more than {CHARACTERS:,} characters, and {CHARACTERS_A_BYTE} for each byte of a conversation",
    "time": f"takes more than {SECONDS:g} s of processor time",
    "clock": f"takes more than {WALL_SECONDS:g} s",
}
BEYOND = "the chat template {} {} at {}: shorten its loops and what it repeats, or name another template."
PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "HOME", "VIRTUAL_ENV", "LANG", "LC_ALL")
END = b"\n\n"  # end of the answers to a request
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=str).encode


class Died(Exception):
    """The process ended during a request. `begun`: number of started items: the template, then the conversations."""

    def __init__(self, begun: int, why: str):
        super().__init__(why)
        self.begun, self.why = begun, why


class Renderer:
    """A process of `sandbox.py`, started at the first request. Requests are serial."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = Lock()

    def ask(self, template: str, tokens: tuple[str, str], conversations: Sequence[bytes]) -> list[list[Any]]:
        """Compile a template and render conversations, with answers as of `sandbox.py`. A failure or a limit ends the answers."""
        limits = (SECONDS, MEMORY_MIB * 2**20, CHARACTERS, CHARACTERS_A_BYTE)
        header = _encode([len(conversations), template, limits, *tokens]).encode(errors="surrogatepass")
        request = b"\n".join((header, *conversations, b""))
        with self._lock:
            try:
                answers = self._exchange(request)
            except Died as died:
                missing = [["missing"]] * (died.begun - 1)
                answers = [*missing, ["limit", died.why] if died.why in LIMITS else ["failed", "Died", died.why]]
                if died.why not in LIMITS:
                    with suppress(Died):
                        answers = self._exchange(request)
            if answers[-1][0] == "failed" or any(answer[0] == "limit" for answer in answers):
                self.close()  # memory of this template would count against the next
            return answers

    def _exchange(self, request: bytes) -> list[list[Any]]:
        if self._process is None:
            environment = {name: value for name, value in os.environ.items() if name in PASSED_ON or name.startswith("PYTHON")}
            pipe = subprocess.PIPE
            command = [sys.executable, "-P", str(PROGRAM)]
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, env=environment)
            os.set_blocking(cast("IO[bytes]", self._process.stdin).fileno(), False)
        process = self._process
        stdin, stdout, stderr = cast("tuple[IO[bytes], IO[bytes], IO[bytes]]", (process.stdin, process.stdout, process.stderr))
        until = time.monotonic() + WALL_SECONDS
        is_late = False

        def wait(file: int, event: int) -> None:
            poll = select.poll()  # `select.select` has no files above 1,023
            poll.register(file, event)
            if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
                raise TimeoutError

        try:
            unsent, received = memoryview(request), bytearray()
            with suppress(BrokenPipeError):
                while unsent:
                    wait(stdin.fileno(), select.POLLOUT)
                    unsent = unsent[os.write(stdin.fileno(), unsent) :]
            while not received.endswith(END):
                wait(stdout.fileno(), select.POLLIN)
                chunk = os.read(stdout.fileno(), 2**20)
                if not chunk:
                    break
                received += chunk
                if len(received) > MAX_ANSWER_BYTES:
                    raise TimeoutError
            if received.endswith(END):
                lines = received.splitlines()[:-1]
                stderr.read(len(lines))
                return [orjson.loads(line) for line in lines]
        except TimeoutError:
            is_late = True
            process.kill()
        except BaseException:  # the next request must not receive these answers
            self.close()
            raise
        complaint = stderr.read().decode(errors="replace")
        code = process.wait()
        self.close()
        last = complaint.strip().rpartition("\n")[2].lstrip(".")
        why = "time" if code == -signal.SIGPROF else "clock" if is_late else f"its process ended with code {code} {last}".strip()
        raise Died(len(complaint) - len(complaint.lstrip(".")), why)

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


RENDERER = Renderer()
atexit.register(RENDERER.close)
os.register_at_fork(after_in_child=RENDERER.__init__)  # a fork starts its own process


class Refused(Exception):
    """The template refuses the conversation by `raise_exception`."""


class NotMarked(Exception):
    """An answer has the weight 0, and the template does not mark its text."""


class Rendered(NamedTuple):
    """The text without a BOS token. `spans`: characters of the answers to train on. `begins`: whether the template wrote the BOS token."""

    text: str
    spans: tuple[tuple[int, int], ...]
    begins: bool = False


class Asked(NamedTuple):
    """A conversation to render. `line`: its encoding for the rendering process. `where`: its place, for messages."""

    messages: Messages
    line: bytes
    where: str


def line_of(messages: Messages) -> bytes:
    """Encode a conversation as a line of JSON for the rendering process. Values that JSON lacks become text.

    A message gets all fields of the record, as in `_alias_reasoning_fields` of `transformers` 5.23. A leading space marks lines that need
    the slow parser: `orjson` is ten times as fast, but has no NaN and no long integers.
    """
    fields: list[dict[str, object]] = []
    is_text = True
    for message in messages:
        others = message.get("others", {})
        is_text &= not others
        found: dict[str, object] = {"role": message["role"], "content": message["content"], **others}
        reasoning = next((others[name] for name in REASONING if name in others), None)
        fields.append(found if reasoning is None else {"thinking": reasoning, **found, "reasoning_content": reasoning})
    if is_text:
        with suppress(orjson.JSONEncodeError):  # half of a surrogate pair
            return orjson.dumps(fields)
    return b" " + _encode(fields).encode(errors="surrogatepass")


class ChatTemplate:
    """A compiled chat template. `renderer.py` compiles and runs it in a separate process.

    Attributes:
        text: its Jinja.
        name: for messages.
        marks_answers: whether it has generation blocks.
        names: fields of a message that it reads.
        special_tokens: tokens that it writes and that must be one token each, without BOS and EOS.

    Raises:
        ConfigError: the text is not valid Jinja, or its output depends on the date.
    """

    def __init__(self, text: str, name: str, special_tokens: Sequence[str] = ()):
        self.text, self.name = text, name
        (kind, *found), *_ = RENDERER.ask(text, TOKENS, ())
        if kind == "limit":
            raise ConfigError(BEYOND.format(name, LIMITS[found[0]], "its own text"))
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

    def render(self, messages: Messages, where: str, *, add_generation_prompt: bool = False) -> Rendered:
        """Render a conversation. Raises Refused by the template, NotMarked for an unmarked answer of weight 0, DataError for a failure."""
        line = line_of(messages)
        (found,) = self.render_all([Asked(messages, PROMPTED + line if add_generation_prompt else line, where)])
        if isinstance(found, Rendered):
            return found
        raise found

    def render_all(self, conversations: Sequence[Asked]) -> list[Rendered | Refused | NotMarked]:
        """Render conversations in one request. Raises DataError as `render`, for the first failure."""
        answers = RENDERER.ask(self.text, TOKENS, [one.line for one in conversations])
        for (kind, *found), where in zip(answers, ("its own text", *(one.where for one in conversations)), strict=False):
            if kind == "limit":
                raise DataError(BEYOND.format(self.name, LIMITS[found[0]], where))
            if kind == "failed":
                raise DataError(f"the chat template {self.name} failed at {where}: {': '.join(found).rstrip('.')}. Correct it.")
        pairs = zip(answers[1:], conversations, strict=True)
        return [self._finish(one, *found) if kind == "text" else Refused(*found) for (kind, *found), one in pairs]

    def _finish(self, one: Asked, text: str, answers: list[tuple[int, int]], placed: bool) -> Rendered | NotMarked:
        spoken = [message for message in one.messages if message["role"] == "assistant"]
        if all(counts(message) for message in spoken):
            counting = [True] * len(answers)
        else:
            marked = [text[start:stop] for start, stop in answers]
            if len(spoken) != len(marked) or any(a["content"].strip() not in b for a, b in zip(spoken, marked, strict=True)):
                return NotMarked()
            counting = [counts(message) for message in spoken]
        first = len(BEGIN_OF_TEXT) if text.startswith(BEGIN_OF_TEXT) else 0
        if BEGIN_OF_TEXT in text[first:]:
            raise DataError(
                f"the chat template {self.name} must write {BEGIN_OF_TEXT} once, at the start of a conversation, or not at all. At "
                f"{one.where} the token is elsewhere. Correct the template."
            )
        kept = [
            (start - first, stop - first, is_counted) for (start, stop), is_counted in zip(answers, counting, strict=True) if stop > start
        ]
        if not placed or any(start < 0 for start, _, _ in kept) or any(before[1] > after[0] for before, after in pairwise(kept)):
            raise DataError(
                f"the chat template {self.name} has a generation block inside a macro, a filter or another such block, or around "
                f"{BEGIN_OF_TEXT}: the positions of its answers are unknown at {one.where}. Write the blocks around the output itself."
            )
        return Rendered(text[first:], tuple((start, stop) for start, stop, counted in kept if counted), bool(first))

    def turn_end(self) -> str | None:
        """The special token that ends an assistant's turn, if any: in the marked answer, or without marks behind the answer."""
        rendered = self.probe()
        if rendered is None:
            return None
        tokens = (*self.special_tokens, END_OF_TEXT)
        if rendered.spans:
            start, stop = rendered.spans[-1]
            return next((token for token in tokens if rendered.text[start:stop].endswith(token)), None)
        behind = rendered.text.rpartition(ANSWER)[2]
        return next((token for token in tokens if behind.startswith(token)), None)

    def missing_generation_prompt(self) -> str:
        """The missing generation prompt, such as `<|im_start|>assistant`. Empty if the template has one or, as Mistral's, needs none."""
        try:
            turn, question = (self.render(messages, PROBE_PLACE).text for messages in (TURN, TURN[:1]))
            prompted = self.render(TURN[:1], PROBE_PLACE, add_generation_prompt=True).text
        except (Refused, DataError):
            return ""
        opening = turn.partition(ANSWER)[0].removeprefix(question)
        return opening if prompted == question and turn.startswith(question) and opening.strip() else ""

    def probe(self) -> Rendered | None:
        """A test conversation with every role, or without a system text if the template refuses it. None if the template refuses either."""
        for probe in PROBES:
            try:
                return self.render(probe, PROBE_PLACE)
            except Refused:
                continue
        return None


_compile = lru_cache(maxsize=16)(ChatTemplate)


def turn_ends(chats: Iterable[ChatTemplate]) -> tuple[str, ...]:
    """The special tokens at the end of an answer, sorted. A model trained on several templates may write any token of the result."""
    return tuple(sorted({end for chat in chats if (end := chat.turn_end()) is not None}))


def turn_end_ids(tokenizer: "Tokenizer", chats: Iterable[ChatTemplate]) -> tuple[int, ...]:
    """The ids of `turn_ends`, sorted, without tokens that the tokenizer lacks."""
    ids = (tokenizer.token_to_id(token) for token in turn_ends(chats))
    return tuple(sorted(number for number in ids if number is not None))


def special_tokens_in(text: str, named: Sequence[str] = ()) -> tuple[str, ...]:
    """The special tokens in a template's text, and the named tokens."""
    found = dict.fromkeys((*LOOKS_SPECIAL.findall(text), *named))
    return tuple(token for token in found if token not in (BEGIN_OF_TEXT, END_OF_TEXT))


def template_text(how: Conversation) -> str:
    """The Jinja of a source's chat template. Raises ConfigError if the file is missing or not a template."""
    if how.template in BUILT_IN:
        return BUILT_IN[how.template]
    text = how.template
    if names_file(how.template):
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
        raise ConfigError(f"the chat template {how.template[:80]} must have at most {MAX_TEMPLATE_BYTES >> 20} MiB: shorten it.")
    return text


def template_of(how: Conversation) -> ChatTemplate:
    """The template of a source. Raises ConfigError if it is missing or unusable."""
    text = template_text(how)
    name = next((name for name, template in BUILT_IN.items() if template == text), None)
    if name is None:
        name = how.template if names_file(how.template) else f"{digest_of_bytes(text.encode())[:12]} ({text.strip()[:40]!r} …)"
    return _compile(text, name, how.special_tokens)


def chat_of(source: Mapping[str, Any]) -> ChatTemplate | None:
    """The template of a source in a manifest. None for plain text. Raises ConfigError as `template_of`."""
    how = source.get("conversation")
    return None if how is None else template_of(Conversation.model_validate(how))
