"""What cannot be used, counted by reason and sampled: nothing is dropped without a word."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby, islice
from pathlib import Path
from typing import get_args

from pydantic import Field

from tasks.data.formats.findings import Fault, Finding, LeftOut, Reason, Record
from tasks.data.source import Piece, Source
from trainer.base.frozen import Frozen
from trainer.base.storage import write_atomically

MAX_SAMPLES = 20  # of one reason
MAX_NAMED = 5  # files in a message


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
        samples: the first few of each reason.
    """

    files: int = Field(default=0, ge=0)
    documents: int = Field(default=0, ge=0)
    bad_documents: dict[Reason, int] = Field(default_factory=dict)
    bad_files: dict[str, Reason] = Field(default_factory=dict)
    left_out: dict[str, int] = Field(default_factory=dict)
    samples: tuple[Sample, ...] = ()

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            files=self.files + other.files,
            documents=self.documents + other.documents,
            bad_documents=_sum(self.bad_documents, other.bad_documents),
            bad_files=_first_reasons(self.bad_files, other.bad_files),
            left_out=_sum(self.left_out, other.left_out),
            samples=_first(self.samples + other.samples),
        )

    @property
    def bad_fraction(self) -> float:
        """The share of the documents, or that of the files if it is greater, that can't be used."""
        documents = sum(self.bad_documents.values()) / max(1, self.documents)
        return max(documents, len(self.bad_files) / max(1, self.files))

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
        self._samples: list[Sample] = []

    def records(self, findings: Iterable[Finding]) -> Iterator[Record]:
        """The records among the findings, in order; the rest is counted and sampled."""
        for finding in findings:
            if isinstance(finding, Record):
                self._records += 1
                yield finding
            elif isinstance(finding, LeftOut):
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


UNREAD: Reason = "field of a message that nothing reads"
UNREAD_REMEDY = (
    " A field of a message (reasoning_content, thinking, reasoning, train, training) that its chat template does not read and that is to "
    "be left out must be named in the source's conversation.leave_out."
)


def refusal(component: str, source: Source, tally: Tally, quarantine_path: str | Path) -> str:
    """What to say when more can't be used than the source allows."""
    counts = ", ".join(f"{reason}: {count}" for reason, count in tally.reasons.items())
    example = ""
    if tally.samples:
        first = tally.samples[0]
        example = f" For example {first.file}, {first.where}: {first.reason} ({first.sample[:80]!r})."
    return (
        f"component {component}: at most {source.max_bad_fraction:.4%} of its documents and of its files may be unusable, found "
        f"{tally.bad_fraction:.4%} ({counts}) among {_count(tally.documents, 'document')} in {_count(tally.files, 'file')} of {source.url}."
        f"{example} Samples of each reason are in {quarantine_path}. Repair or exclude these files, or raise max_bad_fraction."
        f"{UNREAD_REMEDY if UNREAD in tally.reasons else ''}"
    )


def refusal_of_unread(component: str, source: Source, tally: Tally, quarantine_path: str | Path) -> str:
    """What to say of files that are of another format, which no limit allows."""
    what = {sample.file: sample.sample for sample in tally.samples if sample.reason == "other format"}
    named = "; ".join(f"{name} ({what[name]})" if name in what else name for name in tally.unread_files[:MAX_NAMED])
    return (
        f"component {component}: every file must be {source.format}, or packed {source.format}; "
        f"{_count(len(tally.unread_files), 'file')} of {source.url} could not be read as that: {named}. "
        f"Exclude them by a glob in `exclude`, or correct the format. Samples are in {quarantine_path}."
    )


def write_quarantine(path: str | Path, samples: Iterable[Sample]) -> None:
    """Write the samples as JSON lines, at once or not at all."""
    lines = (json.dumps(sample.model_dump(mode="json"), ensure_ascii=False) + "\n" for sample in samples)
    write_atomically(path, "".join(lines).encode())


def _first(samples: Iterable[Sample]) -> tuple[Sample, ...]:
    """The first of each reason: the same whichever piece came in first."""
    by_reason = groupby(sorted(samples, key=lambda sample: sample.order), key=lambda sample: sample.reason)
    return tuple(sample for _, group in by_reason for sample in islice(group, MAX_SAMPLES))


def _first_reasons(some: Mapping[str, Reason], others: Mapping[str, Reason]) -> dict[str, Reason]:
    """Files of both, by name. Of two reasons against pieces of one file the one that sorts first stays, whichever came in first."""
    both = sorted([*some.items(), *others.items()], reverse=True)
    return dict(reversed(dict(both).items()))


def _sum(some: Mapping, others: Mapping) -> dict:
    """Counts of both, by name."""
    return {name: some.get(name, 0) + others.get(name, 0) for name in sorted({*some, *others})}


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
