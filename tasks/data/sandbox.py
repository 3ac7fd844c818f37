"""The program that renders chat templates: Jinja in a sandbox, with the environment of `transformers`, in a process with limits.

`renderer.py` starts it. The program imports no module of the project, because a template is untrusted. The output depends only on
the conversation: a template has no date, no random numbers and no addresses. Jinja's immutable sandbox forbids attributes with an
underscore and changes of arguments.

A request on standard input is a line `[number of conversations, template, limits, BOS token, EOS token]` and a line for each
conversation. The answers follow after the whole request: a line for the template, a line for each conversation, an empty line. Standard
error gets a dot at the start of each item.
"""

import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn

import orjson
from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

WARM_UP = r"{% macro f(x) %}{{ x | tojson }}{% endmacro %}{% for m in messages %}{{ f('\n' ~ m) }}{{ '%s' | format(m) }}{% endfor %}"
"""Loads the modules that Python and Jinja import at their first use."""
PROMPTED = b"+"  # prefix of a conversation that is rendered with a generation prompt
RUN = "the run of this template"  # name of a run among a template's variables. No template can spell it.
IMPORTED_LATE = ("pprint", "textwrap")  # modules that filters of Jinja import when no file can be opened any more
MAX_SAID = 400
BYTES_OF_TWICE_THE_MEMORY, BYTES_OF_TWICE_THE_TIME = 2**23, 2**20  # size of a conversation with twice the limit of a short one
OF_OBJECTS = frozenset(dir(dict))
OUT_OF_REACH = ("open", "os.", "socket.", "subprocess.", "ctypes.", "shutil.", "pty.", "mmap.", "signal.")
"""Prefixes of Python's audit events that are refused as soon as a template may run."""


class Limits(NamedTuple):
    """Limits for rendering one conversation. `base_bytes`: memory of the process. 0, if it is unknown, disables the memory limit."""

    seconds: float
    memory_bytes: int
    characters: int
    characters_a_byte: int
    base_bytes: int = 0


class Refused(TemplateError):
    """The template refuses the conversation by `raise_exception`."""


class TooLong(Exception):
    """The template exceeds the limit of characters."""


class Generation(Extension):
    """`{% generation %} … {% endgeneration %}`: the block is an answer."""

    tags = {"generation"}  # noqa: RUF012  # as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        """Compile the block as a call with its text."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_answer", [nodes.ContextReference()]), [], [], body).set_lineno(line)

    def _answer(self, context: Context, caller: Macro) -> str:
        run = context[RUN]
        text = str(caller())
        run.answers.append((run.length, text))
        return text


class Nothing(Undefined):
    """An undefined name. A template can test the name but not write the value, because a misspelt name must not become empty text."""

    __slots__ = ()
    __str__ = Undefined._fail_with_undefined_error  # pyright: ignore[reportPrivateUsage]  # as Jinja's own StrictUndefined does


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with trimmed blocks, as in `transformers`."""

    def __init__(self) -> None:
        def to_json(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
            return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

        def refuse(message: str) -> None:
            raise Refused(message)

        def check_written(value: Any) -> Any:
            if callable(value) and not isinstance(value, Undefined):  # its text would be an address in memory
                name = getattr(value, "__name__", "")
                raise SecurityError(f"it writes the {type(value).__name__} {name!r} itself: put () behind its name")
            return value

        extensions = (Generation, "jinja2.ext.loopcontrols")
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions, finalize=check_written, undefined=Nothing)
        self.filters["tojson"] = to_json  # without the HTML escapes of Jinja's own
        del self.filters["random"], self.globals["lipsum"]
        self.globals.update({"raise_exception": refuse})  # pyright: ignore[reportArgumentType, reportCallIssue]  # typed by Jinja's own

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Read the field of a message without the error that Jinja raises and catches."""
        if type(obj) is dict and attribute in obj and attribute not in OF_OBJECTS:
            return obj[attribute]
        return super().getattr(obj, attribute)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Any:
        """Refuse a forbidden attribute at once, instead of an empty text."""
        raise SecurityError(f"it reaches for the attribute {attribute!r} of a {type(obj).__name__}")

    def handle_exception(self, source: str | None = None) -> NoReturn:
        """Raise the current error again. Jinja's own would search for the template's file."""
        raise


SANDBOX = Sandbox()


@lru_cache(maxsize=16)
def compile_template(text: str) -> tuple[Callable[..., Iterator[str]], bytes]:
    """A template as a function from variables to pieces of text, and the answer about the template: its variables, the names after a dot or
    in quotes, and whether it marks answers.
    """
    tree = SANDBOX.parse(text)
    dotted = {node.attr for node in tree.find_all(nodes.Getattr)}
    quoted = {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
    marks = any(isinstance(block.call.node, nodes.ExtensionAttribute) for block in tree.find_all(nodes.CallBlock))
    facts = ["template", sorted({node.name for node in tree.find_all(nodes.Name)}), sorted(dotted | quoted), marks]
    return SANDBOX.from_string(text).generate, orjson.dumps(facts) + b"\n"


def render(template: str, line: bytes, tokens: Sequence[str], max_characters: int, *, prompts: bool = False) -> bytes:
    """Render a line with a conversation. The line has the text, the answers `[start, stop]`, and whether the positions are correct.

    `line`: JSON. A leading space marks values that need the slow parser. `prompts`: whether to add a generation prompt. Raises TooLong if
    the text exceeds `max_characters`. Also raises any error of the template.
    """
    run = SimpleNamespace(length=0, answers=[])  # characters so far, and the start and text of each generation block
    variables = {
        "messages": json.loads(line) if line.startswith(b" ") else orjson.loads(line), "tools": None, "documents": None,
        "add_generation_prompt": prompts, "bos_token": tokens[0], "eos_token": tokens[1], RUN: run,
    }  # fmt: skip
    pieces: list[str] = []
    for piece in compile_template(template)[0](**variables):
        pieces.append(piece)
        run.length += len(piece)
        if run.length > max_characters:
            raise TooLong
    text = "".join(pieces)
    placed = all(text.startswith(answer, start) for start, answer in run.answers)
    return orjson.dumps(["text", text, [[start, start + len(answer)] for start, answer in run.answers], placed]) + b"\n"


def answer(work: Callable[[], bytes], *, size: int, limits: Limits) -> bytes:
    """Run `work` within limits and return its line, or a line with the error. The kernel ends the process when the time is over."""
    if limits.base_bytes:
        most = limits.base_bytes + limits.memory_bytes * (1 + size // BYTES_OF_TWICE_THE_MEMORY)
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    signal.setitimer(signal.ITIMER_PROF, limits.seconds * (1 + size / BYTES_OF_TWICE_THE_TIME))
    try:
        return work()
    except Refused as error:
        said = ["refused", str(error)[:MAX_SAID]]
    except MemoryError:
        said = ["limit", "memory"]
    except TooLong:
        said = ["limit", "text"]
    except Exception as error:  # a template may raise any error
        said = ["failed", type(error).__name__, " ".join(str(error)[:MAX_SAID].split())]
    return json.dumps(said).encode() + b"\n"  # after the handlers have freed the error's memory


def main() -> None:
    """Answer requests until standard input ends."""
    for name in IMPORTED_LATE:
        import_module(name)
    render(WARM_UP, b'["u"]', ("", ""), MAX_SAID)
    base_bytes = 0
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            base_bytes = int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        pass
    # From here on the process can open, connect and start nothing
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to every process, and the parent decides the end
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
        limits = Limits(*limits, base_bytes=base_bytes)
        os.write(2, b".")
        said = [answer(lambda template=template: compile_template(template)[1], size=0, limits=limits)]
        for line in lines if said[0].startswith(b'["template"') else ():
            os.write(2, b".")
            most = limits.characters + limits.characters_a_byte * len(line) + len(template)
            work = partial(render, template, line.removeprefix(PROMPTED), tokens, most, prompts=line.startswith(PROMPTED))
            said.append(answer(work, size=len(line), limits=limits))
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(b"".join([*said, b"\n"]))
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
