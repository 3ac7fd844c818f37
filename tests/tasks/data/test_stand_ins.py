"""Stand-ins: collected from this installation, near-duplicates left out, then the user's own."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.tasks.data import prepare, stand_ins
from phasewise.tasks.data.listing import fingerprint
from phasewise.tasks.data.prepare import collect_stand_ins
from phasewise.tasks.data.stand_ins import (
    MAX_PIECE_CHARACTERS,
    MAX_SHARED_SHINGLES,
    MIN_DOCUMENT_WORDS,
    RECORD_NAME,
    SHINGLE_WORDS,
    VIEWS,
    NearDuplicates,
    StandIn,
    View,
    collect,
    documents_in,
    installed,
    missing_stand_ins,
    pieces,
    required_packages,
    roots,
    stand_in_source,
    write_stand_ins,
)
from phasewise.trainer.base.errors import DataError
from phasewise.trainer.base.storage import read_json

LONG = "and so it goes on for a while, with one word after another, until there are enough of them to be worth a document of its own"
MODULE = f'''"""About rivers: {LONG}."""

# A block of comments, {LONG},
# over three lines,
#     and indented.

# Two lines
# are no block.

#! no comment
LENGTH = 7  # and so is this


class River:
    """A river.

    It is long: {LONG}.
    """

    def flow(self):
        """Flow downhill,
        always.

        >>> River().flow()
        'whoosh'
        >>> for i in range(2):
        ...     print(i)
        0
        1

        {LONG}
        """

    def silent(self):
        return 1


async def rain():
    """Rain. {LONG}"""
'''


def view(name: View, text: str = MODULE) -> list[str]:
    return list(VIEWS[name](text, "nature.water"))


def test_code_is_the_file_itself():
    assert view("code") == [MODULE]


def test_docstrings_are_those_of_modules_classes_and_functions_without_indentation():
    found = view("docstrings")
    assert [text.split()[0] for text in found] == ["About", "A", "Flow", "Rain."]
    assert found[1] == f"A river.\n\nIt is long: {LONG}."


def test_comments_are_blocks_of_three_lines_as_prose():
    assert view("comments") == [f"A block of comments, {LONG},\nover three lines,\nand indented."]


def test_questions_ask_for_classes_and_functions():
    found = view("questions")
    assert found[0] == f"Question: What is the class nature.water.River for?\n\nAnswer: A river.\n\nIt is long: {LONG}."
    assert found[1].startswith("Question: What is the function nature.water.River.flow for?\n\nAnswer: Flow downhill, always.\n\n>>>")
    assert found[2] == f"Question: What is the function nature.water.rain for?\n\nAnswer: Rain. {LONG}"
    assert len(found) == 3


def test_doctests_are_exercises_with_their_results():
    assert view("doctests") == [
        "Exercises on nature.water.River.flow\n\n"
        "Problem: what does Python answer?\n>>> River().flow()\n'whoosh'\n\n"
        "Problem: what does Python answer?\n>>> for i in range(2):\n...     print(i)\n0\n1"
    ]


def test_text_is_the_text_and_of_metadata_the_readme():
    assert view("text", "Licence\n\nDo what you like.") == ["Licence\n\nDo what you like."]
    assert view("text", "Metadata-Version: 2.4\nName: x\n\n# Readme\n\nWords.") == ["# Readme\n\nWords."]


@pytest.mark.parametrize("start", ["topics = {", "topics: dict[str, str] = {"])
def test_topics_are_the_values_of_the_dictionary(start: str):
    assert view("topics", f"{start}'if': 'The if statement ' 'chooses.', 'for': r'Loops\\n'}}\nother = 3\n") == [
        "The if statement chooses.",
        "Loops\\n",
    ]


def test_what_is_too_short_is_no_document(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_text(" ".join(["word"] * (MIN_DOCUMENT_WORDS - 1)))
    assert list(documents_in("text", path, "a")) == []
    path.write_text(" ".join(["word"] * MIN_DOCUMENT_WORDS))
    assert list(documents_in("text", path, "a")) == [path.read_text()]


@pytest.mark.parametrize(
    "content", [b"def broken(:\n    '''x'''\n", b"x = '\xff\xfe'\n", b"x = '\0'\n"], ids=["syntax", "encoding", "null"]
)
@pytest.mark.parametrize("name", ["docstrings", "questions", "doctests", "topics"])
def test_a_file_that_does_not_read_gives_none(tmp_path: Path, name: View, content: bytes):
    (tmp_path / "a.py").write_bytes(content * 30)
    assert list(documents_in(name, tmp_path / "a.py", "a")) == []


def test_old_escapes_warn_nobody(tmp_path: Path):
    (tmp_path / "a.py").write_text(f'"""A path: C:\\w {LONG}"""\n')
    (found,) = documents_in("docstrings", tmp_path / "a.py", "a")
    assert found.startswith("A path: C:\\w and")


@given(st.lists(st.integers(0, 400), max_size=40))
def test_a_long_text_is_cut_at_blank_lines(sizes: list[int]):
    paragraphs = [f"{number}" + " word" * size for number, size in enumerate(sizes)]
    found = list(pieces("\n \n".join(paragraphs)))
    assert "\n\n".join(found).split("\n\n") == (paragraphs or [""]) or not sizes
    for piece in found:
        assert len(piece) <= MAX_PIECE_CHARACTERS + 2 * piece.count("\n\n") or "\n\n" not in piece


def test_the_installation_is_where_it_says():
    assert (roots()["stdlib"] / "os.py").is_file()
    assert (roots()["site"] / "click").is_dir()
    assert installed()["click"]


TOPICS = StandIn(view="topics", where=("stdlib:pydoc_data/topics.py",), max_bytes=20_000)
CLICK = StandIn(view="docstrings", where=("site:click/*.py",), max_bytes=20_000)


def words(start: int, count: int) -> str:
    return " ".join(f"word{number}" for number in range(start, start + count))


@pytest.mark.parametrize("stand_in", [TOPICS, CLICK], ids=["topics", "click"])
def test_this_installation_has_text(stand_in: StandIn):
    found = collect(stand_in)
    assert len(found) > 10
    assert len({document["id"] for document in found}) == len(found)
    assert all(len(document["text"].split()) >= 25 for document in found)
    assert found == collect(stand_in)


def test_whole_files_are_taken_until_there_is_enough():
    little, more = (collect(StandIn(view=CLICK.view, where=CLICK.where, max_bytes=size)) for size in (1, 20_000))
    assert len({document["id"].partition("#")[0] for document in little}) == 1
    assert more[: len(little)] == little
    assert sum(len(document["text"].encode()) for document in more) >= 20_000


def test_without_leaves_files_out():
    ids = {document["id"].partition("#")[0] for document in collect(StandIn(view="code", where=("site:click/*.py",), max_bytes=10**9))}
    without = StandIn(view="code", where=("site:click/*.py",), without=("site:click/c*.py", "stdlib:*"), max_bytes=10**9)
    assert {document["id"].partition("#")[0] for document in collect(without)} == {id for id in ids if not id.startswith("click.c")} != ids


def test_what_is_installed_besides_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A tool beside Phasewise, or one of its extras, brings text about itself; a package that Phasewise needs stays."""
    for package in ("dask-2026.1.0", "great_expectations-1.24", "pip-26.0", "pytest-9.0", "some_tool-1.2.dev3"):
        path = tmp_path / f"{package}.dist-info" / "METADATA"
        path.parent.mkdir()
        path.write_text(f"Metadata-Version: 2.4\n\n{package} {words(0, 40)}\n")
    monkeypatch.setattr(stand_ins, "roots", lambda: {"site": tmp_path, "stdlib": tmp_path})
    found = collect(StandIn(view="text", where=("site:*.dist-info/METADATA",), max_bytes=10**6))
    assert {document["text"].split("-")[0] for document in found} == {"dask", "great_expectations", "pip"}
    assert "lm-eval" in required_packages()
    assert not {"pytest", "kubernetes", "wandb"} & required_packages()


def test_no_text_is_refused():
    with pytest.raises(DataError, match=r"no text for code of site:no_such_package"):
        collect(StandIn(view="code", where=("site:no_such_package/*.py",), max_bytes=1))


def test_copies_and_near_copies_are_found():
    duplicates = NearDuplicates()
    assert duplicates.is_new(words(0, 100))
    assert not duplicates.is_new(words(0, 100))
    assert not duplicates.is_new(words(0, 100).upper().replace(" ", ",  "))
    assert not duplicates.is_new(f"{words(1000, 50)} {words(20, SHINGLE_WORDS + MAX_SHARED_SHINGLES)}")
    assert duplicates.is_new(f"{words(2000, 50)} {words(20, SHINGLE_WORDS + MAX_SHARED_SHINGLES - 1)}")
    assert not duplicates.is_new(words(2000, 50))
    assert not duplicates.is_new(words(0, SHINGLE_WORDS + 1))


def test_what_was_found_to_repeat_is_not_remembered():
    duplicates = NearDuplicates()
    duplicates.is_new(words(0, 100))
    duplicates.is_new(f"{words(0, 100)} {words(5000, 100)}")
    assert duplicates.is_new(words(5000, 100))


def test_short_texts_are_compared_whole():
    duplicates = NearDuplicates()
    assert [duplicates.is_new(text) for text in ("one two", "one two three", "One, two!", "")] == [True, True, False, True]


def test_a_copy_is_written_once_over_all_components(tmp_path: Path):
    document = {"id": "x#0", "text": words(0, 60)}
    written = write_stand_ins({"web": [document, {"id": "x#1", "text": words(900, 60)}], "code": [document]}, tmp_path)
    assert written == {"code": 1, "web": 1}
    lines = (tmp_path / "web" / "stand-in.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["x#1"]
    record = read_json(tmp_path / RECORD_NAME)
    assert record["documents"] == written
    assert record["packages"]["click"]


def test_what_comes_later_repeats_nothing_of_what_is_there(tmp_path: Path):
    """As for a recipe with one more component in a home that has the others."""
    first, second = ({"id": f"x#{number}", "text": words(900 * number, 60)} for number in range(2))
    write_stand_ins({"web": [first]}, tmp_path)
    assert write_stand_ins({"law": [first, second]}, tmp_path) == {"law": 1}
    assert read_json(tmp_path / RECORD_NAME)["documents"] == {"law": 1, "web": 1}
    (line,) = (tmp_path / "law" / "stand-in.jsonl").read_text().splitlines()
    assert json.loads(line)["id"] == "x#1"


def test_the_record_is_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def killed(*_: object):
        raise KeyboardInterrupt

    wanted = {"web": TOPICS, "code": CLICK}
    assert missing_stand_ins(wanted, tmp_path) == ["code", "web"]
    with monkeypatch.context() as patch:
        patch.setattr(stand_ins, "write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            write_stand_ins({name: [{"id": "x", "text": words(0, 60)}] for name in wanted}, tmp_path)
    assert missing_stand_ins(wanted, tmp_path) == ["code", "web"]
    write_stand_ins({name: [{"id": "x", "text": words(0, 60)}] for name in wanted}, tmp_path)
    assert missing_stand_ins(wanted, tmp_path) == []
    assert missing_stand_ins({**wanted, "law": CLICK}, tmp_path) == ["law"]


def test_files_that_the_user_adds_are_kept_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def in_this_process(_work: str, function: Any, calls: list[tuple[Any, ...]]) -> list[Any]:
        return [function(*call) for call in calls]

    monkeypatch.setattr(prepare, "run_all", in_this_process)
    assert collect_stand_ins({"web": TOPICS}, tmp_path) == 1
    before = fingerprint(stand_in_source(CLICK, tmp_path / "web"))
    (tmp_path / "web" / "mine.jsonl").write_text('{"text": "my own"}\n')
    (tmp_path / "web" / "stand-in.jsonl").write_text('{"text": "changed by hand"}\n')
    assert collect_stand_ins({"web": TOPICS}, tmp_path) == 0
    after = fingerprint(stand_in_source(CLICK, tmp_path / "web"))
    assert [file.name for file in before.files] == ["stand-in.jsonl"]
    assert [file.name for file in after.files] == ["mine.jsonl", "stand-in.jsonl"]
    assert (tmp_path / "web" / "stand-in.jsonl").read_text() == '{"text": "changed by hand"}\n'
