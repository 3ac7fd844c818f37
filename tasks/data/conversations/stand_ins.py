"""Conversations made of what Python files say of themselves, in the layout of any source: real text with no download.

The question names a function or a class, the answer is the first paragraph of its docstring. Some have a system text and some go on for
another turn, where the layout has room for that. All are short: a row has 128 tokens at proxy scale.
"""

import ast
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from phasewise.tasks.data.conversations.declared import Conversation
from phasewise.tasks.data.conversations.messages import Message
from phasewise.tasks.data.python_text import documented
from phasewise.trainer.base.identity import digest_of_bytes

MIN_WORDS, MAX_CHARACTERS = 4, 320
ASKED = ("What does {name} of {module} do?", "In {module}, what is {name}{arguments} for?", "Explain {name} ({module}) in a few words.")
SYSTEM = "You answer briefly from the documentation of {module}."
SYSTEM_ONE_IN, TURNS_ONE_IN = 4, 5
WORSE = "I do not know."
"""Answers of a list that are not the one to take. A source that takes them is found out."""


def conversations_in(path: Path, name: str) -> Iterator[list[Message]]:
    """The conversations of a file; `name` is its dotted module name. A file that does not read gives none."""
    try:
        with warnings.catch_warnings(action="ignore"):  # old escapes in other people's files
            found = list(_turns(path.read_text(encoding="utf-8"), name))
    except (SyntaxError, UnicodeDecodeError, ValueError):
        return
    waiting = iter(found)
    for question, answer in waiting:
        said = [question, answer]
        if _draw(question, TURNS_ONE_IN) and (more := next(waiting, None)):
            said += more
        if _draw(answer, SYSTEM_ONE_IN):
            said.insert(0, Message(role="system", content=SYSTEM.format(module=name)))
        if sum(len(message["content"]) for message in said) <= MAX_CHARACTERS:
            yield said


def as_record(messages: Sequence[Message], how: Conversation) -> dict[str, Any]:
    """What a source of this layout would have for the conversation, as much of it as has room there."""
    said = [message for message in messages if message["role"] != "system"]
    system = next((message["content"] for message in messages if message["role"] == "system"), None)
    names: dict[str, str] = {role: name for name, role in reversed(how.roles.items())}
    record: dict[str, Any] = {} if how.system is None else {how.system: system}
    if how.answer is not None:
        said, answer = said[:-1] if how.messages else said[:1], said[-1 if how.messages else 1]["content"]
        record[how.answer.key] = _answers(answer, how)
    if how.prompt is not None:
        record[how.prompt] = said[0]["content"]
    if how.context is not None:
        record[how.context] = None
    if how.messages is not None:
        if how.system is None and system is not None and "system" in names:
            said = [Message(role="system", content=system), *said]
        record[how.messages] = [{how.role: names[message["role"]], how.content: message["content"]} for message in said]
    return record


def strings_of(value: object) -> Iterator[str]:
    """Every text in a record, in order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():  # pyright: ignore[reportUnknownVariableType]
            yield from strings_of(part)  # pyright: ignore[reportUnknownArgumentType]
    elif isinstance(value, list):
        for part in value:  # pyright: ignore[reportUnknownVariableType]
            yield from strings_of(part)  # pyright: ignore[reportUnknownArgumentType]


def _turns(text: str, name: str) -> Iterator[tuple[Message, Message]]:
    for dotted, node, docstring in documented(text, name):
        answer = " ".join(docstring.partition("\n\n")[0].split())
        if isinstance(node, ast.Module) or len(answer.split()) < MIN_WORDS:
            continue
        arguments = "" if isinstance(node, ast.ClassDef) else f"({ast.unparse(node.args)})"
        asked = ASKED[int(digest_of_bytes(dotted.encode())[:8], 16) % len(ASKED)]
        question = asked.format(name=dotted.removeprefix(f"{name}."), module=name, arguments=arguments)
        yield Message(role="user", content=question), Message(role="assistant", content=answer)


def _answers(answer: str, how: Conversation) -> Any:
    """The answer as its column has it: among others, where the source has several."""
    assert how.answer is not None
    if how.answer.content is None:
        return answer
    if how.answer.best_by is None:
        return [{how.answer.content: text} for text in (answer, WORSE)]
    rated = ((WORSE, 0.25), (answer, 1.0), (WORSE, 0.5))
    return [{how.answer.content: text, how.answer.best_by: rating} for text, rating in rated]


def _draw(message: Message, one_in: int) -> bool:
    """One in so many, by the message alone."""
    return int(digest_of_bytes(message["content"].encode())[:8], 16) % one_in == 0
