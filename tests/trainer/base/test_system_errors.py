import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from phasewise.trainer.base.errors import DeepNesting, MemoryShortage, PhasewiseError, StorageError, refusal_of, refused_by_system
from phasewise.trainer.base.storage import write_atomically
from phasewise.trainer.process.child_process import python_command
from tests.survival.disks import small_disk

PLACE = "/data/home/file"


def wrapped(error: BaseException, outer: type[Exception] = RuntimeError) -> Exception:
    try:
        raise outer("while it was at work") from error
    except Exception as found:
        return found


def test_each_error_of_a_file_names_the_file_and_what_to_do():
    for number, remedy in {
        errno.ENOSPC: "Make room there", errno.EDQUOT: "raise the quota", errno.EROFS: "Make the disk writable",
        errno.EACCES: "Let this user read and write it", errno.EPERM: "Let this user", errno.EIO: "Check the disk",
        errno.EMFILE: "ulimit -n", errno.ENFILE: "file-max", errno.ENAMETOOLONG: "a shorter name", errno.EISDIR: "Correct this",
    }.items():  # fmt: skip
        refusal = refusal_of(OSError(number, os.strerror(number), PLACE))
        assert isinstance(refusal, StorageError)
        assert refusal.exit_code == 7
        assert f"{PLACE}: {os.strerror(number)}" in str(refusal)
        assert remedy in str(refusal)
        assert "\n" not in str(refusal)
        assert (" MiB are free on the disk at /" in str(refusal)) == (number in (errno.ENOSPC, errno.EDQUOT))


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), PLACE)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (wrapped(FULL), StorageError),
        (ExceptionGroup("tasks", [ValueError("other"), wrapped(FULL)]), StorageError),
        (wrapped(StorageError("was said already")), StorageError),
        (ValueError("RESOURCE_EXHAUSTED: Failed to write: No space left on device\n[tensorstore]"), StorageError),
        (RuntimeError("(sqlite3.OperationalError) database or disk is full"), StorageError),
        (RuntimeError("(sqlite3.OperationalError) disk I/O error"), StorageError),
        (MemoryError("Unable to allocate 7.28 TiB\nfor an array"), MemoryShortage),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes."), MemoryShortage),
        (RecursionError("maximum recursion depth exceeded"), DeepNesting),
        (wrapped(RecursionError("maximum recursion depth exceeded")), DeepNesting),
    ],
)
def test_what_a_library_wraps_is_found(error: Exception, kind: type[PhasewiseError]):
    with pytest.raises(kind) as refusal, refused_by_system("/"):
        raise error
    assert "\n" not in str(refusal.value)
    assert refusal.value.exit_code == (7 if kind is StorageError else 1)


def test_a_fault_of_the_code_keeps_its_traceback():
    absent = wrapped(FileNotFoundError(2, "No such file", PLACE))
    assert {refusal_of(error, "/") for error in (KeyError("ours"), absent, BrokenPipeError(32, "Broken pipe"))} == {None}


def test_a_real_disk_that_is_full_is_named_with_its_room_and_keeps_what_was_there(tmp_path: Path):
    with small_disk(tmp_path / "disk", "64k") as disk:
        write_atomically(disk / "file", b"old")
        with pytest.raises(StorageError) as refusal, refused_by_system():
            write_atomically(disk / "file", bytes(2**20))
        assert f"{disk}/file: No space left on device; 0.1 of 0.1 MiB are free on the disk at {disk}." in str(refusal.value)
        assert {path.name: path.read_bytes() for path in disk.iterdir()} == {"file": b"old"}


@pytest.mark.parametrize(("arguments", "code"), [(("schema",), 7), (("show", "no-such-recipe"), 2)], ids=str)
def test_output_to_a_full_disk_ends_with_the_code_alone(arguments: tuple[str, ...], code: int):
    with open("/dev/full", "w") as full:
        ended = subprocess.run(python_command("phasewise.flows.cli.main", *arguments), stdout=full, stderr=full, check=False)
    assert ended.returncode == code


@pytest.mark.parametrize("fail", [MemoryError, RecursionError, lambda: OSError(errno.EMFILE, "Too many open files")])
def test_a_command_ends_in_one_line(fail: Callable[[], Exception], monkeypatch: pytest.MonkeyPatch):
    from click.testing import CliRunner

    from phasewise.flows.cli.main import main

    def raise_it(*_arguments: object) -> None:
        raise fail()

    monkeypatch.setattr("phasewise.flows.cli.show.describe_changes", raise_it)  # nothing real runs out of memory at will
    ended = CliRunner().invoke(main, ["lineage", "marin-8b"])
    assert ended.exit_code == (7 if isinstance(fail(), OSError) else 1)
    assert ended.stderr.startswith("phasewise: ")
    assert ended.stderr.count("\n") == 1
