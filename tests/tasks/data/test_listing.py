import gzip
import os
import socket
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from phasewise.tasks.data.listing import expand, fingerprint, selects
from phasewise.tasks.data.source import Source
from phasewise.trainer.base.errors import DataError
from tests.stores.hub import listening


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


@pytest.mark.parametrize(("include", "exclude", "expected"), [
    (("*.jsonl",), (), "a.jsonl b.jsonl sub/c.jsonl sub/deep/d.jsonl"), (("*.jsonl",), ("sub/*",), "a.jsonl b.jsonl"),
    (("*.jsonl",), ("sub/deep/*", "a*"), "b.jsonl sub/c.jsonl"),
    (("sub/**.jsonl", "notes.txt"), (), "notes.txt sub/c.jsonl sub/deep/d.jsonl"), (("[ab].jsonl", "a.*"), (), "a.jsonl b.jsonl"),
    (("**/*.jsonl",), ("**/d.*", "./sub/c*"), "a.jsonl b.jsonl"), (("**/a.jsonl", "**/d.jsonl"), (), "a.jsonl sub/deep/d.jsonl"),
    (("./*.jsonl",), ("**/sub/*",), "a.jsonl b.jsonl"), (("./a.jsonl", "sub/c.jsonl"), (), "a.jsonl sub/c.jsonl"),
    ((".hidden.jsonl", "sub/.part.jsonl"), (), ".hidden.jsonl sub/.part.jsonl"),
    (("./.git/x.jsonl", "b.*"), (), ".git/x.jsonl b.jsonl"),
])  # fmt: skip
def test_globs_choose_files(folder: Path, include: tuple[str, ...], exclude: tuple[str, ...], expected: str):
    wanted = source(folder, *include, exclude=exclude)
    found = expand(wanted)
    assert all(selects(wanted, name) for name in found.files)
    assert (list(found.files), [url.removeprefix(f"{folder}/") for url in found.files.values()]) == (expected.split(), expected.split())
    assert (found.rejected, set(found.excluded)) == ((), set(expand(source(folder, *include)).files) - set(found.files))


def test_a_server_that_lists_nothing_is_read_by_its_listing(folder: Path, tmp_path: Path):
    with gzip.open(tmp_path / "paths.gz", "wt") as listing:
        listing.write("sub/c.jsonl\nsub/deep/d.jsonl\n\nnotes.txt\n")
    listed = source(folder, "*.jsonl").model_copy(update={"listing": (tmp_path / "paths.gz").as_uri()})
    assert list(expand(listed).files) == ["sub/c.jsonl", "sub/deep/d.jsonl"]


@pytest.mark.parametrize(("place", "include"), [("", ("*.parquet", "*.csv")), ("nowhere", ("*.jsonl",))])
def test_no_file_is_refused_by_url_and_globs(folder: Path, place: str, include: tuple[str, ...]):
    wanted = source(folder / place, *include)
    with pytest.raises(DataError) as refusal:
        expand(wanted)
    assert wanted.root in str(refusal.value)
    assert all(glob in str(refusal.value) for glob in include)


@pytest.mark.parametrize(("include", "exclude", "idle"), [
    (("*.jsonl", "*.josnl"), (), r"\*\.josnl"), (("*.jsonl", "notes.txt"), ("notes*",), r"notes\.txt"),
    (("./gone.jsonl", "*.jsonl"), (), r"gone\.jsonl"), ((".git/*", "*.jsonl"), (), r"\.git/\*"),
])  # fmt: skip
def test_each_glob_must_select_a_file(folder: Path, include: tuple[str, ...], exclude: tuple[str, ...], idle: str):
    with pytest.raises(DataError, match=rf"include {idle} matches no file under .*sources that is not excluded \(1 of 2 entries\)"):
        expand(source(folder, *include, exclude=exclude))


def test_links_that_lead_out_are_turned_away_by_name(folder: Path, tmp_path: Path):
    (tmp_path / "secret.jsonl").write_text("{}")
    (folder / "out.jsonl").symlink_to(tmp_path / "secret.jsonl")
    (folder / "gone.jsonl").symlink_to(folder / "no such file")
    (folder / "within.jsonl").symlink_to(folder / "a.jsonl")
    found = fingerprint(source(folder, "*.jsonl", exclude=("sub/*",)))
    assert [file.name for file in found.files] == ["a.jsonl", "b.jsonl", "within.jsonl"]
    assert [(file.name, file.reason) for file in found.rejected] == [("gone.jsonl", "broken link"), ("out.jsonl", "outside the root")]


def test_what_is_no_file_is_turned_away_unopened(folder: Path, monkeypatch: pytest.MonkeyPatch):
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "to_pipe.jsonl").symlink_to(folder / "pipe.jsonl")
    monkeypatch.chdir(folder)  # a socket's path must be short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket.jsonl")
        for include, names in {("*.jsonl",): "pipe.jsonl socket.jsonl to_pipe.jsonl", ("pipe.jsonl", "sub"): "pipe.jsonl sub"}.items():
            rejected = {file.name: file.reason for file in fingerprint(source(folder, *include)).rejected}
            assert rejected == dict.fromkeys(names.split(), "no regular file")


def test_plain_names_need_no_listing_and_a_revision_comes_after_the_name_of_the_data_set():
    class Unlisted(MemoryFileSystem):
        protocol = "unlisted"

        def find(self, *_: object, **__: object):  # pyright: ignore[reportIncompatibleMethodOverride]  # it must not be called
            raise NotImplementedError

    fsspec.register_implementation("unlisted", Unlisted, clobber=True)
    with fsspec.open("unlisted://web/a.jsonl", "wb") as file:
        file.write(b"{}")  # pyright: ignore[reportAttributeAccessIssue]  # fsspec's OpenFile is a file once entered
    assert list(expand(source("unlisted://web", "a.jsonl")).files) == ["a.jsonl"]
    with pytest.raises(DataError, match=r"b\.jsonl of unlisted://web: no such file \(1 of 2 names are missing\)"):
        expand(source("unlisted://web", "a.jsonl", "b.jsonl"))
    with pytest.raises(DataError, match="cannot be listed"):
        expand(source("unlisted://web", "*.jsonl"))
    for folder in ("", "/folder/sub"):
        wanted = source(f"hf://datasets/owner/name{folder}", "*").model_copy(update={"revision": "abc"})
        assert wanted.root == f"hf://datasets/owner/name@abc{folder}"


class Silent(BaseHTTPRequestHandler):
    """A web server that says neither how large a file is nor gives parts of it."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else b"{}\n")

    do_HEAD = do_GET  # noqa: N815  # http.server's name

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def test_a_server_that_gives_no_parts_is_refused_in_words():
    with listening(Silent) as address, pytest.raises(DataError, match=r"a\.jsonl cannot be read .*byte ranges and report file sizes"):
        fingerprint(source(f"{address}/data", "a.jsonl"))
