"""Small stand-ins for the record's data sets, built from the text of this Python installation: real text with no download.

Each is JSON lines under `sources/<component>/`. They are written once and then treated as any other source: a file that somebody
adds there is part of the component.
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
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Literal, NamedTuple, TypeVar

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
Named = tuple[str, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, str]
MIN_DOCUMENT_WORDS, MAX_PIECE_CHARACTERS = 25, 2500
PROJECT, DIST_INFO = "phasewise", ".dist-info"
MIN_WORDS, MAX_CHARACTERS = 4, 320
ASKED = ("What does {name} of {module} do?", "In {module}, what is {name}{arguments} for?", "Explain {name} ({module}) in a few words.")
SYSTEM = "You answer briefly from the documentation of {module}."
SYSTEM_ONE_IN, TURNS_ONE_IN = 4, 5
WORSE = "I do not know."
"""Answers of a list that are not the one to take. A source that takes them is found out."""
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


def roots() -> dict[str, Path]:
    """Where the files are: `stdlib` is the standard library, `site` the installed packages."""
    paths = sysconfig.get_paths()
    return {"stdlib": Path(paths["stdlib"]), "site": Path(paths["purelib"])}


@cache
def required_packages() -> frozenset[str]:
    """Names of what Phasewise itself needs, with all that that needs, and pip. Whatever else is installed, these packages are there.

    Empty where Phasewise is not installed: then nothing is known of what it needs.
    """
    found: set[tuple[str, str]] = set()
    ahead = [(PROJECT, "")]
    while ahead:
        name, extra = ahead.pop()
        if (name, extra) in found:
            continue
        found.add((name, extra))
        for needed in map(Requirement, _requirements(name)):
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                ahead += [(canonicalize_name(needed.name), one) for one in ("", *needed.extras)]
    names = {name for name, _ in found}
    return frozenset({*names, "pip"} if len(names) > 1 else ())


def _requirements(package: str) -> list[str]:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.requires(package) or []
    return []


def package_of(dist_info: str) -> str:
    """The package whose metadata lie in a folder `NAME-VERSION.dist-info`."""
    return canonicalize_name(dist_info.removesuffix(DIST_INFO).rpartition("-")[0])


def documents_in(view: View, path: Path, name: str) -> Iterator[str]:
    """The documents that a view finds in a file; `name` is its dotted module name. A file that does not read gives none."""
    for document in _read(path, lambda text: VIEWS[view](text, name)):
        yield from (piece for piece in pieces(document) if len(piece.split()) >= MIN_DOCUMENT_WORDS)


def _read(path: Path, view: Callable[[str], Iterator[T]]) -> list[T]:
    try:
        with warnings.catch_warnings(action="ignore"):  # old escapes in other people's files
            return list(view(path.read_text(encoding="utf-8")))
    except (SyntaxError, ValueError):  # also what is not UTF-8
        return []


def pieces(text: str) -> Iterator[str]:
    """A long text cut at blank lines into pieces of at most `MAX_PIECE_CHARACTERS` (a single paragraph may be longer)."""
    piece = ""
    for paragraph in re.split(r"\n\s*\n", text):
        if piece and len(piece) + len(paragraph) > MAX_PIECE_CHARACTERS:
            yield piece
            piece = ""
        piece = f"{piece}\n\n{paragraph}" if piece else paragraph
    if piece.strip():
        yield piece


def code(text: str, _name: str) -> Iterator[str]:
    """The source itself."""
    yield text


def plain_text(text: str, _name: str) -> Iterator[str]:
    """The text itself; of package METADATA the description, which is its README."""
    if text.startswith("Metadata-Version:"):
        text = text.partition("\n\n")[2]
    yield text


def docstrings(text: str, name: str) -> Iterator[str]:
    """What modules, classes and functions say of themselves."""
    for _, _, docstring in documented(text, name):
        yield docstring


def comments(text: str, _name: str) -> Iterator[str]:
    """Blocks of at least three comment lines, as prose."""
    for block in re.findall(r"(?m)(?:^[ \t]*#(?!!).*\n){3,}", text):
        yield "\n".join(line.strip().lstrip("#").strip() for line in block.splitlines())


def questions(text: str, name: str) -> Iterator[str]:
    """A docstring as question and answer."""
    for dotted, node, docstring in documented(text, name):
        if isinstance(node, ast.Module):
            continue
        summary, _, rest = docstring.partition("\n\n")
        kind = "class" if isinstance(node, ast.ClassDef) else "function"
        yield f"Question: What is the {kind} {dotted} for?\n\nAnswer: {' '.join(summary.split())}\n\n{rest}".strip()


def doctests(text: str, name: str) -> Iterator[str]:
    """The examples of a docstring as exercises with their results."""
    for dotted, _, docstring in documented(text, name):
        examples = re.findall(r"(?m)^>>> .*(?:\n(?!>>>|\s*$).*)*", docstring)
        steps = "\n\n".join(f"Problem: what does Python answer?\n{example}" for example in examples)
        if steps:
            yield f"Exercises on {dotted}\n\n{steps}"


def topics(text: str, _name: str) -> Iterator[str]:
    """The chapters of the language reference in `pydoc_data/topics.py`."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            yield from (str(ast.literal_eval(value)) for value in node.value.values)


VIEWS: dict[View, Callable[[str, str], Iterator[str]]] = {
    "code": code,
    "docstrings": docstrings,
    "comments": comments,
    "questions": questions,
    "doctests": doctests,
    "text": plain_text,
    "topics": topics,
}


def documented(text: str, name: str) -> Iterator[Named]:
    """Every module, class and function that has a docstring: dotted name, node, cleaned docstring."""
    stack: list[tuple[str, ast.AST]] = [(name, ast.parse(text))]
    while stack:
        dotted, node = stack.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node, clean=False)
            if docstring:
                yield dotted, node, inspect.cleandoc(docstring)
            named = [child for child in node.body if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)]
            stack.extend((f"{dotted}.{child.name}", child) for child in reversed(named))


def installed() -> dict[str, str]:
    """The installed distributions and their versions, for the record that is kept beside the stand-ins."""
    return {distribution.name: distribution.version for distribution in importlib.metadata.distributions()}


def conversations_in(path: Path, name: str) -> Iterator[list[Message]]:
    """The conversations of a file; `name` is its dotted module name. A file that does not read gives none."""
    waiting = iter(_read(path, lambda text: _turns(text, name)))
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
    assert how.answer is not None
    if how.answer.content is None:
        return answer
    if how.answer.best_by is None:
        return [{how.answer.content: text} for text in (answer, WORSE)]
    rated = ((WORSE, 0.25), (answer, 1.0), (WORSE, 0.5))
    return [{how.answer.content: text, how.answer.best_by: rating} for text, rating in rated]


def _draw(message: Message, one_in: int) -> bool:
    return int(digest_of_bytes(message["content"].encode())[:8], 16) % one_in == 0


class WordProblem(NamedTuple):
    """One item. `solution` shows the work, with calculator marks as GSM8K has them, and ends with the answer."""

    id: str
    question: str
    solution: str
    answer: int

    @property
    def text(self) -> str:
        """As OLMES writes it into a prompt."""
        return f"Question: {self.question}\nAnswer: {self.solution}"


def word_problems() -> Iterator[WordProblem]:
    """`NUM_ITEMS` of them; no two ask the same."""
    random = Random(BENCHMARK)
    seen = set[str]()
    while len(seen) < NUM_ITEMS:
        made = _word_problem(random, f"{BENCHMARK}-{len(seen):03d}")
        if made.question not in seen:
            seen.add(made.question)
            yield made


def _word_problem(random: Random, identity: str) -> WordProblem:
    seller, helper = random.sample(NAMES, 2)
    thing, place, first, last = random.choice(THINGS), random.choice(PLACES), *random.sample(DAYS, 2)
    made = random.randint(23, 97)
    broken = random.randint(2, 19)
    days = random.randint(3, 12)
    price = random.randint(2, 29)
    left, total, earned = made - broken, (made - broken) * days, (made - broken) * days * price
    question = (
        f"On {first} {seller} packs {made} {thing} for {place}, but {helper} drops {broken} of them on the way. The same happens every day "
        f"for {days} days in a row, until {last}. Each of the {thing} that arrive whole is sold for ${price}. How many dollars does "
        f"{seller} take home from {place} in all?"
    )
    solution = (
        f"{made} - {broken} = <<{made}-{broken}={left}>>{left} {thing} arrive whole each day.\n"
        f"In {days} days these are {left} * {days} = <<{left}*{days}={total}>>{total} {thing}.\n"
        f"They bring {total} * {price} = $<<{total}*{price}={earned}>>{earned}.\n#### {earned}"
    )
    return WordProblem(identity, question, solution, earned)


class StandIn(Frozen):
    """Where a component's small text comes from: a view of the files that match `where` (`site:` or `stdlib:` globs) and not `without`.

    Attributes:
        test_items: whether made-up word problems, a benchmark's test items, lie beside it in a `test.json`.
        conversation: the layout in which the questions and answers of these files are written; None writes text.
        followed_by: stand-ins whose documents come after its own, so that the text is sorted by where it is from.
    """

    view: View
    where: tuple[str, ...]
    without: tuple[str, ...] = ()
    max_bytes: int = Field(gt=0)
    test_items: bool = False
    conversation: Conversation | None = None
    followed_by: tuple["StandIn", ...] = ()


def stand_in_source(stand_in: StandIn, folder: Path) -> Source:
    """How a stand-in is read: every JSON-lines file in its folder, and the test items where it has some."""
    include = ("*.jsonl", TEST_NAME) if stand_in.test_items else ("*.jsonl",)
    return Source(
        url=folder.as_uri(), include=include, exclude=(), format="jsonl", text_key="text", conversation=stand_in.conversation
    )  # fmt: skip


def collect(stand_in: StandIn) -> list[dict[str, Any]]:
    """The documents of one stand-in: `id` (where it is from) and `text`, or what a conversation's layout has.

    Files come in an order that spreads over the packages.

    What it is followed by comes after it, document by document.

    Raises:
        DataError: this installation has none of the files, or no text in them.
    """
    documents: list[dict[str, Any]] = []
    size = 0
    for path, name in _files(stand_in):
        for number, fields in enumerate(_documents(stand_in, path, name)):
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


def _documents(stand_in: StandIn, path: Path, name: str) -> Iterator[dict[str, Any]]:
    if stand_in.conversation is None:
        yield from ({"text": text} for text in documents_in(stand_in.view, path, name))
    else:
        yield from (as_record(said, stand_in.conversation) for said in conversations_in(path, name))


def text_of(document: Mapping[str, Any]) -> str:
    """All that a document says: of a conversation what everybody says in it."""
    return "\n".join(text for key, value in document.items() if key != "id" for text in strings_of(value))


@dataclass
class NearDuplicates:
    """Finds documents that repeat earlier ones: copies would put held-out text into the training split."""

    seen: set[int] = field(default_factory=set)

    def is_new(self, text: str) -> bool:
        """Whether at most four of its 13-word shingles, and at most a quarter, are in earlier documents; if so, remember it."""
        words = re.findall(r"\w+", text.lower())
        shingles = {hash(tuple(words[at : at + SHINGLE_WORDS])) for at in range(max(1, len(words) - SHINGLE_WORDS + 1))}
        if len(shingles & self.seen) > min(MAX_SHARED_SHINGLES, MAX_SHARED_PART * len(shingles)):
            return False
        self.seen |= shingles
        return True


def write_test_items(folder: Path) -> None:
    """Write the word problems beside a stand-in, one JSON object a line as in the other files."""
    rows = (json.dumps({"id": problem.id, "text": problem.text}, ensure_ascii=False) + "\n" for problem in word_problems())
    write_atomically(folder / TEST_NAME, "".join(rows).encode())


def write_stand_ins(collected: Mapping[str, list[dict[str, Any]]], sources: Path) -> dict[str, int]:
    """Write every component's file without what repeats it or an earlier stand-in, and last the record; documents written, by name."""
    duplicates = NearDuplicates()
    record = read_json(sources / RECORD_NAME) if (sources / RECORD_NAME).exists() else {"documents": {}}
    for component in sorted(set(record["documents"]) - set(collected)):
        path = sources / component / FILE_NAME
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            duplicates.is_new(text_of(json.loads(line)))
    written: dict[str, int] = {}
    for component, documents in sorted(collected.items()):
        kept = [document for document in documents if duplicates.is_new(text_of(document))]
        lines = "".join(json.dumps(document, ensure_ascii=False) + "\n" for document in kept)
        write_atomically(sources / component / FILE_NAME, lines.encode())
        written[component] = len(kept)
    documents = {**record["documents"], **written}
    write_json(sources / RECORD_NAME, {"python": platform.python_version(), "packages": installed(), "documents": documents})
    return written


def missing_stand_ins(components: Mapping[str, StandIn], sources: Path) -> list[str]:
    """Components whose stand-in was never finished. Once the record is there, the files belong to the user."""
    if (sources / RECORD_NAME).exists():
        return [name for name in sorted(components) if not (sources / name).exists()]
    return sorted(components)


def _files(stand_in: StandIn) -> Iterator[tuple[Path, str]]:
    """Matching files with their dotted names, ordered by the digest of the name. What is installed besides changes nothing."""
    found: dict[str, Path] = {}
    for pattern in stand_in.where:
        root, glob = _split(pattern)
        excluded = [path for other in stand_in.without if _split(other)[0] == root for path in root.glob(_split(other)[1])]
        for path in sorted(set(root.glob(glob)) - set(excluded)):
            relative = path.relative_to(root)
            if _is_foreign(relative.parts[0]):
                continue
            if path.is_file() and not {"tests", "test", "site-packages", "__pycache__"} & set(relative.parts):
                found[".".join(relative.with_suffix("").parts)] = path
    for name in sorted(found, key=lambda name: digest_of_bytes(name.encode())):
        yield found[name], name


def _is_foreign(folder: str) -> bool:
    """Whether it holds the metadata of a package that Phasewise does not need: a tool beside it, or an extra."""
    return folder.endswith(DIST_INFO) and bool(required_packages()) and package_of(folder) not in required_packages()


def _split(pattern: str) -> tuple[Path, str]:
    place, _, glob = pattern.partition(":")
    return roots()[place], glob
