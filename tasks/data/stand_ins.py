"""Proxy data sets of recipes, built from the text of this Python installation: real text without a download.

Each is JSON lines under `sources/<component>/`. The files are written once and then treated as any other source: a file that a user adds is
part of the component.
"""

import ast
import importlib.metadata
import inspect
import json
import platform
import re
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Literal, NamedTuple, TypeVar, assert_never

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pydantic import Field

from phasewise.tasks.data.conversation import Conversation, Message
from phasewise.tasks.data.source import Source
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.identity import digest_of_bytes
from phasewise.trainer.base.storage import read_json, write_atomically, write_json

T = TypeVar("T")
View = Literal["code", "docstrings", "comments", "questions", "doctests", "text", "topics"]
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
MIN_DOCUMENT_WORDS, MAX_PIECE_CHARACTERS = 25, 2500
PROJECT, DIST_INFO = "phasewise", ".dist-info"
MIN_WORDS, MAX_CHARACTERS = 4, 320
ASKED = ("What does {name} of {module} do?", "In {module}, what is {name}{arguments} for?", "Explain {name} ({module}) in a few words.")
SYSTEM = "You answer briefly from the documentation of {module}."
SYSTEM_ONE_IN, TURNS_ONE_IN = 4, 5
WORSE = "I do not know."  # A wrong answer in lists of answers, which shows a source that takes it
BENCHMARK = "word_problems"
NUM_ITEMS = 256
NAMES = ("Amara", "Bruno", "Chiara", "Dmitri", "Esi", "Farid", "Greta", "Hiro", "Ines", "Jonas", "Keiko", "Lena", "Marek", "Nadia", "Olu")
THINGS = ("lanterns", "clay bowls", "apple crates", "paper kites", "tin whistles", "wool scarves", "honey jars", "bicycle bells")
PLACES = ("the harbour market", "the school fair", "her uncle's shop", "the spring festival", "the railway kiosk", "the village square")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
SHINGLE_WORDS = 13
MAX_SHARED_SHINGLES = 4
MAX_SHARED_PART = 0.25
RECORD_NAME = "stand-ins.json"
FILE_NAME = "stand-in.jsonl"
TEST_NAME = "test.json"


class StandIn(Frozen):
    """The text of a proxy data set: a view of the files that match `where` (`site:` or `stdlib:` globs) and not `without`."""

    view: View
    where: tuple[str, ...]
    without: tuple[str, ...] = ()
    max_bytes: int = Field(gt=0)
    test_items: bool = False  # whether to write a `test.json` with synthetic word problems, the test items of a benchmark
    conversation: Conversation | None = None  # layout of the questions and answers. None writes text.
    followed_by: tuple["StandIn", ...] = ()  # proxy data sets whose documents follow, so that the text is sorted by its origin


def stand_in_source(stand_in: StandIn, folder: Path) -> Source:
    """The source of a proxy data set: all JSON lines in its folder, and the test items."""
    include = ("*.jsonl", TEST_NAME) if stand_in.test_items else ("*.jsonl",)
    return Source(url=folder.as_uri(), include=include, format="jsonl", conversation=stand_in.conversation)


def missing_stand_ins(components: Mapping[str, StandIn], sources: Path) -> list[str]:
    """Components without a finished proxy data set. Once the record exists, the files belong to the user."""
    if (sources / RECORD_NAME).exists():
        return [name for name in sorted(components) if not (sources / name).exists()]
    return sorted(components)


def roots() -> dict[str, Path]:
    """The folders of the standard library (`stdlib`) and of the installed packages (`site`)."""
    paths = sysconfig.get_paths()
    return {"stdlib": Path(paths["stdlib"]), "site": Path(paths["purelib"])}


@cache
def required_packages() -> frozenset[str]:
    """All packages that Phasewise requires, and pip. Empty if Phasewise is not installed."""
    found: set[tuple[str, str]] = set()
    pending = [(PROJECT, "")]
    while pending:
        name, extra = pending.pop()
        if (name, extra) in found:
            continue
        found.add((name, extra))
        with suppress(importlib.metadata.PackageNotFoundError):
            for needed in map(Requirement, importlib.metadata.requires(name) or []):
                if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                    pending += [(canonicalize_name(needed.name), one) for one in ("", *needed.extras)]
    names = {name for name, _ in found}
    return frozenset({*names, "pip"} if len(names) > 1 else ())


def collect(stand_in: StandIn) -> list[dict[str, Any]]:
    """The documents of a proxy data set: `id` and `text`, or a conversation's columns. Raises DataError if this installation has none."""
    documents: list[dict[str, Any]] = []
    size = 0
    for path, name in _files(stand_in):
        how = stand_in.conversation
        if how is None:
            found = [{"text": text} for text in documents_in(stand_in.view, path, name)]
        else:
            found = [as_record(messages, how) for messages in conversations_in(path, name)]
        for number, fields in enumerate(found):
            documents.append({"id": f"{name}#{number}", **fields})
            size += len(text_of(documents[-1]).encode())
        if size >= stand_in.max_bytes:
            break
    if not documents:
        raise DataError(
            f"this Python installation has no text for {stand_in.view} of {', '.join(stand_in.where)}: install constraints.txt."
        )
    for later in stand_in.followed_by:
        documents += collect(later)
    return documents


def _files(stand_in: StandIn) -> Iterator[tuple[Path, str]]:
    """The matching files with their dotted names, ordered by the digests of the names."""
    without = [pattern.split(":", 1) for pattern in stand_in.without]
    excluded = {path for folder, glob in without for path in roots()[folder].glob(glob)}
    found: dict[str, Path] = {}
    for pattern in stand_in.where:
        folder, glob = pattern.split(":", 1)
        root = roots()[folder]
        for path in sorted(set(root.glob(glob)) - excluded):
            relative = path.relative_to(root)
            folder = relative.parts[0]
            package = canonicalize_name(folder.removesuffix(DIST_INFO).rpartition("-")[0])
            if folder.endswith(DIST_INFO) and required_packages() and package not in required_packages():
                continue  # a tool, or an extra
            if path.is_file() and not {"tests", "test", "site-packages", "__pycache__"} & set(relative.parts):
                found[".".join(relative.with_suffix("").parts)] = path
    for name in sorted(found, key=lambda name: digest_of_bytes(name.encode())):
        yield found[name], name


def documents_in(view: View, path: Path, name: str) -> Iterator[str]:
    """The documents of a view in a file, cut at blank lines. An unreadable file has none. `name`: dotted name of the module."""
    for document in _read(path, lambda text: texts_of(view, text, name)):
        piece = ""
        for paragraph in [*re.split(r"\n\s*\n", document), None]:
            if paragraph is None or (piece and len(piece) + len(paragraph) > MAX_PIECE_CHARACTERS):
                if len(piece.split()) >= MIN_DOCUMENT_WORDS:
                    yield piece
                piece = ""
            piece = f"{piece}\n\n{paragraph}" if piece else paragraph or ""


def _read(path: Path, view: Callable[[str], Iterator[T]]) -> list[T]:
    try:
        with warnings.catch_warnings(action="ignore"):  # invalid escapes in files of other projects
            return list(view(path.read_text(encoding="utf-8")))
    except (SyntaxError, ValueError):  # includes UnicodeDecodeError
        return []


def texts_of(view: View, text: str, name: str) -> Iterator[str]:
    """The texts of a view: source code, docstrings, comments of at least three lines, questions and answers, doctests, the text of a file
    (of METADATA the README), or the topics of `pydoc_data/topics.py`.
    """
    match view:
        case "code":
            yield text
        case "text":
            yield text.partition("\n\n")[2] if text.startswith("Metadata-Version:") else text
        case "comments":
            for block in re.findall(r"(?m)(?:^[ \t]*#(?!!).*\n){3,}", text):
                yield "\n".join(line.strip().lstrip("#").strip() for line in block.splitlines())
        case "docstrings":
            yield from (docstring for _, _, docstring in documented(text, name))
        case "questions":
            for dotted, node, docstring in documented(text, name):
                if isinstance(node, ast.Module):
                    continue
                summary, _, rest = docstring.partition("\n\n")
                kind = "class" if isinstance(node, ast.ClassDef) else "function"
                yield f"Question: What is the {kind} {dotted} for?\n\nAnswer: {' '.join(summary.split())}\n\n{rest}".strip()
        case "doctests":
            for dotted, _, docstring in documented(text, name):
                examples = re.findall(r"(?m)^>>> .*(?:\n(?!>>>|\s*$).*)*", docstring)
                if steps := "\n\n".join(f"Problem: what does Python answer?\n{example}" for example in examples):
                    yield f"Exercises on {dotted}\n\n{steps}"
        case "topics":
            for node in ast.parse(text).body:
                if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
                    yield from (str(ast.literal_eval(value)) for value in node.value.values)
        case _:
            assert_never(view)


def documented(text: str, name: str) -> Iterator[tuple[str, Documented, str]]:
    """Every module, class and function with a docstring: dotted name, node, cleaned docstring."""
    stack: list[tuple[str, ast.AST]] = [(name, ast.parse(text))]
    while stack:
        dotted, node = stack.pop()
        if isinstance(node, Documented):
            docstring = ast.get_docstring(node, clean=False)
            if docstring:
                yield dotted, node, inspect.cleandoc(docstring)
            named = [child for child in node.body if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)]
            stack.extend((f"{dotted}.{child.name}", child) for child in reversed(named))


def conversations_in(path: Path, name: str) -> Iterator[list[Message]]:
    """The conversations about the docstrings of a file. An unreadable file has none. `name`: dotted name of the module."""

    def turns(text: str) -> Iterator[tuple[Message, Message]]:
        for dotted, node, docstring in documented(text, name):
            answer = " ".join(docstring.partition("\n\n")[0].split())
            if isinstance(node, ast.Module) or len(answer.split()) < MIN_WORDS:
                continue
            arguments = "" if isinstance(node, ast.ClassDef) else f"({ast.unparse(node.args)})"
            asked = ASKED[_draw(dotted) % len(ASKED)]
            question = asked.format(name=dotted.removeprefix(f"{name}."), module=name, arguments=arguments)
            yield Message(role="user", content=question), Message(role="assistant", content=answer)

    pending = iter(_read(path, turns))
    for question, answer in pending:
        messages = [question, answer]
        if _draw(question["content"]) % TURNS_ONE_IN == 0 and (more := next(pending, None)):
            messages += more
        if _draw(answer["content"]) % SYSTEM_ONE_IN == 0:
            messages.insert(0, Message(role="system", content=SYSTEM.format(module=name)))
        if sum(len(message["content"]) for message in messages) <= MAX_CHARACTERS:
            yield messages


def _draw(text: str) -> int:
    return int(digest_of_bytes(text.encode())[:8], 16)


def as_record(messages: Sequence[Message], how: Conversation) -> dict[str, Any]:
    """The conversation in the layout of a source, without messages that the layout cannot hold."""
    turns = [message for message in messages if message["role"] != "system"]
    system = next((message["content"] for message in messages if message["role"] == "system"), None)
    names: dict[str, str] = {role: name for name, role in reversed(how.roles.items())}
    record: dict[str, Any] = {} if how.system is None else {how.system: system}
    if how.answer is not None:
        answer = turns[-1 if how.messages else 1]["content"]
        turns = turns[:-1] if how.messages else turns[:1]
        if how.answer.content is None:
            record[how.answer.key] = answer
        elif how.answer.best_by is None:
            record[how.answer.key] = [{how.answer.content: text} for text in (answer, WORSE)]
        else:
            rated = ((WORSE, 0.25), (answer, 1.0), (WORSE, 0.5))
            record[how.answer.key] = [{how.answer.content: text, how.answer.best_by: rating} for text, rating in rated]
    if how.prompt is not None:
        record[how.prompt] = turns[0]["content"]
    if how.context is not None:
        record[how.context] = None
    if how.messages is not None:
        if how.system is None and system is not None and "system" in names:
            turns = [Message(role="system", content=system), *turns]
        record[how.messages] = [{how.role: names[message["role"]], how.content: message["content"]} for message in turns]
    return record


def text_of(document: Mapping[str, Any]) -> str:
    """All text in a document except its id."""

    def strings(value: Any) -> Iterator[str]:
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping | list):
            for part in value.values() if isinstance(value, Mapping) else value:  # pyright: ignore[reportUnknownVariableType]
                yield from strings(part)

    return "\n".join(text for key, value in document.items() if key != "id" for text in strings(value))


def is_new(text: str, seen: set[int]) -> bool:
    """Whether a text shares at most four, and at most a quarter, of its 13-word shingles with `seen`, which a new text joins."""
    words = re.findall(r"\w+", text.lower())
    shingles = {hash(tuple(words[start : start + SHINGLE_WORDS])) for start in range(max(1, len(words) - SHINGLE_WORDS + 1))}
    if len(shingles & seen) > min(MAX_SHARED_SHINGLES, MAX_SHARED_PART * len(shingles)):
        return False
    seen |= shingles
    return True


def write_stand_ins(collected: Mapping[str, list[dict[str, Any]]], sources: Path) -> dict[str, int]:
    """Write the file of each component without near duplicates, and the record last. Return component → documents."""
    seen = set[int]()
    record = read_json(sources / RECORD_NAME) if (sources / RECORD_NAME).exists() else {"documents": {}}
    for component in sorted(set(record["documents"]) - set(collected)):
        path = sources / component / FILE_NAME
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            is_new(text_of(json.loads(line)), seen)
    written: dict[str, int] = {}
    for component, documents in sorted(collected.items()):
        kept = [document for document in documents if is_new(text_of(document), seen)]
        lines = "".join(json.dumps(document, ensure_ascii=False) + "\n" for document in kept)
        write_atomically(sources / component / FILE_NAME, lines.encode())
        written[component] = len(kept)
    packages = {distribution.name: distribution.version for distribution in importlib.metadata.distributions()}
    documents = {**record["documents"], **written}
    write_json(sources / RECORD_NAME, {"python": platform.python_version(), "packages": packages, "documents": documents})
    return written


class WordProblem(NamedTuple):
    """A synthetic item. `solution` shows the work with calculator marks, as in GSM8K, and ends with the answer."""

    id: str
    question: str
    solution: str
    answer: int


def word_problems() -> Iterator[WordProblem]:
    """`NUM_ITEMS` distinct items, the same in every call."""
    random = Random(BENCHMARK)
    seen = set[str]()
    while len(seen) < NUM_ITEMS:
        seller, helper = random.sample(NAMES, 2)
        thing, place, first, last = random.choice(THINGS), random.choice(PLACES), *random.sample(DAYS, 2)
        made = random.randint(23, 97)
        broken = random.randint(2, 19)
        days = random.randint(3, 12)
        price = random.randint(2, 29)
        left, total, earned = made - broken, (made - broken) * days, (made - broken) * days * price
        question = (
            f"On {first} {seller} packs {made} {thing} for {place}, but {helper} drops {broken} of them on the way. The same happens every "
            f"day for {days} days in a row, until {last}. Each of the {thing} that arrive whole is sold for ${price}. How many dollars "
            f"does {seller} take home from {place} in all?"
        )
        solution = (
            f"{made} - {broken} = <<{made}-{broken}={left}>>{left} {thing} arrive whole each day.\n"
            f"In {days} days these are {left} * {days} = <<{left}*{days}={total}>>{total} {thing}.\n"
            f"They bring {total} * {price} = $<<{total}*{price}={earned}>>{earned}.\n#### {earned}"
        )
        if question not in seen:
            yield WordProblem(f"{BENCHMARK}-{len(seen):03d}", question, solution, earned)
            seen.add(question)
