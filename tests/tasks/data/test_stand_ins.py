import json
from pathlib import Path

import pytest

from phasewise.tasks.data import prepare, stand_ins
from phasewise.tasks.data.listing import fingerprint
from phasewise.tasks.data.prepare import collect_stand_ins
from phasewise.tasks.data.stand_ins import MAX_SHARED_SHINGLES, SHINGLE_WORDS, StandIn, collect, required_packages, stand_in_source
from phasewise.trainer.base.storage import read_json

LONG = "and so it goes on for a while, with one word after another, until there are enough of them to be worth a document of its own"
MODULE = f'''"""About rivers: {LONG}."""

class River:
    """A river.

    It is long: {LONG}.
    """

    def flow(self):
        """Flow downhill,
        always.

        >>> River().flow()
        'whoosh'

        {LONG}
        """

    def silent(self):
        return 1

async def rain():
    """Rain. {LONG}"""
'''
TOPICS = StandIn(view="topics", where=("stdlib:pydoc_data/topics.py",), max_bytes=20_000)
CLICK = StandIn(view="docstrings", where=("site:click/*.py",), max_bytes=20_000)


def test_questions_ask_for_classes_and_functions_and_a_file_that_does_not_read_gives_none(tmp_path: Path):
    found = list(stand_ins.texts_of("questions", MODULE, "nature.water"))
    assert found[0] == f"Question: What is the class nature.water.River for?\n\nAnswer: A river.\n\nIt is long: {LONG}."
    assert found[1].startswith("Question: What is the function nature.water.River.flow for?\n\nAnswer: Flow downhill, always.\n\n>>>")
    assert (found[2], len(found)) == (f"Question: What is the function nature.water.rain for?\n\nAnswer: Rain. {LONG}", 3)
    views: tuple[stand_ins.View, ...] = ("docstrings", "questions", "doctests", "topics")
    for content in (b"def broken(:\n    '''x'''\n", b"x = '\xff\xfe'\n", b"x = '\0'\n"):
        (tmp_path / "a.py").write_bytes(content * 30)
        assert [list(stand_ins.documents_in(name, tmp_path / "a.py", "a")) for name in views] == [[]] * 4


def words(start: int, count: int) -> str:
    return " ".join(f"word{number}" for number in range(start, start + count))


def test_whole_files_are_taken_until_there_is_enough_and_only_of_what_is_required(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    little, more = (collect(StandIn(view=CLICK.view, where=CLICK.where, max_bytes=size)) for size in (1, 20_000))
    assert (len({document["id"].partition("#")[0] for document in little}), more[: len(little)]) == (1, little)
    assert sum(len(document["text"].encode()) for document in more) >= 20_000
    for package in ("dask-2026.1.0", "great_expectations-1.24", "pip-26.0", "pytest-9.0", "some_tool-1.2.dev3"):
        path = tmp_path / f"{package}.dist-info" / "METADATA"
        path.parent.mkdir()
        path.write_text(f"Metadata-Version: 2.4\n\n{package} {words(0, 40)}\n")
    monkeypatch.setattr(stand_ins, "roots", lambda: {"site": tmp_path, "stdlib": tmp_path})
    found = collect(StandIn(view="text", where=("site:*.dist-info/METADATA",), max_bytes=10**6))
    assert {document["text"].split("-")[0] for document in found} == {"dask", "great_expectations", "pip"}
    assert "lm-eval" in required_packages()
    assert not {"pytest", "kubernetes", "wandb"} & required_packages()


def test_copies_and_near_copies_are_found_and_written_once(tmp_path: Path):
    seen = set[int]()
    assert stand_ins.is_new(words(0, 100), seen)
    assert not stand_ins.is_new(words(0, 100), seen)
    assert not stand_ins.is_new(words(0, 100).upper().replace(" ", ",  "), seen)
    assert not stand_ins.is_new(f"{words(1000, 50)} {words(20, SHINGLE_WORDS + MAX_SHARED_SHINGLES)}", seen)
    assert stand_ins.is_new(f"{words(2000, 50)} {words(20, SHINGLE_WORDS + MAX_SHARED_SHINGLES - 1)}", seen)
    assert not stand_ins.is_new(words(2000, 50), seen)
    assert not stand_ins.is_new(words(0, SHINGLE_WORDS + 1), seen)
    document = {"id": "x#0", "text": words(0, 60)}
    written = stand_ins.write_stand_ins({"web": [document, {"id": "x#1", "text": words(900, 60)}], "code": [document]}, tmp_path)
    assert written == {"code": 1, "web": 1}
    lines = (tmp_path / "web" / "stand-in.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["x#1"]
    record = read_json(tmp_path / stand_ins.RECORD_NAME)
    assert record["documents"] == written
    assert record["packages"]["click"]


def test_files_that_the_user_adds_are_kept_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prepare, "run_all", lambda _work, function, calls, **_: [function(*call) for call in calls])
    assert collect_stand_ins({"web": TOPICS}, tmp_path) == 1
    before = fingerprint(stand_in_source(CLICK, tmp_path / "web"))
    (tmp_path / "web" / "mine.jsonl").write_text('{"text": "my own"}\n')
    (tmp_path / "web" / "stand-in.jsonl").write_text('{"text": "changed by hand"}\n')
    assert collect_stand_ins({"web": TOPICS}, tmp_path) == 0
    after = fingerprint(stand_in_source(CLICK, tmp_path / "web"))
    assert [file.name for file in before.files] == ["stand-in.jsonl"]
    assert [file.name for file in after.files] == ["mine.jsonl", "stand-in.jsonl"]
    assert (tmp_path / "web" / "stand-in.jsonl").read_text() == '{"text": "changed by hand"}\n'
