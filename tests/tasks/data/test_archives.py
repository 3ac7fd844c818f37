"""Archives member by member: what lies, what is cut, what leads elsewhere, and what is no member at all."""

import io
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from phasewise.tasks.data import archives
from phasewise.tasks.data.archives import members
from phasewise.tasks.data.findings import FileFault
from phasewise.tasks.data.streams import open_watched, recognise
from tests.hostile_makers import tar, zipped

FILES = {"a/one.txt": b"one " * 200, "/etc/two.txt": b"two", "../three.txt": b"three"}
Read = Callable[[bytes], list[tuple[str, str]]]


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Read:
    """Names and what is in them, or why it was not read; nothing is written anywhere."""
    monkeypatch.chdir(tmp_path)

    def read(content: bytes) -> list[tuple[str, str]]:
        (tmp_path / "archive").write_bytes(content)
        found: list[tuple[str, str]] = []
        with open_watched(str(tmp_path / "archive")) as file:
            kind, stream = recognise(file)
            for member in members(kind.name, file, stream):
                try:
                    found.append((member.name, member.no_text or member.open().read().decode()))
                except FileFault as fault:
                    found.append((member.name, f"{fault.reason}: {fault}"))
        assert os.listdir(tmp_path) == ["archive"]
        return found

    return read


@pytest.mark.parametrize("pack", [tar, zipped])
def test_members_come_in_order_and_lead_nowhere(read: Read, pack: Callable[..., bytes]):
    assert read(pack(FILES)) == [(name, content.decode()) for name, content in FILES.items()]


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_are_read_in_every_dialect(read: Read, kind: int):
    name = "f/" * 60 + "Grüße" * (1 if kind == tarfile.USTAR_FORMAT else 60)
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=kind) as archive:
        info = tarfile.TarInfo(name)
        info.size = 5
        archive.addfile(info, io.BytesIO(b"words"))
        archive.addfile(tarfile.TarInfo("next"), io.BytesIO())
    assert read(file.getvalue()) == [(name, "words"), ("next", "")]


def test_links_devices_and_folders_hold_nothing(read: Read):
    assert read(tar({"l": b""}, type=tarfile.SYMTYPE, linkname="/etc/passwd")) == [("l", "a link within its archive")]
    assert "device" in read(tar({"d": b""}, type=tarfile.CHRTYPE))[0][1]
    assert read(tar({"f": b""}, type=tarfile.DIRTYPE)) == []
    assert "type b'S'" in read(tar({"s": b"words"}, type=tarfile.GNUTYPE_SPARSE))[0][1]


def test_a_tar_that_is_cut_anywhere_is_a_fault(read: Read):
    """But between two members: some writers leave the end out."""
    content = tar({"a": b"x" * 700, "b": b"y"})
    for length in range(520, content.index(b"y"), 97):
        try:
            said = str(read(content[:length]))
        except FileFault as fault:
            said = str(fault)
        assert "ends" in said, length


def test_a_damaged_head_in_the_middle_of_a_tar_is_a_fault(read: Read):
    content = bytearray(tar({"a": b"x", "b": b"y", "c": b"z"}))
    content[1024 + 10] ^= 1
    with pytest.raises(FileFault, match="damaged tar: bad checksum"):
        read(bytes(content))


def test_a_tar_behind_a_tar_is_a_fault(read: Read):
    with pytest.raises(FileFault, match="more behind the end of the tar"):
        read(tar(FILES) + tar(FILES))


@pytest.mark.parametrize(("record", "said"), [(b"26 size=99999999999999\n", "damaged tar"), (b"12 size=-10\n", "size of -10")])
def test_absurd_sizes_of_pax_are_faults(read: Read, record: bytes, said: str):
    head = tar({"x": record}, type=tarfile.XHDTYPE)[:1024]
    with pytest.raises(FileFault, match=said):
        read(head + tar({"a": b"words"}))


def test_an_encrypted_member_is_reported_and_the_others_are_read(read: Read):
    content = bytearray(zipped(FILES))
    content[content.index(b"PK\3\4") + 6] |= 1
    content[content.index(b"PK\1\2") + 8] |= 1
    assert [said for _, said in read(bytes(content))] == ["other format: it is encrypted", "two", "three"]


def test_a_member_whose_bytes_are_not_those_that_were_packed_is_reported(read: Read):
    content = bytearray(zipped(FILES, zipfile.ZIP_STORED))
    content[content.index(b"two.txt") + len("two.txt")] ^= 1
    assert read(bytes(content))[1][1].startswith("unreadable: Bad CRC-32")


def test_zips_put_together_are_a_fault(read: Read):
    """The last table would be taken for all."""
    with pytest.raises(FileFault, match="belong to no member"):
        read(zipped(FILES) + zipped(FILES))


def test_a_table_that_is_larger_than_may_be_held_is_refused(read: Read, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(archives, "MAX_TABLE_BYTES", 2000)
    assert len(read(zipped(FILES))) == 3
    with pytest.raises(FileFault, match="at most 2000 are held"):
        read(zipped({f"{number}": b"" for number in range(50)}))


def test_a_zip_that_is_cut_is_a_fault(read: Read):
    content = zipped(FILES)
    for length in range(4, len(content), 31):
        with pytest.raises(FileFault) as fault:
            read(content[:length])
        assert fault.value.reason in ("unreadable", "truncated")


def test_expansion_counts_over_all_members(read: Read, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("phasewise.tasks.data.findings.FREE_EXPANSION_BYTES", 10_000)
    found = read(zipped({f"{number}": bytes(200_000) for number in range(40)}))
    assert found[0][1] == "\0" * 200_000
    assert found[-1][1].startswith("expands too much: ")
