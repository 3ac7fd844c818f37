"""Packed files: every packing, in members, cut, damaged, and as a bomb; and what a file system fails with is not the data's fault."""

import bz2
import gzip
import io
import lzma
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest
import zstandard
from fsspec.implementations.memory import MemoryFileSystem

from phasewise.tasks.data.formats.expansion import FREE_EXPANSION_BYTES, MAX_EXPANSION, check_expansion
from phasewise.tasks.data.formats.findings import FileFault
from phasewise.tasks.data.formats.streams import WatchedFile, open_watched, recognise, unpack
from phasewise.trainer.base.errors import DataError

Pack = Callable[[bytes], bytes]


def lz4(content: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "lz4") as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


PACKINGS: dict[str, Pack] = {
    "x.gz": gzip.compress,
    "x.GZIP": gzip.compress,
    "x.zst": zstandard.compress,
    "x.zstd": zstandard.compress,
    "x.bz2": bz2.compress,
    "x.xz": lzma.compress,
    "x.lz4": lz4,
    "without-ending": gzip.compress,
}
LONGEST_MAGIC_BYTES = 10  # bzip2's; of fewer nobody can say what they were to become
CONTENT = random.Random(0).randbytes(100_000).hex().encode()


def unpacked(file: WatchedFile) -> io.BufferedReader:
    """The file's bytes, unpacked once if they are packed."""
    kind, stream = recognise(file)
    return io.BufferedReader(unpack(file, stream, kind.name)) if kind.nature == "packed" else stream


def read(path: Path) -> bytes:
    with open_watched(path.as_uri()) as file:
        return unpacked(file).read()


def expand(path: Path) -> int:
    """How many bytes come, none of them kept."""
    with open_watched(path.as_uri()) as file:
        stream = unpacked(file)
        return sum(map(len, iter(lambda: stream.read(2**20), b"")))


@pytest.mark.parametrize(("name", "pack"), PACKINGS.items())
def test_members_in_a_row_are_one_stream(tmp_path: Path, name: str, pack: Pack):
    path = tmp_path / name
    path.write_bytes(pack(CONTENT) + pack(b"") + pack(b"and more"))
    assert read(path) == CONTENT + b"and more"


@pytest.mark.parametrize("name", ["x.gz", "x.xz"])
def test_zero_bytes_between_and_after_members_are_padding(tmp_path: Path, name: str):
    path = tmp_path / name
    path.write_bytes(PACKINGS[name](b"one") + bytes(8) + PACKINGS[name](b"two") + bytes(200_000))
    assert read(path) == b"onetwo"


def test_skippable_frames_of_zstandard_are_skipped(tmp_path: Path):
    frame = (0x184D2A50).to_bytes(4, "little") + (5).to_bytes(4, "little") + b"index"
    (tmp_path / "x.zst").write_bytes(zstandard.compress(b"one") + frame + zstandard.compress(b"two"))
    assert read(tmp_path / "x.zst") == b"onetwo"


def test_the_first_bytes_say_what_is_packed_and_no_name_does(tmp_path: Path):
    (tmp_path / "x.jsonl").write_bytes(gzip.compress(CONTENT))
    assert read(tmp_path / "x.jsonl") == CONTENT
    (tmp_path / "x.gz").write_bytes(CONTENT)
    assert read(tmp_path / "x.gz") == CONTENT


@pytest.mark.parametrize(("name", "pack"), PACKINGS.items())
@pytest.mark.parametrize("whole_members", [0, 1])
@pytest.mark.parametrize("lost_bytes", [1, 6, 50_000])
def test_a_cut_is_noticed_in_the_first_member_and_in_others(
    tmp_path: Path, name: str, pack: Pack, whole_members: int, lost_bytes: int
):  # fmt: skip
    path = tmp_path / name
    path.write_bytes(pack(b"one") * whole_members + pack(CONTENT)[:-lost_bytes])
    with pytest.raises(FileFault, match="ends inside") as fault:
        read(path)
    assert fault.value.reason == "truncated"


def test_a_cut_at_every_byte_is_noticed(tmp_path: Path):
    for name, pack in PACKINGS.items():
        packed = pack(b"a few words to be cut\n")
        for length in range(LONGEST_MAGIC_BYTES, len(packed)):
            (tmp_path / name).write_bytes(packed[:length])
            with pytest.raises(FileFault) as fault:
                read(tmp_path / name)
            assert fault.value.reason == "truncated", (name, length)


@pytest.mark.parametrize(("name", "pack"), PACKINGS.items())
def test_a_bomb_goes_off_in_little_memory(tmp_path: Path, name: str, pack: Pack):
    path = tmp_path / name
    path.write_bytes(pack(bytes(16 * 2**20)) * 20)
    tracemalloc.start()
    try:
        with pytest.raises(FileFault, match=f"at most {MAX_EXPANSION} of one") as fault:
            expand(path)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert fault.value.reason == "expands too much"
    assert peak_bytes < 16 * 2**20


def test_expansion_counts_once_there_is_much():
    check_expansion(FREE_EXPANSION_BYTES, 1)
    check_expansion(10 * FREE_EXPANSION_BYTES, 10 * FREE_EXPANSION_BYTES // MAX_EXPANSION)
    with pytest.raises(FileFault):
        check_expansion(10 * FREE_EXPANSION_BYTES, 10 * FREE_EXPANSION_BYTES // MAX_EXPANSION - 1)


def test_a_window_of_gigabytes_is_refused(tmp_path: Path):
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 2**30}]
    packer = lzma.LZMACompressor(filters=filters)
    (tmp_path / "x.xz").write_bytes(packer.compress(b"small") + packer.flush())
    with pytest.raises(lzma.LZMAError, match="Memory usage limit"):
        read(tmp_path / "x.xz")


class Losing(io.BytesIO):
    """A connection that is lost at the second block."""

    def readinto(self, buffer: object, /) -> int:
        if self.tell() > 0:
            raise ConnectionResetError("connection lost")
        return super().readinto(buffer)  # pyright: ignore[reportArgumentType]  # a buffer, whatever the stubs call it


class LosingFileSystem(MemoryFileSystem):
    protocol = "losing"

    def _open(self, path: str, *_: object, **__: object) -> Losing:
        return Losing(3 * CONTENT)


def test_what_the_file_system_fails_with_is_kept():
    fsspec.register_implementation("losing", LosingFileSystem, clobber=True)
    with open_watched("losing://x") as file:
        with pytest.raises(ConnectionResetError):
            unpacked(file).read()
        assert isinstance(file.failure, ConnectionResetError)
        assert 0 < file.taken_bytes < 3 * len(CONTENT)


class Cut(io.RawIOBase):
    """Some bytes, a failure, and then nothing, as if it were the end."""

    def __init__(self):
        self.reads = iter((b"a few words", FileFault("truncated", "it ends here"), b""))

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        found = next(self.reads)
        if isinstance(found, FileFault):
            raise found
        buffer[: len(found)] = found
        return len(found)


def test_what_fails_behind_the_first_bytes_fails_there_and_they_stand():
    kind, stream = recognise(Cut())
    assert kind.nature == "text"
    assert stream.read(11) == b"a few words"
    with pytest.raises(FileFault, match="it ends here"):
        stream.read()


def test_a_missing_file_is_refused_with_what_to_do(tmp_path: Path):
    with pytest.raises(DataError, match=r"gone\.gz was listed as a source file and is gone: put it back"), open_watched(
        (tmp_path / "gone.gz").as_uri()
    ):  # fmt: skip
        pass


def test_a_folder_is_refused(tmp_path: Path):
    with pytest.raises(DataError, match="cannot be read"), open_watched(tmp_path.as_uri()):
        pass
