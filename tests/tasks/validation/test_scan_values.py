"""What of a row is its text: every string, sentences where names are expected among them; and rows too long to be held."""

from phasewise.tasks.validation.scan_texts import Text, text_of_line, text_of_value, texts_of


def test_sentences_for_keys_and_ids_are_text():
    assert text_of_value({"What is it called?": "red", "short key": 1}) == Text("", b"What is it called?\nred")
    assert text_of_value({"id": "row-7", "text": "words"}) == Text("row-7", b"words")
    assert text_of_value({"id": "a question of words", "text": "words"}) == Text("a question of words", b"words\na question of words")
    assert text_of_value({"id": {"q": "hidden"}, "x": "y"}) == Text("", b"y\nhidden")


def test_the_text_is_first_and_may_be_anything():
    assert text_of_value({"a": "1", "text": "2", "b": ["3"]}).text == b"2\n1\n3"
    assert text_of_value({"a": "1", "text": ["2"]}).text == b"1\n2"
    assert text_of_value(["1", {"text": "2"}]).text == b"1\n2"
    assert text_of_value({"text": "half \ud800"}).text == b"half ?"
    assert text_of_line(b"[" * 1000 + b'"deep"' + b"]" * 1000).text == b"deep"


def test_what_does_not_parse_is_as_it_is_and_is_reported_where_it_is_no_text():
    assert text_of_line(b'{"text": "cut of') == Text("", b'{"text": "cut of')
    assert text_of_line(b"caf\xe9") == Text("", "caf�".encode())
    assert not text_of_line(bytes(40)).readable


def test_a_row_too_long_to_be_held_comes_in_pieces():
    found = ["a" * 6, "b" * 6, "c"]
    assert list(texts_of("row", found, max_characters=13)) == [Text("row", b"aaaaaa\nbbbbbb\nc")]
    assert list(texts_of("row", found, max_characters=12)) == [Text("row", b"aaaaaa\nbbbbbb"), Text("row", b"c")]
    assert list(texts_of("row", ["long"] * 3, max_characters=3)) == [Text("row", b"long")] * 3
