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


def test_members_come_in_order_and_lead_nowhere_and_long_names_are_read_in_every_dialect(read: Read):
    for pack in (tar, zipped):
        assert read(pack(FILES)) == [(name, content.decode()) for name, content in FILES.items()]
    for kind in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        name = "f/" * 60 + "Grüße" * (1 if kind == tarfile.USTAR_FORMAT else 60)
        assert read(tar({name: b"words", "next": b""}, kind)) == [(name, "words"), ("next", "")]


def with_changes(content: bytes, *changes: tuple[int, int]) -> bytes:
    changed = bytearray(content)
    for place, mask in changes:
        changed[place] ^= mask
    return bytes(changed)


def tar_with_pax(record: bytes) -> bytes:
    return tar({"x": record}, type=tarfile.XHDTYPE)[:1024] + tar({"a": b"words"})


@pytest.mark.parametrize(("content", "said"), [
    (with_changes(tar({"a": b"x", "b": b"y", "c": b"z"}), (1034, 1)), "damaged tar: bad checksum"),
    (tar(FILES) + tar(FILES), "more behind the end of the tar"), (tar_with_pax(b"26 size=99999999999999\n"), "damaged tar"),
    (tar_with_pax(b"12 size=-10\n"), "size of -10"), (zipped(FILES) + zipped(FILES), "belong to no member"),
])  # fmt: skip
def test_a_damaged_archive_is_a_fault(read: Read, content: bytes, said: str):
    with pytest.raises(FileFault, match=said):
        read(content)


def test_a_member_without_readable_text_is_reported_and_the_others_are_read(read: Read):
    assert read(tar({"l": b""}, type=tarfile.SYMTYPE, linkname="/etc/passwd")) == [("l", "a link within its archive")]
    assert "device" in read(tar({"d": b""}, type=tarfile.CHRTYPE))[0][1]
    assert read(tar({"f": b""}, type=tarfile.DIRTYPE)) == []
    assert "type b'S'" in read(tar({"s": b"words"}, type=tarfile.GNUTYPE_SPARSE))[0][1]
    good = zipped(FILES)
    encrypted = with_changes(good, (good.index(b"PK\3\4") + 6, 1), (good.index(b"PK\1\2") + 8, 1))
    assert [said for _, said in read(encrypted)] == ["other format: it is encrypted", "two", "three"]
    stored = zipped(FILES, zipfile.ZIP_STORED)
    assert read(with_changes(stored, (stored.index(b"two.txt") + len("two.txt"), 1)))[1][1].startswith("unreadable: Bad CRC-32")


def test_an_archive_that_is_cut_anywhere_is_a_fault(read: Read):
    content = tar({"a": b"x" * 700, "b": b"y"})
    for length in range(520, content.index(b"y"), 97):
        try:
            said = str(read(content[:length]))
        except FileFault as fault:
            said = str(fault)
        assert "ends" in said, length
    content = zipped(FILES)
    for length in range(4, len(content), 31):
        with pytest.raises(FileFault) as fault:
            read(content[:length])
        assert fault.value.reason in ("unreadable", "truncated")


def test_tables_and_expansion_over_all_members_are_bounded(read: Read, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("phasewise.tasks.data.findings.FREE_EXPANSION_BYTES", 10_000)
    found = read(zipped({f"{number}": bytes(200_000) for number in range(40)}))
    assert found[0][1] == "\0" * 200_000
    assert found[-1][1].startswith("expands too much: ")
    monkeypatch.setattr(archives, "MAX_TABLE_BYTES", 2000)
    assert len(read(zipped(FILES))) == 3
    with pytest.raises(FileFault, match="at most 2000 are held"):
        read(zipped({f"{number}": b"" for number in range(50)}))
