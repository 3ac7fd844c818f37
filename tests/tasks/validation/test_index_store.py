import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from phasewise.tasks.home import Home
from phasewise.tasks.validation import evidence_keys
from phasewise.tasks.validation.evidence_keys import index_store as place_of
from phasewise.tasks.validation.scan_pieces import index_of_folder, open_index
from phasewise.trainer.base.errors import ConfigError, StorageError
from phasewise.validations.evidence.leakage.index import LeakageIndex


@pytest.mark.usefixtures("index")
def test_it_is_built_once_for_the_same_items_and_code(benchmarks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    builds, build = list[int](), LeakageIndex.build
    monkeypatch.setattr(LeakageIndex, "build", lambda items: (builds.append(len(items)), build(items))[1])
    copied = shutil.copytree(benchmarks, tmp_path / "copies" / benchmarks.name)
    with ThreadPoolExecutor(2) as pool:
        folders = list(pool.map(lambda path: index_of_folder(str(path), tmp_path / "store"), (benchmarks, copied)))
    assert (folders[0], builds, open_index(folders[0]).items_per_benchmark) == (folders[1], [60], {"made-math": 60})
    test = copied / "made-math" / "test.jsonl"
    test.write_text(test.read_text().replace("dollar", "franc"))
    assert index_of_folder(str(copied), tmp_path / "store") != folders[0]
    one_file = index_of_folder(str(test), tmp_path / "store")
    assert one_file != folders[0]
    assert builds == [60, 60, 60]
    monkeypatch.setattr(evidence_keys, "leakage_version", lambda: "another")
    assert index_of_folder(str(test), tmp_path / "store") != one_file
    assert {path.name for path in (tmp_path / "store").iterdir() if path.is_dir()} >= {folders[0].name, one_file.name}


def test_what_fails_leaves_nothing(benchmarks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(self: LeakageIndex, folder: Path) -> None:
        (folder / "half.npy").write_bytes(b"x")
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(LeakageIndex, "save", fail)
        with pytest.raises(StorageError, match="no space left"):
            index_of_folder(str(benchmarks), tmp_path)
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []
    assert open_index(index_of_folder(str(benchmarks), tmp_path)).names


def test_benchmarks_without_items_are_wrong_usage_and_the_place_is_of_the_home_or_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert place_of(None) == tmp_path / "cache" / "phasewise" / "indexes"
    assert place_of(Home.open(str(tmp_path / "home"))) == tmp_path / "home" / "evidence" / "indexes"
    (tmp_path / "empty").mkdir()
    for place in (tmp_path / "nowhere", tmp_path / "empty"):
        with pytest.raises(ConfigError, match="--benchmarks needs"):
            index_of_folder(str(place), tmp_path / "store")
