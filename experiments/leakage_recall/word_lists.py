"""Named word lists from `word_lists.txt`."""

from pathlib import Path


def read_word_lists() -> dict[str, list[str]]:
    """Every paragraph of the file is a list under its name."""
    paragraphs = (Path(__file__).parent / "word_lists.txt").read_text(encoding="utf-8").split("\n\n")
    return {name: words.split() for name, _, words in (paragraph.partition(":\n") for paragraph in paragraphs)}


WORD_LISTS = read_word_lists()
