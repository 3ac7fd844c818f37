"""Text and Markdown: a file is one document as it is."""

import io
from collections.abc import Iterator

from phasewise.tasks.data.formats.findings import MAX_DOCUMENT_BYTES, Fault, FileFault, Finding, Sift, reason_against, sample_of


def read_plain(file: io.BufferedReader, sift: Sift) -> Iterator[Finding]:
    """The file's text; a byte order mark is its signature and not part of it.

    Raises:
        FileFault: the file is empty.
    """
    raw = file.read(MAX_DOCUMENT_BYTES + 1)
    if not raw:
        raise FileFault("empty file", "it has no bytes")
    if len(raw) > MAX_DOCUMENT_BYTES:
        yield Fault("too long", "file", sample_of(raw))
        return
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        yield Fault(reason_against(raw), "file", sample_of(raw))
        return
    yield sift(text, "file", {})
