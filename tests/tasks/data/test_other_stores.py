"""Sources on a store of an extra: S3 as moto serves it. Azure has no emulator in a Python package: there the missing package is held."""

import gzip
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from fsspec.registry import _registry  # pyright: ignore[reportPrivateUsage]  # loaded file systems
from moto.server import ThreadedMotoServer

from phasewise.tasks.data.digests import KnownDigests
from phasewise.tasks.data.listing import expand, fingerprint
from phasewise.tasks.data.source import Source
from phasewise.tasks.home import Home
from phasewise.trainer.base.errors import ConfigError
from tests.tasks.data.builds import write_documents

TEXTS = [f"document {number}, as it was in the beginning" for number in range(60)]
SOURCE = Source(url="s3://bucket/text", include=("**/*.jsonl*",), exclude=("held/*",), format="jsonl")


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[fsspec.AbstractFileSystem]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    settings = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
    for name, value in {**settings, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}.items():
        monkeypatch.setenv(name, value)
    store = fsspec.filesystem("s3", skip_instance_cache=True)
    store.mkdir("bucket")
    yield store
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    server.stop()


def lines(texts: list[str]) -> bytes:
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


def test_documents_on_s3_are_those_of_a_folder_and_an_edit_of_equal_length_is_noticed(bucket: fsspec.AbstractFileSystem, tmp_path: Path):
    files = {"a.jsonl": lines(TEXTS[:30]), "deep/b.jsonl.gz": gzip.compress(lines(TEXTS[30:])), "held/c.jsonl": lines(TEXTS)}
    for name, content in files.items():
        bucket.pipe_file(f"bucket/text/{name}", content)
        path = tmp_path / "text" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    here = SOURCE.but(url=str(tmp_path / "text"))
    assert fingerprint(SOURCE) == fingerprint(here)
    assert write_documents(SOURCE, tmp_path / "s3").parts == write_documents(here, tmp_path / "here").parts
    known = KnownDigests(Home.open(str(tmp_path / "home")))
    before = fingerprint(SOURCE, known)
    bucket.pipe_file("bucket/text/a.jsonl", files["a.jsonl"].replace(b"beginning", b"beginninf"))
    after = fingerprint(SOURCE, known)
    assert [old.digest == new.digest for old, new in zip(before.files, after.files, strict=True)] == [False, True]


@pytest.mark.parametrize(
    ("url", "package", "said"),
    [
        ("s3://bucket/text", "s3fs", r"s3://bucket/text: the package that reads s3:// is not installed: pip install 'phasewise\[s3\]'"),
        ("az://box/text", "adlfs", r"az://box/text: the package that reads az:// is not installed: pip install 'phasewise\[azure\]'"),
        (
            "nix://box/text",
            None,
            r"nix://box/text: expected a folder, gs://, s3://, az://, hf:// or another protocol of fsspec, found nix://",
        ),
    ],
)
def test_a_store_without_its_package_is_refused_before_it_is_listed(
    url: str, package: str | None, said: str, monkeypatch: pytest.MonkeyPatch
):
    if package:
        monkeypatch.setitem(sys.modules, package, None)
        for protocol in ("s3", "az"):
            monkeypatch.delitem(_registry, protocol, raising=False)
    with pytest.raises(ConfigError, match=said):
        expand(SOURCE.but(url=url))
