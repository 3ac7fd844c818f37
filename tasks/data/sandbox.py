"""The program that renders chat templates: Jinja in a sandbox, with what `transformers` gives a template, in a process with limits.

`renderer.py` starts it. It imports nothing of ours: a template is a program of a stranger, and what surrounds it should be little. What a
template writes depends on the conversation alone: there is no date, no chance, and no place in memory. It reaches no attribute with an
underscore and changes nothing that it is given (Jinja's immutable sandbox).

On standard input a request has a line `[number of conversations, template, limits, begin token, end token]` and a line a conversation. All
of a request is read before it is answered: a line for the template, a line a conversation, an empty line. Standard error gets a dot as each
begins.
"""

import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

import orjson
from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

WARM_UP = r"{% macro f(x) %}{{ x | tojson }}{% endmacro %}{% for m in messages %}{{ f('\n' ~ m) }}{{ '%s' | format(m) }}{% endfor %}"
"""It uses what Python and Jinja load when it is first used."""
PROMPTED = b"+"
"""Before a conversation whose template is asked for the beginning of the next answer."""
RUN = "the run of this template"
"""The name of a run among a template's variables: none that a template can spell."""
IMPORTED_LATE = ("pprint", "textwrap")
"""By filters of Jinja's, when they are used: nothing can be opened then."""
MAX_SAID = 400
BYTES_OF_TWICE_THE_MEMORY, BYTES_OF_TWICE_THE_TIME = 2**23, 2**20
"""A conversation of so many bytes has twice as much as a short one."""
OF_OBJECTS = frozenset(dir(dict))
OUT_OF_REACH = ("open", "os.", "socket.", "subprocess.", "ctypes.", "shutil.", "pty.", "mmap.", "signal.")
"""Beginnings of the names of Python's audit events that are refused once a template may run."""


class Limits(NamedTuple):
    """Of one conversation in a template: processor time, memory beside what the process has, and length of text.

    `base_bytes` is what the process has; 0, where the system does not say, leaves memory without a limit.
    """

    seconds: float
    memory_bytes: int
    characters: int
    characters_a_byte: int
    base_bytes: int = 0


class Refused(TemplateError):
    """The template itself says that the conversation is none that it takes: by `raise_exception`."""


class TooLong(Exception):
    """The template writes too much."""


class Run:
    """One conversation on its way through a template.

    Attributes:
        written: what is written so far, in pieces.
        length: the characters of it.
        answers: where an answer starts, and its text.
    """

    def __init__(self) -> None:
        self.written: list[str] = []
        self.length = 0
        self.answers: list[tuple[int, str]] = []


class Generation(Extension):
    """`{% generation %} … {% endgeneration %}`: what is between them is an answer."""

    tags = {"generation"}  # noqa: RUF012  # as Jinja has it

    def parse(self, parser: Parser) -> nodes.Node:
        """The body, as a block whose text is marked."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_answer", [nodes.ContextReference()]), [], [], body).set_lineno(line)

    def _answer(self, context: Context, caller: Macro) -> str:
        run: Run = context[RUN]
        text = str(caller())
        run.answers.append((run.length, text))
        return text


class Nothing(Undefined):
    """What a template names and nobody gives it: it may be asked for, and not be written. So a misspelt name is no empty text."""

    __slots__ = ()
    __str__ = Undefined._fail_with_undefined_error  # pyright: ignore[reportPrivateUsage]  # as Jinja's own StrictUndefined does


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's, with blocks trimmed as `transformers` has them."""

    def __init__(self) -> None:
        extensions = (Generation, "jinja2.ext.loopcontrols")
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions, finalize=_written, undefined=Nothing)
        self.filters["tojson"] = _to_json
        del self.filters["random"], self.globals["lipsum"]
        self.globals.update({"raise_exception": _refuse})  # pyright: ignore[reportArgumentType, reportCallIssue]  # typed by Jinja's own

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Jinja's, without the error that it raises and catches for each field of a message."""
        if type(obj) is dict and attribute in obj and attribute not in OF_OBJECTS:
            return obj[attribute]
        return super().getattr(obj, attribute)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Any:
        """An attribute that is out of reach: refused when it is asked for, and not empty text."""
        raise SecurityError(f"it reaches for the attribute {attribute!r} of a {type(obj).__name__}")

    def handle_exception(self, source: str | None = None) -> NoReturn:
        """Raise what was raised: Jinja's own would look for the template's file, for a traceback."""
        raise  # it is called while an error is handled


class Compiled(NamedTuple):
    """A template as a function of its variables that gives its text in pieces, and what is told of it."""

    generate: Callable[..., Iterator[str]]
    facts: bytes


def _to_json(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
    """JSON without the escapes of HTML that Jinja's own has."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _written(value: Any) -> Any:
    """What is written of a value: of `message.content.strip` without its brackets it would be where it lies in memory."""
    if callable(value) and not isinstance(value, Undefined):
        raise SecurityError(f"it writes the {type(value).__name__} {getattr(value, '__name__', '')!r} itself: put () behind its name")
    return value


def _refuse(message: str) -> None:
    raise Refused(message)


@lru_cache(maxsize=1)
def _sandbox() -> Sandbox:
    return Sandbox()


@lru_cache(maxsize=16)
def compile_template(text: str) -> Compiled:
    """Read a template: the names that it uses, the names that it takes of things by a dot or in quotes, and whether it marks answers."""
    sandbox = _sandbox()
    tree = sandbox.parse(text)
    dotted = {node.attr for node in tree.find_all(nodes.Getattr)}
    quoted = {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
    marks = any(isinstance(block.call.node, nodes.ExtensionAttribute) for block in tree.find_all(nodes.CallBlock))
    facts = ["template", sorted({node.name for node in tree.find_all(nodes.Name)}), sorted(dotted | quoted), marks]
    return Compiled(sandbox.from_string(text).generate, _line(facts))


def render(compiled: Compiled, messages: Any, tokens: Sequence[str], characters: int, *, prompts: bool = False) -> bytes:
    """The line that answers for a conversation: its text, where its answers start and stop, and whether they are where they should be.

    Args:
        prompts: whether the template is asked for the beginning of the next answer.

    Raises:
        TooLong: there would be more than so many characters.
        Exception: whatever the template raises.
    """
    run = Run()
    variables = {
        "messages": messages, "tools": None, "documents": None, "add_generation_prompt": prompts,
        "bos_token": tokens[0], "eos_token": tokens[1], RUN: run,
    }  # fmt: skip
    for piece in compiled.generate(**variables):
        run.written.append(piece)
        run.length += len(piece)
        if run.length > characters:
            raise TooLong
    text = "".join(run.written)
    placed = all(text.startswith(answer, start) for start, answer in run.answers)
    return _line(["text", text, [[start, start + len(answer)] for start, answer in run.answers], placed])


def _line(answer: list[Any]) -> bytes:
    return orjson.dumps(answer) + b"\n"


def answer(work: Callable[[], bytes], *, size: int, limits: Limits) -> bytes:
    """The line of what is done within limits. Where the time is over the kernel ends this process, whatever it does."""
    if limits.base_bytes:
        _limit_memory(limits.base_bytes + limits.memory_bytes * (1 + size // BYTES_OF_TWICE_THE_MEMORY))
    signal.setitimer(signal.ITIMER_PROF, limits.seconds * (1 + size / BYTES_OF_TWICE_THE_TIME))
    try:
        return work()
    except Refused as error:
        said = ["refused", str(error)[:MAX_SAID]]
    except MemoryError:
        said = ["limit", "memory"]
    except TooLong:
        said = ["limit", "text"]
    except Exception as error:  # a template is a program of somebody else: it may raise anything
        said = ["failed", type(error).__name__, " ".join(str(error)[:MAX_SAID].split())]
    return json.dumps(said).encode() + b"\n"  # any text; outside of the handlers: what the error held is free


@lru_cache(maxsize=1)
def _limit_memory(most: int) -> None:
    """Called again with another number alone."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _address_space() -> int:
    """The bytes that this process has mapped; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 0


def _render_line(compiled: Compiled, line: bytes, tokens: Sequence[str], characters: int, *, prompts: bool) -> bytes:
    return render(compiled, json.loads(line) if line.startswith(b" ") else orjson.loads(line), tokens, characters, prompts=prompts)


def answers(template: str, lines: Sequence[bytes], limits: Limits, tokens: Sequence[str]) -> Iterator[bytes]:
    """The line for the template, and, where it can be used, one for each conversation."""
    os.write(2, b".")
    yield (first := answer(lambda: compile_template(template).facts, size=0, limits=limits))
    if not first.startswith(b'["template"'):
        return
    compiled = compile_template(template)
    for line in lines:
        os.write(2, b".")
        most = limits.characters + limits.characters_a_byte * len(line) + len(template)
        said, prompts = line.removeprefix(PROMPTED), line.startswith(PROMPTED)
        work = partial(_render_line, compiled, said, tokens, most, prompts=prompts)
        yield answer(work, size=len(line), limits=limits)


def main() -> None:
    """Answer requests until there are no more."""
    for name in IMPORTED_LATE:
        import_module(name)
    render(compile_template(WARM_UP), ["u"], ("", ""), MAX_SAID)
    base_bytes = _address_space()
    # Nothing can be opened, connected or started from here on
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal, to all its processes: this one ends with its parent
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for what, most in ((resource.RLIMIT_NOFILE, 3), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(what, (most, most))

    def refuse(event: str, _arguments: tuple[Any, ...]) -> None:
        if event.startswith(OUT_OF_REACH):
            raise SecurityError(f"it does {event}")

    sys.addaudithook(refuse)
    while header := sys.stdin.buffer.readline():
        count, template, limits, *tokens = json.loads(header)
        lines = [sys.stdin.buffer.readline() for _ in range(count)]
        said = [*answers(template, lines, Limits(*limits, base_bytes=base_bytes), tokens), b"\n"]
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(b"".join(said))
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
