import asyncio
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from phasewise.tasks.home import DEFAULT_HOME, Home
from phasewise.tasks.locks import LEASE_VARIABLE
from phasewise.trainer.base.errors import ConfigError
from phasewise.trainer.base.storage import write_atomically
from tests.stores.fixtures import FaultyStore


def test_the_home_is_made_and_option_comes_before_environment_and_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for text in (str(tmp_path / "a" / "b"), (tmp_path / "c").as_uri()):
        home = Home.open(text)
        assert home.root.is_dir()
        assert list(home.root.iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"a", "c"}
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PHASEWISE_HOME", raising=False)
    assert Home.open(None).root == tmp_path / DEFAULT_HOME
    monkeypatch.setenv("PHASEWISE_HOME", "from-environment")
    assert (Home.open(None).root, Home.open("from-option").root) == (tmp_path / "from-environment", tmp_path / "from-option")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Home.open("~/mine").root == tmp_path / "mine"


def test_a_place_under_a_file_is_refused_and_a_home_that_is_only_looked_at_is_not_made(tmp_path: Path, gcs: Path):
    (tmp_path / "file").write_text("in the way")
    for below in ("", "deep/er"):
        with pytest.raises(ConfigError, match=r"/file.* cannot be written: .*Choose another with --home or PHASEWISE_HOME") as refusal:
            Home.open(str(tmp_path / "file" / below))
        assert (str(tmp_path / "file") in str(refusal.value), refusal.value.exit_code) == (True, 2)
        with pytest.raises(ConfigError, match=r"cannot be read: .*Choose another with --home or PHASEWISE_HOME"):
            Home.at(str(tmp_path / "file" / below), reads_only=True)
    for place in (tmp_path / "a" / "b", gcs):
        home = Home.at(str(place), reads_only=True)
        assert (home.root, home.reads_only, home) == (place, True, Home.open(str(place)))
    for place in (tmp_path / "c", gcs / "c"):
        Home.at(str(place), reads_only=True)
        assert not place.exists()


def test_a_home_on_a_store_has_the_same_layout_there(gcs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    home = Home.open(f"{gcs}/")
    key = "0123456789abcdef"
    assert not home.root.exists()  # the question whether it can be written leaves nothing behind
    assert str(home.tokens("web", "train", key)) == f"{gcs}/tokens/web/train-{key}"
    write_atomically(home.tokens("web", "train", key) / "manifest.json", b"{}")
    assert [path.name for path in Home.open(str(home.root)).root.iterdir()] == ["tokens"]
    assert home.prefect.is_relative_to(tmp_path)
    assert home.prefect != Home.open(f"{gcs}/other").prefect
    monkeypatch.setenv("PHASEWISE_SCRATCH", str(tmp_path / "scratch"))
    far, here = Home.open(str(gcs)), Home.open(str(tmp_path / "home"))
    assert far.exporting.is_relative_to(tmp_path / "scratch")
    assert here.exporting.is_relative_to(here.root)


def test_a_store_that_is_missing_or_forbids_or_has_no_locks_is_refused(faulty_store: FaultyStore):
    for url in ("s3://bucket", "memory://home", "https://host/home"):
        with pytest.raises(ConfigError, match=rf"must be a local folder or a gs:// URL, found {url}"):
            Home.open(url)
    with pytest.raises(ConfigError, match="the home gs://no-such-bucket/home cannot be written: there is no such bucket"):
        Home.open("gs://no-such-bucket/home")
    faulty_store.faults.refuse(method="POST", status=403)
    with pytest.raises(ConfigError, match=rf"the home {faulty_store.root} cannot be written: Forbidden"):
        Home.open(str(faulty_store.root))
    faulty_store.faults.refuse(method="GET", times=100, status=403)
    with pytest.raises(ConfigError, match=rf"the home {faulty_store.root} cannot be read: Forbidden"):
        Home.at(str(faulty_store.root), reads_only=True)


@pytest.mark.parametrize("looks", [Home.open, partial(Home.at, reads_only=True)])
def test_a_store_that_never_answers_is_refused_in_a_bounded_time(faulty_store: FaultyStore, monkeypatch: pytest.MonkeyPatch, looks: Any):
    monkeypatch.setattr("phasewise.tasks.home.PROBE_SECONDS", 0.5)
    faulty_store.faults.refuse(times=1_000_000)
    monkeypatch.setattr("gcsfs.retry.asyncio", asyncio)  # its sleeps are real
    with pytest.raises(ConfigError, match=r"did not answer within 0\.5 seconds"):
        looks(str(faulty_store.root))


def test_one_run_at_a_time_holds_the_home(store: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(LEASE_VARIABLE, "2")
    program = "import sys; from phasewise.tasks.home import Home\n"
    program += "with Home.open(sys.argv[1]).held('x'): print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program, str(store)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(ConfigError, match=r"(another run|x \(process .*\)) is at work in"), Home.open(str(store)).held("this"):
            pass
        other.kill()
    with Home.open(str(store)).held("this"):
        pass


def test_every_thing_has_a_place_of_its_own(tmp_path: Path):
    home, key, run = Home(tmp_path), "0123456789abcdef0123", "marin-8b-proxy"
    keyed = (("documents", "web"), ("tokenizers",), ("benchmarks",), ("evidence", "leakage"), ("evidence", "items"))
    places = [home.sources, home.prefect, home.lock("lock"), *(home.keyed(kind, key, *parts) for kind, *parts in keyed)]
    places += [home.tokens("web", "train", key), home.tokens("web", "held_out", key), home.report(run), home.run(run, "kestrel")]
    places += [*(home.verdict(run, "kestrel", gate) for gate in ("data", "model")), home.tokens("web", "train", f"1{key}")]
    assert len(set(places)) == len(places)
    assert all(tmp_path in place.parents for place in places)
