"""Findings of reading: documents, faults and omitted documents, with counts, samples and messages."""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast, get_args

from pydantic import Field

from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.wording import name_some, plural

if TYPE_CHECKING:
    from phasewise.tasks.data.conversation import Conversation
    from phasewise.tasks.data.source import Piece, Source

NOT_AN_OBJECT = object()  # result of `reach` if a part of a key is not an object
MAX_EXPANSION = 200
FREE_EXPANSION_BYTES = 100 * 2**20
MAX_DOCUMENT_BYTES = 32 * 2**20
MAX_SAMPLE_CHARACTERS = 200
MAX_SAMPLES = 20  # for each reason
MAX_NAMED = 5  # files in a message
QUARANTINE_NAME = "quarantine.jsonl"
Reason = Literal[
    "broken JSON", "not UTF-8", "missing key", "wrong type", "half a surrogate pair", "truncated", "too long", "unknown role",
    "two system texts", "call of a tool", "part that is not text", "weight is not 0 or 1", "weight 0 without marks around the answer",
    "field of a message that nothing reads", "special token in a message", "refused by the chat template", "expands too much",
    "unreadable", "other format", "broken link", "outside the root", "no regular file", "name not readable",
]  # fmt: skip
NoText = Literal["empty file", "empty text", "empty content", "no answer", "no messages"]
"""Reasons to leave out a file, a document or a conversation without text. They are counted and are not faults."""


class Record(NamedTuple):
    """A document."""

    text: str  # the original text. For a conversation the normalised text of the chat template.
    where: str  # `byte 1234` in JSON lines, `row 5` in a table, both from 0, or `file`
    spans: tuple[tuple[int, int], ...] | None = None  # characters `[start, stop)` of a conversation's trained answers
    beside: tuple[str, ...] = ()  # unread fields with text
    unread: tuple[str, ...] = ()  # unread fields that may belong to the conversation


class Fault(NamedTuple):
    """An unusable document or, with `whole_file`, the unusable rest of a file. `sample` is its start or the error of a library."""

    reason: Reason
    where: str
    sample: str
    whole_file: bool = False


class LeftOut(NamedTuple):
    """A well-formed document or, with `whole_file`, a file that is not used."""

    reason: str
    where: str
    whole_file: bool = False


Finding = Record | Fault | LeftOut
Sift = Callable[[str, str, Mapping[str, object]], Record | LeftOut]
"""The text, place and fields of a document → the record, or the reason against it."""


class Unrendered(NamedTuple):
    """A conversation before rendering. `messages`: `conversation.Message` each. `line`: their encoding for the rendering process."""

    messages: Sequence[Any]
    line: bytes
    where: str
    record: Mapping[str, object]


Taken = Finding | Unrendered


class FileFault(Exception):
    """A fault that ends the reading of a file. Earlier documents are kept."""

    def __init__(self, reason: Reason | Literal["empty file"], found: str):
        super().__init__(found)
        self.reason: Reason | Literal["empty file"] = reason


def reach(document: object, key: str) -> object:
    """The value under a key with dots, or `None`, or `NOT_AN_OBJECT`. A field whose own name has the dots takes precedence."""
    if not isinstance(document, Mapping):
        return NOT_AN_OBJECT
    fields = cast("Mapping[str, object]", document)
    if key in fields or "." not in key:
        return fields.get(key)
    value: object = fields
    for name in key.split("."):
        if value is None:
            return None
        if not isinstance(value, Mapping):
            return NOT_AN_OBJECT
        value = value.get(name)
    return value


def is_there(document: Mapping[str, object], key: str) -> bool:
    """Whether a document has the field. Null counts, also for an outer object of a key with dots."""
    outer, _, name = key.rpartition(".")
    if key in document or not outer:
        return key in document
    holder = reach(document, outer)
    return is_there(document, outer) if holder is None else isinstance(holder, Mapping) and name in holder


def unread_fields(document: Mapping[str, object], read: Collection[str]) -> Iterator[tuple[str, object]]:
    """The fields that no key in `read` selects. If a key selects a field of an object, the other fields of this object."""
    dotted = [key for key in read if "." in key]
    for name, value in document.items():
        if name in read:
            continue
        inner = [key.removeprefix(f"{name}.") for key in dotted if key.startswith(f"{name}.")]
        if inner and isinstance(value, Mapping):
            others = unread_fields(cast("Mapping[str, object]", value), inner)
            yield from ((f"{name}.{other}", found) for other, found in others)
        else:
            yield name, value


def texts_in(value: object, *, with_names: bool = True) -> Iterator[str]:
    """Every text in a nested value, optionally with the names of fields."""
    waiting: list[object] = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, list):
            waiting += cast("list[object]", one)
        elif isinstance(one, Mapping):
            fields = cast("Mapping[str, object]", one)
            waiting += [*fields, *fields.values()] if with_names else fields.values()


def has_text(value: object) -> bool:
    """Whether a nested value has text other than white space. Names of fields do not count."""
    return any(text.strip() for text in texts_in(value, with_names=False))


def check_expansion(unpacked_bytes: int, packed_bytes: int) -> None:
    """Raise FileFault for a decompression bomb. Text rarely packs better than 20 to 1, gzip reaches 1,000 to 1, Zstandard 30,000 to 1."""
    if unpacked_bytes > FREE_EXPANSION_BYTES and unpacked_bytes > MAX_EXPANSION * packed_bytes:
        raise FileFault(
            "expands too much", f"{packed_bytes} bytes unfold into {unpacked_bytes} and more, at most {MAX_EXPANSION} of one are taken"
        )


def sample_of(raw: bytes) -> str:
    """The start of a document, for any bytes."""
    return raw[: 4 * MAX_SAMPLE_CHARACTERS].decode(errors="replace")[:MAX_SAMPLE_CHARACTERS]


def reason_against(raw: bytes) -> Reason:
    """The reason why bytes do not decode. Some writers encode half of a surrogate pair as a character."""
    try:
        raw.decode(errors="surrogatepass")
    except UnicodeDecodeError:
        return "not UTF-8"
    return "half a surrogate pair"


class Sample(Frozen):
    """A line of the quarantine file."""

    component: str
    file: str
    where: str
    reason: Reason
    sample: str


class Tally(Frozen):
    """Counts of the findings of some pieces. The sum over all pieces, in any order, is the tally of a component."""

    files: int = Field(default=0, ge=0)  # a file counts at its first piece
    documents: int = Field(default=0, ge=0)  # all documents: taken, left out, and unusable
    bad_documents: dict[Reason, int] = Field(default_factory=dict)  # unusable documents by reason
    bad_files: dict[str, Reason] = Field(default_factory=dict)  # files with an unusable rest, and the reason
    left_out: dict[str, int] = Field(default_factory=dict)  # well-formed documents that are not used, by reason
    empty_files: tuple[str, ...] = ()  # files without documents
    beside: dict[str, int] = Field(default_factory=dict)  # field → number of taken documents with text in this unread field
    unread: dict[str, int] = Field(default_factory=dict)  # `beside` for fields that may belong to a conversation
    samples: tuple[Sample, ...] = ()  # the first samples of each reason

    def __add__(self, other: "Tally") -> "Tally":
        files = sorted([*self.bad_files.items(), *other.bad_files.items()], reverse=True)  # the first of two reasons stays, in any order
        return Tally(
            files=self.files + other.files,
            documents=self.documents + other.documents,
            bad_documents=_sum(self.bad_documents, other.bad_documents),
            bad_files=dict(reversed(dict(files).items())),
            left_out=_sum(self.left_out, other.left_out),
            empty_files=tuple(sorted({*self.empty_files, *other.empty_files})),
            beside=_sum(self.beside, other.beside),
            unread=_sum(self.unread, other.unread),
            samples=_first(self.samples + other.samples),
        )

    @property
    def bad_fraction(self) -> float:
        """Share of the unusable documents, or of the files with faults if it is larger."""
        return max(sum(self.bad_documents.values()) / max(1, self.documents), len(self.bad_files) / max(1, self.files))

    @property
    def empty(self) -> dict[str, int]:
        """Documents, and members of archives, without text, by reason."""
        return {reason: self.left_out[reason] for reason in get_args(NoText) if reason in self.left_out}

    @property
    def empty_fraction(self) -> float:
        """Share of the documents without text, or of the files without text if it is larger."""
        return max(sum(self.empty.values()) / max(1, self.documents), len(self.empty_files) / max(1, self.files))

    @property
    def reasons(self) -> dict[Reason, str]:
        """Reason → number of unusable documents and files in words, such as `3 documents and 1 file`."""
        files = Counter(self.bad_files.values())
        found: dict[Reason, str] = {}
        for reason in get_args(Reason):
            counts = {"document": self.bad_documents.get(reason, 0), "file": files[reason]}
            if any(counts.values()):
                found[reason] = " and ".join(plural(number, noun) for noun, number in counts.items() if number)
        return found


def _sum(some: Mapping, others: Mapping) -> dict:
    return {name: some.get(name, 0) + others.get(name, 0) for name in sorted({*some, *others})}


def _first(samples: Iterable[Sample]) -> tuple[Sample, ...]:
    """The first samples of each reason. The length of the place puts `byte 90` before `byte 100`."""
    ordered = sorted(samples, key=lambda one: (one.reason, one.file, len(one.where), one.where, one.sample))
    return tuple(sample for _, group in groupby(ordered, key=lambda one: one.reason) for sample in islice(group, MAX_SAMPLES))


@dataclass
class Counting:
    """Counts the findings of a piece and passes the records on."""

    component: str
    piece: "Piece"
    _records: int = 0
    _bad_documents: Counter[Reason] = field(default_factory=Counter)
    _file_reason: Reason | None = None
    _left_out: Counter[str] = field(default_factory=Counter)
    _beside: Counter[tuple[str, ...]] = field(default_factory=Counter)
    _unread: Counter[tuple[str, ...]] = field(default_factory=Counter)
    _is_empty: bool = False
    _samples: list[Sample] = field(default_factory=list)

    def records(self, findings: Iterable[Finding]) -> Iterator[Record]:
        """The records among the findings, in order."""
        for finding in findings:
            if isinstance(finding, Record):
                self._records += 1
                if finding.beside:
                    self._beside[finding.beside] += 1
                if finding.unread:
                    self._unread[finding.unread] += 1
                yield finding
            elif isinstance(finding, LeftOut):
                if finding.whole_file:
                    self._is_empty = True
                else:
                    self._left_out[finding.reason] += 1
            else:
                reason = finding.reason
                if finding.whole_file and self._file_reason != "other format":  # this reason of one member decides for an archive
                    self._file_reason = reason
                else:
                    self._bad_documents[reason] += 1
                if finding.whole_file or self._bad_documents[reason] <= MAX_SAMPLES:
                    sample = Sample(
                        component=self.component, file=self.piece.name, where=finding.where, reason=reason, sample=finding.sample
                    )
                    self._samples.append(sample)

    @property
    def tally(self) -> Tally:
        """The current counts."""
        by_field: list[dict[str, int]] = []
        for counts in (self._beside, self._unread):
            fields: Counter[str] = Counter()
            for names, count in counts.items():
                fields.update(dict.fromkeys(names, count))
            by_field.append(dict(sorted(fields.items())))
        return Tally(
            files=int(not self.piece.start),
            documents=self._records + self._left_out.total() + self._bad_documents.total(),
            bad_documents=dict(sorted(self._bad_documents.items())),
            bad_files={} if self._file_reason is None else {self.piece.name: self._file_reason},
            left_out=dict(sorted(self._left_out.items())),
            empty_files=(self.piece.name,) if self._is_empty else (),
            beside=by_field[0],
            unread=by_field[1],
            samples=_first(self._samples),
        )


@cache
def remedies() -> dict[str, str]:
    """Reason → remedy, for every `Reason` and `NoText`."""
    from phasewise.trainer.base.storage import read_yaml  # not for the process that reads tables

    return read_yaml(Path(__file__).with_name("remedies.yaml"))


def check_readable(component: str, source: "Source", tally: Tally, folder: Path) -> None:
    """Raise DataError for files of another format, an unread column, or more unusable or empty documents than the source allows."""
    quarantine_path = folder / QUARANTINE_NAME
    total = f"{plural(tally.documents, 'document')} in {plural(tally.files, 'file')} of {source.url}"
    if unread := [name for name, reason in tally.bad_files.items() if reason == "other format"]:  # no limit allows them
        samples = {sample.file: sample.sample for sample in tally.samples if sample.reason == "other format"}
        named = "; ".join(f"{name} ({samples[name]})" if name in samples else name for name in unread[:MAX_NAMED])
        raise DataError(
            f"component {component}: every file must be {source.format}, or packed {source.format}; "
            f"{plural(len(unread), 'file')} of {source.url} could not be read as that: {named}. "
            f"Exclude them by a glob in `exclude`, convert them, or correct the format. Samples are in {quarantine_path}."
        )
    if source.conversation and tally.unread:
        raise DataError(refusal_of_columns(component, source.conversation, tally))
    if tally.bad_fraction > source.max_bad_fraction:
        parts: list[str] = []
        for reason, count in tally.reasons.items():
            sample = next((one for one in tally.samples if one.reason == reason), None)
            if sample is None:
                example = name_some((name for name, found in sorted(tally.bad_files.items()) if found == reason), 1)
            else:
                example = f"{sample.file}, {sample.where} ({sample.sample[:80]!r})"
            parts.append(f"{reason}, {count}, such as {example}: {remedies()[reason]}")
        raise DataError(
            f"component {component}: at most {source.max_bad_fraction:.4%} of its documents and of its files may be unusable, found "
            f"{tally.bad_fraction:.4%} among {total}. {'. '.join(parts)}. Samples of each reason are in {quarantine_path}."
        )
    if tally.empty_fraction <= source.max_empty_fraction:
        return
    counts = {reason: plural(count, "document") for reason, count in tally.empty.items()}
    if tally.empty_files:
        counts["empty file"] = f"{plural(len(tally.empty_files), 'file')}, such as {', '.join(tally.empty_files[:MAX_NAMED])}"
    found = ". ".join(f"{reason}, {count}: {remedies()[reason]}" for reason, count in counts.items())
    raise DataError(
        f"component {component}: at most {source.max_empty_fraction:.4%} of its documents and of its files may be without text, found "
        f"{tally.empty_fraction:.4%} among {total}. {found}."
    )


def refusal_of_columns(component: str, how: "Conversation", tally: Tally) -> str:
    """The message about unread fields that may belong to the conversations."""
    taken = tally.documents - sum(tally.left_out.values()) - sum(tally.bad_documents.values())
    named = ", ".join(f"{name} ({count:,} of {taken:,})" for name, count in tally.unread.items())
    options = "context, system, messages or answer" if how.prompt else "messages, system or answer"
    leave_out = json.dumps([*how.leave_out, *tally.unread], ensure_ascii=False)
    return (
        f"component {component}: every text of a record must be read or left out by name, and its conversations do not read {named}. Name "
        f"a column in the conversation ({options}), or leave it out: leave_out={leave_out}."
    )


def left_out_of(tally: Tally) -> str:
    """The unused documents in words: `3 of 400 documents (2 for empty text, 1 for filter words), 1 of 2 files without documents`."""
    parts: list[str] = []
    if tally.left_out:
        reasons = ", ".join(f"{count:,} for {reason}" for reason, count in sorted(tally.left_out.items()))
        parts.append(f"{sum(tally.left_out.values()):,} of {plural(tally.documents, 'document')} ({reasons})")
    if tally.empty_files:
        parts.append(f"{len(tally.empty_files):,} of {plural(tally.files, 'file')} without documents ({name_some(tally.empty_files, 3)})")
    return ", ".join(parts)
