"""What cannot be used, counted by reason and sampled: nothing is dropped without a word."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby, islice
from pathlib import Path
from typing import get_args

from pydantic import Field

from phasewise.tasks.data.conversation import Conversation
from phasewise.tasks.data.findings import Fault, Finding, LeftOut, NoText, Reason, Record
from phasewise.tasks.data.source import Piece, Source
from phasewise.trainer.base.frozen import Frozen
from phasewise.trainer.base.storage import write_atomically
from phasewise.trainer.base.wording import name_some

MAX_SAMPLES = 20  # of one reason
MAX_NAMED = 5  # files in a message
ALLOW = "or allow for some by max_bad_fraction"
REMEDIES: Mapping[Reason, str] = {
    "broken JSON": f"repair or exclude the file, {ALLOW}",
    "not UTF-8": f"convert the file to UTF-8 or exclude it, {ALLOW}",
    "missing key": "name the field as the file has it: in text_key, or in the conversation",
    "wrong type": "name a field that holds text in text_key, or correct the layout of the conversation",
    "half a surrogate pair": f"write the file again with whole characters or exclude it, {ALLOW}",
    "truncated": f"fetch the file again or exclude it, {ALLOW}",
    "too long": f"cut it into shorter documents, {ALLOW}",
    "unknown role": "name the role in conversation.roles",
    "two system texts": f"take `system` out of the conversation or a message out of the records, {ALLOW}",
    "call of a tool": f"take such conversations out of the file, {ALLOW}: no chat template is given calls of tools here",
    "part that is not text": f"take such conversations out of the file, {ALLOW}: only text is trained on",
    "weight is not 0 or 1": f"write 0 or 1, {ALLOW}",
    "weight 0 without marks around the answer": "put {% generation %} … {% endgeneration %} around each answer in the chat template",
    "field of a message that nothing reads": "a field (reasoning_content, thinking, reasoning, train, training) that the chat template "
    "does not read and that is to be left out must be named in the source's conversation.leave_out",
    "special token in a message": f"take the token out of the text, {ALLOW}",
    "refused by the chat template": f"put the roles in an order that the template takes or name another template, {ALLOW}",
    "expands too much": f"unpack the file and look into it, or exclude it, {ALLOW}",
    "unreadable": f"fetch the file again or exclude it, {ALLOW}",
    "other format": "convert or exclude the file, or correct the format",
    "broken link": f"mend the link or exclude it, {ALLOW}",
    "outside the root": "the link leads out of the source's folder: name in `url` the folder that holds the link and the file, or copy the "
    "file itself, as cp -L does (links from a snapshot of a Hub cache to its blobs are followed)",
    "no regular file": f"exclude it, {ALLOW}: a pipe or a device is not read",
    "name not readable": f"rename the file, {ALLOW}",
}
"""What to do about each reason."""
ALLOW_EMPTY = "or allow for more by max_empty_fraction"
EMPTY_REMEDIES: Mapping[NoText, str] = {
    "empty file": f"fetch the file again or exclude it, {ALLOW_EMPTY}",
    "empty text": f"look whether text_key names the right field, {ALLOW_EMPTY}",
    "empty content": f"fill or delete the empty messages, {ALLOW_EMPTY}",
    "no answer": f"look whether `answer`, or a role, names what the assistant says, {ALLOW_EMPTY}",
    "no messages": f"look whether `messages` names the right column, {ALLOW_EMPTY}",
}


class Sample(Frozen):
    """A line of the quarantine file."""

    component: str
    file: str
    where: str
    reason: Reason
    sample: str

    @property
    def order(self) -> tuple[Reason, str, int, str, str]:
        """By reason, file and place: `byte 90` before `byte 100`."""
        return self.reason, self.file, len(self.where), self.where, self.sample


class Tally(Frozen):
    """What became of the documents of some pieces. Tallies of pieces add up to the component's, in any order.

    Attributes:
        files: counted at their first piece.
        documents: all that were seen: taken, left out, and those that can't be used.
        bad_documents: those that can't be used, by reason.
        bad_files: those of which the rest can't be used, and why.
        left_out: documents that read well and are not wanted, by reason.
        empty_files: files that hold no document.
        beside: of the documents that were taken those with a text in a field that is not read, by field.
        unread: the same of fields that may be a part of a conversation.
        samples: the first few of each reason.
    """

    files: int = Field(default=0, ge=0)
    documents: int = Field(default=0, ge=0)
    bad_documents: dict[Reason, int] = Field(default_factory=dict)
    bad_files: dict[str, Reason] = Field(default_factory=dict)
    left_out: dict[str, int] = Field(default_factory=dict)
    empty_files: tuple[str, ...] = ()
    beside: dict[str, int] = Field(default_factory=dict)
    unread: dict[str, int] = Field(default_factory=dict)
    samples: tuple[Sample, ...] = ()

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            files=self.files + other.files,
            documents=self.documents + other.documents,
            bad_documents=_sum(self.bad_documents, other.bad_documents),
            bad_files=_first_reasons(self.bad_files, other.bad_files),
            left_out=_sum(self.left_out, other.left_out),
            empty_files=tuple(sorted({*self.empty_files, *other.empty_files})),
            beside=_sum(self.beside, other.beside),
            unread=_sum(self.unread, other.unread),
            samples=_first(self.samples + other.samples),
        )

    @property
    def bad_fraction(self) -> float:
        """The share of the documents, or that of the files if it is greater, that can't be used."""
        documents = sum(self.bad_documents.values()) / max(1, self.documents)
        return max(documents, len(self.bad_files) / max(1, self.files))

    @property
    def empty_fraction(self) -> float:
        """The share of the documents, or that of the files if it is greater, that hold no text."""
        documents = sum(self.empty.values()) / max(1, self.documents)
        return max(documents, len(self.empty_files) / max(1, self.files))

    @property
    def empty(self) -> dict[str, int]:
        """The documents, and members of archives, without text, by reason."""
        return {reason: self.left_out[reason] for reason in get_args(NoText) if reason in self.left_out}

    @property
    def unread_files(self) -> tuple[str, ...]:
        """Those that the source's format cannot read at all: no share of them is small enough to be passed over."""
        return tuple(name for name, reason in self.bad_files.items() if reason == "other format")

    @property
    def reasons(self) -> dict[Reason, str]:
        """By reason how much can't be used: `3 documents`, `1 file`."""
        files = Counter(self.bad_files.values())
        found: dict[Reason, str] = {}
        for reason in get_args(Reason):
            counts = {"document": self.bad_documents.get(reason, 0), "file": files[reason]}
            if any(counts.values()):
                found[reason] = " and ".join(_count(number, noun) for noun, number in counts.items() if number)
        return found


class Counting:
    """Counts the findings of one piece while its records go on."""

    def __init__(self, component: str, piece: Piece):
        self._component, self._piece = component, piece
        self._records = 0
        self._bad_documents: Counter[Reason] = Counter()
        self._bad_files: dict[str, Reason] = {}
        self._left_out: Counter[str] = Counter()
        self._beside: Counter[tuple[str, ...]] = Counter()
        self._unread: Counter[tuple[str, ...]] = Counter()
        self._is_empty = False
        self._samples: list[Sample] = []

    def records(self, findings: Iterable[Finding]) -> Iterator[Record]:
        """The records among the findings, in order; the rest is counted and sampled."""
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
                self._see(finding)

    @property
    def tally(self) -> Tally:
        """What has been counted so far."""
        return Tally(
            files=int(not self._piece.start),
            documents=self._records + self._left_out.total() + self._bad_documents.total(),
            bad_documents=_sum(self._bad_documents, {}),
            bad_files=self._bad_files,
            left_out=_sum(self._left_out, {}),
            empty_files=(self._piece.name,) if self._is_empty else (),
            beside=_by_name(self._beside),
            unread=_by_name(self._unread),
            samples=_first(self._samples),
        )

    def _see(self, fault: Fault) -> None:
        if fault.whole_file and self._bad_files.get(self._piece.name) != "other format":  # of an archive's members this one decides
            self._bad_files[self._piece.name] = fault.reason
        else:
            self._bad_documents[fault.reason] += 1
        if fault.whole_file or self._bad_documents[fault.reason] <= MAX_SAMPLES:
            self._samples.append(
                Sample(
                    component=self._component, file=self._piece.name, where=fault.where, reason=fault.reason, sample=fault.sample
                )
            )  # fmt: skip


def refusal(component: str, source: Source, tally: Tally, quarantine_path: str | Path) -> str:
    """What to say when more can't be used than the source allows: each reason with an example and its remedy."""
    found = ". ".join(
        f"{reason}, {count}, such as {_example(tally, reason)}: {REMEDIES[reason]}" for reason, count in tally.reasons.items()
    )  # fmt: skip
    return (
        f"component {component}: at most {source.max_bad_fraction:.4%} of its documents and of its files may be unusable, found "
        f"{tally.bad_fraction:.4%} among {_of(tally)} of {source.url}. {found}. Samples of each reason are in {quarantine_path}."
    )


def refusal_of_empty(component: str, source: Source, tally: Tally) -> str:
    """What to say when more holds no text than the source allows."""
    counts = {reason: _count(count, "document") for reason, count in tally.empty.items()}
    if tally.empty_files:
        counts["empty file"] = f"{_count(len(tally.empty_files), 'file')}, such as {', '.join(tally.empty_files[:MAX_NAMED])}"
    found = ". ".join(f"{reason}, {count}: {EMPTY_REMEDIES[reason]}" for reason, count in counts.items())  # pyright: ignore[reportArgumentType]  # `empty` has these alone
    return (
        f"component {component}: at most {source.max_empty_fraction:.4%} of its documents and of its files may be without text, found "
        f"{tally.empty_fraction:.4%} among {_of(tally)} of {source.url}. {found}."
    )


def refusal_of_columns(component: str, how: Conversation, tally: Tally) -> str:
    """What to say of fields that nothing reads, and that may be a part of the conversations."""
    taken = tally.documents - sum(tally.left_out.values()) - sum(tally.bad_documents.values())
    named = ", ".join(f"{name} ({count:,} of {taken:,})" for name, count in tally.unread.items())
    options = "context, system, messages or answer" if how.prompt else "messages, system or answer"
    leave_out = json.dumps([*how.leave_out, *tally.unread], ensure_ascii=False)
    return (
        f"component {component}: every text of a record must be read or left out by name, and its conversations do not read {named}. Name "
        f"a column in the conversation ({options}), or leave it out: leave_out={leave_out}."
    )


def left_out_of(tally: Tally) -> str:
    """What read well and was not taken: `3 of 400 documents (2 for empty text, 1 for filter words), 1 of 2 files without documents`."""
    reasons = ", ".join(f"{count:,} for {reason}" for reason, count in sorted(tally.left_out.items()))
    documents = f"{sum(tally.left_out.values()):,} of {_count(tally.documents, 'document')} ({reasons})"
    files = f"{len(tally.empty_files):,} of {_count(tally.files, 'file')} without documents ({name_some(tally.empty_files, 3)})"
    return ", ".join([documents] * bool(reasons) + [files] * bool(tally.empty_files))


def beside_of(tally: Tally) -> str:
    """The fields with text that are not read, each with the share of the documents that have one."""
    taken = max(1, tally.documents - sum(tally.left_out.values()) - sum(tally.bad_documents.values()))
    return ", ".join(f"{name} ({count / taken:.0%})" for name, count in tally.beside.items())


def _of(tally: Tally) -> str:
    return f"{_count(tally.documents, 'document')} in {_count(tally.files, 'file')}"


def _example(tally: Tally, reason: Reason) -> str:
    for sample in tally.samples:
        if sample.reason == reason:
            return f"{sample.file}, {sample.where} ({sample.sample[:80]!r})"
    return name_some((name for name, found in sorted(tally.bad_files.items()) if found == reason), 1)


def refusal_of_unread(component: str, source: Source, tally: Tally, quarantine_path: str | Path) -> str:
    """What to say of files that are of another format, which no limit allows."""
    what = {sample.file: sample.sample for sample in tally.samples if sample.reason == "other format"}
    named = "; ".join(f"{name} ({what[name]})" if name in what else name for name in tally.unread_files[:MAX_NAMED])
    return (
        f"component {component}: every file must be {source.format}, or packed {source.format}; "
        f"{_count(len(tally.unread_files), 'file')} of {source.url} could not be read as that: {named}. "
        f"Exclude them by a glob in `exclude`, convert them, or correct the format. Samples are in {quarantine_path}."
    )


def write_quarantine(path: str | Path, samples: Iterable[Sample]) -> None:
    """Write the samples as JSON lines, at once or not at all."""
    lines = (json.dumps(sample.model_dump(mode="json"), ensure_ascii=False) + "\n" for sample in samples)
    write_atomically(path, "".join(lines).encode())


def _first(samples: Iterable[Sample]) -> tuple[Sample, ...]:
    by_reason = groupby(sorted(samples, key=lambda sample: sample.order), key=lambda sample: sample.reason)
    return tuple(sample for _, group in by_reason for sample in islice(group, MAX_SAMPLES))


def _first_reasons(some: Mapping[str, Reason], others: Mapping[str, Reason]) -> dict[str, Reason]:
    """Files of both, by name. Of two reasons against pieces of one file the one that sorts first stays, whichever came in first."""
    both = sorted([*some.items(), *others.items()], reverse=True)
    return dict(reversed(dict(both).items()))


def _by_name(counts: Mapping[tuple[str, ...], int]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for names, count in counts.items():
        found.update(dict.fromkeys(names, count))
    return _sum(found, {})


def _sum(some: Mapping, others: Mapping) -> dict:
    return {name: some.get(name, 0) + others.get(name, 0) for name in sorted({*some, *others})}


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
