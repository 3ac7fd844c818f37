"""Every view on small files of the kind that it is for."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasewise.tasks.data.python_text import MAX_CHARACTERS, MIN_WORDS, VIEWS, View, documents_in, installed, pieces, roots

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
    path.write_text(" ".join(["word"] * (MIN_WORDS - 1)))
    assert list(documents_in("text", path, "a")) == []
    path.write_text(" ".join(["word"] * MIN_WORDS))
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
        assert len(piece) <= MAX_CHARACTERS + 2 * piece.count("\n\n") or "\n\n" not in piece


def test_the_installation_is_where_it_says():
    assert (roots()["stdlib"] / "os.py").is_file()
    assert (roots()["site"] / "click").is_dir()
    assert installed()["click"]
