"""Where a chat template runs: Jinja in a sandbox, with what `transformers` gives a template, and a bound on the work.

What it writes depends on the conversation alone: there is no date, no chance, and no place in memory.

A template comes from anywhere. So it reaches no attribute with an underscore and changes nothing that it is given (Jinja's immutable
sandbox), and its loops, calls and products are counted. What a filter such as `center` may write at once is not.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_STEPS = 1_000_000
MAX_PRODUCT = 2**20
RUN = "the run of this template"
"""The name of a run among a template's variables: none that a template can spell."""


class Refused(TemplateError):
    """The template itself says that the conversation is none that it takes: by `raise_exception`."""


class TooMuchWork(TemplateError):
    """The template does not come to an end in time."""


class Run:
    """One conversation on its way through a template.

    Attributes:
        written: what is written so far, in pieces.
        answers: where an answer starts, and its text.
    """

    def __init__(self) -> None:
        self.written: list[str] = []
        self.answers: list[tuple[int, str]] = []
        self._steps = 0

    def step(self) -> None:
        """Count a turn of a loop or a call."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise TooMuchWork(f"it takes more than {MAX_STEPS:,} turns of loops and calls")


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
        run.answers.append((sum(map(len, run.written)), text))
        return text


class Nothing(Undefined):
    """What a template names and nobody gives it: it may be asked for, and not be written. So a misspelt name is no empty text."""

    __slots__ = ()
    __str__ = Undefined._fail_with_undefined_error  # pyright: ignore[reportPrivateUsage]  # as Jinja's own StrictUndefined does


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's, with blocks trimmed as `transformers` has them."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        extensions = (Generation, "jinja2.ext.loopcontrols")
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions, finalize=_written, undefined=Nothing)
        self.filters["tojson"] = _to_json
        del self.filters["random"], self.globals["lipsum"]
        self.globals.update({"raise_exception": _refuse})  # pyright: ignore[reportArgumentType, reportCallIssue]  # typed by Jinja's own

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805  # a template may name an argument self
        """Count a call, and make it."""
        __context[RUN].step()
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """A product, unless it is too long."""
        if operator == "**":
            raise SecurityError("it takes a power, which a chat template has no use for")
        for whole, times in ((left, right), (right, left)):
            if isinstance(whole, str | list | tuple) and isinstance(times, int) and len(whole) * times > MAX_PRODUCT:
                raise TooMuchWork(f"it repeats something to a length above {MAX_PRODUCT:,}")
        return super().call_binop(context, operator, left, right)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Any:
        """An attribute that is out of reach: refused when it is asked for, and not empty text."""
        raise SecurityError(f"it reaches for the attribute {attribute!r} of a {type(obj).__name__}")

    def counted(self, context: Context, values: Iterable[Any]) -> Iterator[Any]:
        """What a loop goes through."""
        run: Run = context[RUN]
        for value in values:
            run.step()
            yield value

    def compiled(self, text: str) -> Callable[..., Iterator[str]]:
        """A template as a function of its variables that gives its text in pieces.

        Raises:
            TemplateError: it does not parse, or has a loop that calls itself.
        """
        tree = self.parse(text)
        for loop in list(tree.find_all(nodes.For)):
            if loop.recursive:
                raise TooMuchWork("it has a recursive loop, whose end cannot be told: write it as loops")
            loop.iter = nodes.Call(nodes.EnvironmentAttribute("counted"), [nodes.ContextReference(), loop.iter], [], None, None)
        code = self.compile(tree)  # pyright: ignore[reportArgumentType, reportCallIssue]  # a tree is taken as text is
        template = self.template_class.from_code(self, code, self.make_globals(None))
        return template.generate


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
