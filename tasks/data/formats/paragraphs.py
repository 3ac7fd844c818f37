"""Text that is cut into documents where a line is blank, for files that are long, or few."""

import io
from collections.abc import Iterator

from phasewise.tasks.data.formats.findings import FileFault, Finding, Sift

WANTED_CHARACTERS, MAX_CHARACTERS = 2_000, 8_000
"""A document ends at the first blank line after so many, and at the latest at the second."""


def read_paragraphs(file: io.BufferedReader, sift: Sift) -> Iterator[Finding]:
    """The file's text in documents of about `WANTED_CHARACTERS`; all of it but blank lines between them, and each in its place.

    Raises:
        FileFault: the file is empty.
        UnicodeDecodeError: it is not UTF-8.
    """
    reader = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    try:
        if not (line := reader.readline(MAX_CHARACTERS)):
            raise FileFault("empty file", "it has no bytes")
        lines, size, first, number = list[str](), 0, 1, 0
        while line:
            number += line.endswith("\n")
            lines.append(line)
            size += len(line)
            if size >= MAX_CHARACTERS or (size >= WANTED_CHARACTERS and line.isspace()):
                yield sift("".join(lines), f"from line {first}", {})
                lines, size, first = [], 0, number + 1
            line = reader.readline(MAX_CHARACTERS)
        if "".join(lines).strip() or first == 1:
            yield sift("".join(lines), f"from line {first}", {})
    finally:
        reader.detach()
