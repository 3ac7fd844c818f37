"""Where everything lives, and the refusal of a place where nothing can."""

import subprocess
import sys
from pathlib import Path

import pytest

from tasks.home import DEFAULT_HOME, Home
from trainer.errors import ConfigError


def test_the_home_is_made(tmp_path: Path):
    for text in (str(tmp_path / "a" / "b"), (tmp_path / "c").as_uri()):
        home = Home.open(text)
        assert home.root.is_dir()
        assert list(home.root.iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"a", "c"}


def test_an_option_comes_before_the_environment_and_that_before_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PHASEWISE_HOME", raising=False)
    assert Home.open(None).root == tmp_path / DEFAULT_HOME
    monkeypatch.setenv("PHASEWISE_HOME", "from-environment")
    assert Home.open(None).root == tmp_path / "from-environment"
    assert Home.open("from-option").root == tmp_path / "from-option"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Home.open("~/mine").root == tmp_path / "mine"


@pytest.mark.parametrize("below", ["", "deep/er"])
def test_a_place_under_a_file_is_refused(tmp_path: Path, below: str):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match=r"cannot be written: .*Choose another with --home or PHASEWISE_HOME") as refusal:
        Home.open(str(tmp_path / "file" / below))
    assert str(tmp_path / "file") in str(refusal.value)
    assert refusal.value.exit_code == 2


@pytest.mark.parametrize("url", ["gs://bucket/home", "s3://bucket", "memory://home"])
def test_an_object_store_is_refused_by_its_url(url: str):
    with pytest.raises(ConfigError, match=rf"must be a local folder, found {url}"):
        Home.open(url)


def test_one_run_at_a_time_holds_the_home(tmp_path: Path):
    """Also against another process; and the lock goes with a process that is killed."""
    program = "import sys; from tasks.home import Home\nwith Home.open(sys.argv[1]).held(): print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(ConfigError, match="another run is at work in"), Home.open(str(tmp_path)).held():
            pass
        other.kill()
    with Home.open(str(tmp_path)).held():
        pass


def test_every_thing_has_a_place_of_its_own(tmp_path: Path):
    home, key = Home(tmp_path), "0123456789abcdef0123"
    places = [
        home.sources,
        home.prefect,
        home.documents("web", key),
        home.tokenizer(key),
        home.tokens("web", "train", key),
        home.tokens("web", "held_out", key),
        home.benchmarks(key),
        home.evidence("leakage", key),
        home.evidence("items", key),
        home.run("marin-8b-proxy", "kestrel"),
        home.verdict("marin-8b-proxy", "kestrel", "data"),
        home.verdict("marin-8b-proxy", "kestrel", "model"),
        home.report("marin-8b-proxy"),
    ]
    assert len(set(places)) == len(places)
    assert all(tmp_path in place.parents for place in places)
    assert home.tokens("web", "train", key) != home.tokens("web", "train", f"1{key}")
