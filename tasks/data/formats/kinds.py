"""What a file is, by its first bytes: its name may be missing, or wrong."""

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from phasewise.tasks.data.formats.arrow_messages import FILE_START, begins_with_a_schema

Nature = Literal["packed", "archive", "parquet", "arrow", "warc", "text", "wide text", "empty", "no text", "unknown"]
SNIFF_BYTES = 2**14
TAR_BLOCK_BYTES = 512
MAX_CONTROL_SHARE = 0.02


class Kind(NamedTuple):
    """What a stretch of bytes is.

    Attributes:
        nature: how it is read; `no text` is what holds none by its nature, `unknown` is what no reader takes.
        name: of packings and archives the one that it is, of wide text its encoding, of all else what to call it.
    """

    nature: Nature
    name: str


PARQUET_MAGIC = b"PAR1"
SKIPPABLE_FRAME = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18", re.DOTALL)  # of Zstandard and of LZ4
ZSTANDARD_MAGIC, LZ4_MAGIC = b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18"
_STARTS: Sequence[tuple[bytes, Kind]] = (
    (rb"\x1f\x8b\x08", Kind("packed", "gzip")),
    (re.escape(ZSTANDARD_MAGIC), Kind("packed", "zstd")),
    (re.escape(LZ4_MAGIC), Kind("packed", "lz4")),
    (rb"\xfd7zXZ\0", Kind("packed", "xz")),
    (rb"BZh[1-9](?:1AY&SY|\x17\x72\x45\x38\x50\x90)", Kind("packed", "bzip2")),
    (rb"PK(?:\x03\x04|\x05\x06|\x07\x08)", Kind("archive", "zip")),
    (re.escape(PARQUET_MAGIC), Kind("parquet", "Parquet")),
    (re.escape(FILE_START), Kind("arrow", "an Arrow file")),
    (rb"\xff\xff\xff\xff", Kind("arrow", "an Arrow stream")),
    (rb"WARC/[01]\.\d+\r?\n", Kind("warc", "WARC")),
    (rb"\xff\xfe\0\0", Kind("wide text", "utf-32")),
    (rb"\0\0\xfe\xff", Kind("wide text", "utf-32")),
    (rb"\xff\xfe|\xfe\xff", Kind("wide text", "utf-16")),
    (rb"\x89PNG", Kind("no text", "a PNG image")),
    (rb"\xff\xd8\xff", Kind("no text", "a JPEG image")),
    (rb"GIF8[79]a", Kind("no text", "a GIF image")),
    (rb"BM.{4}\0{4}", Kind("no text", "a BMP image")),
    (rb"II\x2a\0|MM\0\x2a", Kind("no text", "a TIFF image")),
    (rb"\0\0[\x01\x02]\0.\0.{6}", Kind("no text", "an icon")),
    (rb"RIFF.{4}(?:WEBP|WAVE|AVI )", Kind("no text", "an image, a sound or a film (RIFF)")),
    (rb"fLaC|OggS|ID3|\xff[\xfb\xf3\xf2]", Kind("no text", "a sound")),
    (rb".{4}ftyp", Kind("no text", "a film, a sound or an image (ISO media)")),
    (rb"\x1aE\xdf\xa3", Kind("no text", "a film (Matroska)")),
    (rb"wOF[F2]|OTTO\0|\0\x01\0\0\0.{3}\0", Kind("no text", "a font")),
    (rb"\x93NUMPY.{4,6}\{[^}]*'descr': *'[<>=|][?biufcmM]\d+", Kind("no text", "an array of numbers (NumPy)")),
    (rb"\x93NUMPY", Kind("unknown", "a NumPy array of texts or objects")),
    (rb".{5}\0{3}\{\"", Kind("no text", "weights (safetensors)")),
    (rb"PARE", Kind("unknown", "an encrypted Parquet file")),
    (rb"%PDF-", Kind("unknown", "a PDF document")),
    (rb"Rar!\x1a\x07", Kind("unknown", "a RAR archive")),
    (rb"7z\xbc\xaf\x27\x1c", Kind("unknown", "a 7z archive")),
    (rb"\x1f[\x9d\xa0]", Kind("unknown", "a file packed by compress")),
    (rb"LZIP", Kind("unknown", "a file packed by lzip")),
    (rb"\xff\x06\0\0sNaPpY", Kind("unknown", "a file packed by Snappy")),
    (rb"FEA1", Kind("unknown", "a Feather file of version 1")),
    (rb"ORC[\x00-\x1f]", Kind("unknown", "an ORC table")),
    (rb"Obj\x01", Kind("unknown", "an Avro file")),
    (rb"\x89HDF", Kind("unknown", "an HDF5 file")),
    (rb"SQLite format 3\0", Kind("unknown", "a SQLite database")),
    (rb"\xd0\xcf\x11\xe0", Kind("unknown", "an Office document of before 2007")),
    (rb"\x7fELF|MZ.{2}[\x00-\x08]", Kind("unknown", "a program")),
    (rb"version https://git-lfs\.github\.com/spec/", Kind("unknown", "a pointer of Git LFS: the file itself was not fetched")),
    (rb"/annex/objects/", Kind("unknown", "a pointer of git-annex: the file itself was not fetched")),
)
_PATTERNS = [(re.compile(pattern, re.DOTALL), kind) for pattern, kind in _STARTS]
_TEXT_CONTROLS = b"\t\n\v\f\r\x08\x1b"
_CONTROLS = bytes(code for code in range(32) if code not in _TEXT_CONTROLS)
TEXT = Kind("text", "text")
UNKNOWN = Kind("unknown", "neither text nor anything else that is known")


def kind_of(start: bytes) -> Kind:
    """What begins with these bytes, of which `SNIFF_BYTES` are enough. Fewer are taken for the whole."""
    if not start:
        return Kind("empty", "an empty file")
    if SKIPPABLE_FRAME.match(start):
        return _behind_skippable_frames(start)
    for pattern, kind in _PATTERNS:
        if pattern.match(start):
            return kind
    if _is_tar(start[:TAR_BLOCK_BYTES]):
        return Kind("archive", "tar")
    if begins_with_a_schema(start):
        return Kind("arrow", "an Arrow stream")
    if encoding := _wide_encoding(start):
        return Kind("wide text", encoding)
    return TEXT if is_text(start, cut=len(start) >= SNIFF_BYTES) or _begins_with_a_line_of_json(start) else UNKNOWN


def is_text(raw: bytes, *, cut: bool) -> bool:
    """Whether bytes read as text: next to no control characters, and none at all where they are not UTF-8. `cut`: more follows."""
    controls = len(raw) - len(raw.translate(None, _CONTROLS))
    if not controls:
        return True
    if controls > MAX_CONTROL_SHARE * len(raw):
        return False
    try:
        raw[: len(raw) - 3 if cut else None].decode()
    except UnicodeDecodeError as error:
        return cut and error.start >= len(raw) - 6
    return True


def _begins_with_a_line_of_json(start: bytes) -> bool:
    """Whether what looks damaged is so behind a first line that looks like JSON: then it is JSON lines, some of them damaged."""
    line, end, _ = start.removeprefix(b"\xef\xbb\xbf").partition(b"\n")
    return bool(end) and line[:1] in (b"{", b"[") and line.rstrip()[-1:] in (b"}", b"]") and is_text(line, cut=False)


def _behind_skippable_frames(start: bytes) -> Kind:
    """Whose frames they are says the first that is none of them."""
    at = 0
    while SKIPPABLE_FRAME.match(start, at):
        at += 8 + int.from_bytes(start[at + 4 : at + 8], "little")
    return Kind("packed", "lz4" if start.startswith(LZ4_MAGIC, at) else "zstd")


def _is_tar(block: bytes) -> bool:
    """Whether a first block is the head of a member: its checksum says so, of old archives, too, that have no mark."""
    if len(block) < TAR_BLOCK_BYTES:
        return False
    digits = block[148:156].strip(b" \0")
    if not digits.isdigit() or any(digit not in b"01234567" for digit in digits):
        return False
    return int(digits, 8) == sum(block) - sum(block[148:156]) + 8 * ord(" ")


def _wide_encoding(start: bytes) -> str | None:
    """UTF-16 without its mark: of text in Latin letters every other byte is zero."""
    even, odd = start[0:4096:2], start[1:4096:2]
    if len(start) < 4:
        return None
    if odd.count(0) > 0.4 * len(odd) and even.count(0) < 0.02 * len(even):
        return "utf-16-le"
    if even.count(0) > 0.4 * len(even) and odd.count(0) < 0.02 * len(odd):
        return "utf-16-be"
    return None
