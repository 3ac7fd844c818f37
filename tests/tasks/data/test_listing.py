"""Which files a component is made of, and how they are told apart."""

import os
from pathlib import Path

import fsspec
import pytest

from tasks.data.source import Source, expand, fingerprint
from trainer.errors import DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / ".phasewise" / "sources"
    for name in ("b.jsonl", "a.jsonl", "sub/c.jsonl", "sub/deep/d.jsonl", "notes.txt", ".hidden.jsonl", ".git/x.jsonl", "sub/.part.jsonl"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return root


def source(folder: Path | str, *include: str, exclude: tuple[str, ...] = ()) -> Source:
    url = folder.as_uri() if isinstance(folder, Path) else folder
    return Source(url=url, include=include, exclude=exclude, format="jsonl", text_key="text")


def names(folder: Path, found: tuple[str, ...]) -> list[str]:
    return [url.removeprefix(f"{folder.as_uri()}/") for url in found]


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        (("*.jsonl",), (), "a.jsonl b.jsonl sub/c.jsonl sub/deep/d.jsonl"),
        (("*.jsonl",), ("sub/*",), "a.jsonl b.jsonl"),
        (("*.jsonl",), ("sub/deep/*", "a*"), "b.jsonl sub/c.jsonl"),
        (("sub/**.jsonl", "notes.txt"), (), "notes.txt sub/c.jsonl sub/deep/d.jsonl"),
        (("[ab].jsonl", "a.*"), (), "a.jsonl b.jsonl"),
    ],
)
def test_globs_choose_files(folder: Path, include: tuple[str, ...], exclude: tuple[str, ...], expected: str):
    """Hidden files are never read, though the folder itself stands in a hidden one."""
    assert names(folder, expand(source(folder, *include, exclude=exclude))) == expected.split()


def test_a_slash_at_the_end_changes_nothing(folder: Path):
    assert expand(source(f"{folder.as_uri()}/", "a.jsonl")) == expand(source(folder, "a.jsonl"))


@pytest.mark.parametrize(("place", "include"), [("", ("*.parquet", "*.csv")), ("nowhere", ("*.jsonl",))])
def test_no_file_is_refused_by_url_and_globs(folder: Path, place: str, include: tuple[str, ...]):
    wanted = source(folder / place, *include)
    with pytest.raises(DataError) as refusal:
        expand(wanted)
    assert wanted.url in str(refusal.value)
    assert all(glob in str(refusal.value) for glob in include)


def test_everything_excluded_is_no_file(folder: Path):
    with pytest.raises(DataError, match=r"no file under .* matches"):
        expand(source(folder, "*.jsonl", exclude=("*.jsonl",)))


def test_content_tells_files_apart_that_size_and_time_do_not(folder: Path):
    wanted, path = source(folder, "a.jsonl"), folder / "a.jsonl"
    (before,) = fingerprint(wanted)
    status = path.stat()
    path.write_text("A.jsonl")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    (after,) = fingerprint(wanted)
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    assert (before.url, before.size_bytes) == (after.url, after.size_bytes)
    assert before.digest != after.digest
    path.write_text("a.jsonl")
    os.utime(path, (1, 1))
    assert fingerprint(wanted) == (before,)


def test_another_kind_of_storage_is_read_by_its_url():
    with fsspec.open("memory://bucket/web/a.jsonl", "wb") as file:
        file.write(b"{}")  # pyright: ignore[reportAttributeAccessIssue]  # fsspec's OpenFile is a file once entered
    (found,) = fingerprint(source("memory://bucket/web", "*.jsonl"))
    assert (found.url, found.size_bytes) == ("memory:///bucket/web/a.jsonl", 2)
