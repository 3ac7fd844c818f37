import html
import json
import re
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.validations.evidence.leakage.words import Words, is_sign, split_words

PLAIN = "Nina's café sold 17 \"small\" cakes, 3 large ones & a naïve baker's roll.\nHow much is left < 40 over?"


def words(text: str) -> Words:
    return split_words(text.encode())


def same(first: str, second: str) -> bool:
    return words(first).hashes.tolist() == words(second).hashes.tolist()


def written(text: str | bytes) -> list[str]:
    content = text.encode() if isinstance(text, str) else text
    found = split_words(content)
    return [content[start:end].decode(errors="replace") for start, end in zip(found.starts, found.ends, strict=True)]


def in_math_bold(text: str) -> str:
    shift = {"a": 0x1D41A - ord("a"), "A": 0x1D400 - ord("A"), "0": 0x1D7CE - ord("0")}
    kinds = {
        letter: "a" if letter.islower() else "A" if letter.isupper() else "0" for letter in text if letter.isascii() and letter.isalnum()
    }
    return "".join(chr(ord(letter) + shift[kinds[letter]]) if letter in kinds else letter for letter in text)


SMALL_CAPITALS = str.maketrans("abcdeghijklmnoprtuvwz", "ᴀʙᴄᴅᴇɢʜɪᴊᴋʟᴍɴᴏᴘʀᴛᴜᴠᴡᴢ")
CYRILLIC = str.maketrans("aceopxyiHABEKMCTOP", "асеорхуіНАВЕКМСТОР")
FULLWIDTH = {point: point + 0xFEE0 for point in range(0x21, 0x7F)}


@pytest.mark.parametrize(
    "dressed",
    [
        json.dumps(PLAIN),
        json.dumps(PLAIN, ensure_ascii=False),
        json.dumps(json.dumps(PLAIN)),
        json.dumps(json.dumps(PLAIN, ensure_ascii=False), ensure_ascii=False),
        json.dumps(json.dumps(json.dumps(PLAIN))),
        html.escape(PLAIN),
        html.escape(html.escape(PLAIN)),
        json.dumps(html.escape(PLAIN)),
        "".join(f"&#{ord(letter)};" for letter in PLAIN),
        "".join(f"&#x{ord(letter):X};" for letter in PLAIN),
        html.escape("".join(f"&#{ord(letter)};" for letter in PLAIN)),
        PLAIN.replace("é", "&eacute;"),
        unicodedata.normalize("NFD", PLAIN),
        PLAIN.translate(FULLWIDTH),
        in_math_bold(PLAIN),
        PLAIN.translate(SMALL_CAPITALS),
        PLAIN.translate(CYRILLIC),
        "\u200b".join(PLAIN),
        "\u00ad".join(PLAIN),
        PLAIN.replace("'", "’").replace('"small"', "“small”"),
        PLAIN.upper(),
        PLAIN.replace(" ", "\u00a0"),
        PLAIN.replace(" ", "\n> "),
        PLAIN.replace(" ", " **").replace("cakes,", "_cakes_,"),
    ],
    ids=lambda text: text[:24],
)
def test_a_text_in_another_dress_has_the_same_words(dressed: str) -> None:
    assert dressed != PLAIN
    assert same(dressed, PLAIN)


@pytest.mark.parametrize(
    ("dressed", "plain"),
    [
        ("He has <b>nine</b> eggs.<br/>He eats two.", "He has nine eggs. He eats two."),
        ("<p class=x>He has nine</p><p class='y z'>eggs", "He has nine eggs"),
        (html.escape("<p class=x>He has <B>nine</B></p> eggs"), "He has nine eggs"),
        (html.escape(html.escape("He has <b>nine</b> eggs")), "He has nine eggs"),
        (json.dumps('<td align="left">nine</td>').replace("<", "\\u003c"), "nine"),
        ("16 - 7 = <<16-7=9>>9 eggs, $<<2*9=18.0>>18", "16 - 7 = 9 eggs, $18"),
        (html.escape("16 - 7 = <<16-7=9>>9 eggs"), "16 - 7 = 9 eggs"),
        ("[b]nine[/b] eggs [url=http://a.b/c]here[/url]", "nine eggs here"),
        ("it costs 1,000 crowns", "it costs 1000 crowns"),
        ("it costs 1{,}000 crowns", "it costs 1000 crowns"),
        ("it costs 1,\\!000 crowns", "it costs 1000 crowns"),
        ("it costs 12,345,678 crowns", "it costs 12345678 crowns"),
        ("２５ and ٤٧ and २५", "25 and 47 and 25"),
        ("ﬁnd the oﬃce", "find the office"),
        ("Straße", "STRASSE"),
        ("\\ud83d\\ude00 smile", "😀 smile"),
        ("𝒜 naïve Ångström", "a naive angstrom"),
    ],
)
def test_tags_and_separators_are_undone(dressed: str, plain: str) -> None:
    assert same(dressed, plain)


@pytest.mark.parametrize(
    "latex", ["a \\neq b", "3 \\times 4", "\\frac{1}{2}", "\\theta + \\rho", "x \\to \\infty", "\\not\\in N", "\\tan \\nu"]
)
def test_latex_has_the_same_words_plain_and_escaped_and_in_upper_case(latex: str) -> None:
    assert same(latex, json.dumps(latex))
    assert same(latex, json.dumps(json.dumps(latex)))
    assert same(latex, latex.upper())
    assert same(latex, latex.translate(FULLWIDTH))


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("cout << a; x >> b", ["cout", "a", "x", "b"]),
        ("if a < b and c > d then e", ["if", "a", "b", "and", "c", "d", "then", "e"]),
        ("1 << 4 and 2 >> 1", ["1", "4", "and", "2", "1"]),
        ("<<see here>> stays", ["see", "here", "stays"]),
        ("vector<int> v; <mytag>kept", ["vector", "int", "v", "mytag", "kept"]),
        ("the list 1,2,3 ends", ["the", "list", "1", "2", "3", "ends"]),
        ("1,00 and 1,0000 and 1, 000", ["1", "00", "and", "1", "0000", "and", "1", "000"]),
        ("a,000", ["a", "000"]),
        ("salt & pepper, R&D, AT&T", ["salt", "pepper", "R", "D", "AT", "T"]),
        ("row[b2] and list[i + 1]", ["row", "b", "2", "and", "list", "i", "1"]),
        ("abc123def", ["abc", "123", "def"]),
        ("中文 かな", ["中", "文", "か", "な"]),
        ("이름은 뭐", ["이름은", "뭐"]),
        ("ends in a < b", ["ends", "in", "a", "b"]),
        ("<p never closed", ["p", "never", "closed"]),
        ("x < b < c > d", ["x", "b", "c", "d"]),
    ],
)
def test_what_only_looks_like_a_dress_stays(text: str, kept: list[str]) -> None:
    assert written(text) == kept


CUT = (
    "\\", "\\\\", "\\u", "\\u00", "\\ud83d", "\\ud83d\\u", "\\x", "\\x4", "&", "&#", "&#3", "&#x", "&l", "&amp", "&amp;", "&amp;#",
    "<", "<<", "<<1", "<<1=", "<<1=2", "<<1=2>", "<b", "</", "</b", "[b", "[/", "[url=", "1,", "1{", "1{,", "1,\\",
)  # fmt: skip


@pytest.mark.parametrize("cut", CUT)
def test_an_escape_or_tag_that_ends_with_the_text_takes_nothing_before_it(cut: str) -> None:
    assert written(f"plain words {cut}")[:2] == ["plain", "words"]


def test_empty_texts_have_no_words() -> None:
    for text in (b"", b" ", b"\n\xff", "…".encode()):
        assert len(split_words(text).hashes) == 0


def test_what_is_not_utf8_separates_words() -> None:
    assert written(b"one\xfftwo\xc3three\xe2\x82four\xf0\x9f\x98five\xe2\x82") == ["one", "two", "three", "four", "five"]


def test_a_words_span_is_the_word_as_written() -> None:
    text = 'He said: "na&icirc;ve <b>caf\\u00e9</b>" for 1,000 ２５ \u200bcro\u00adwns'
    assert written(text) == ["He", "said", "na&icirc;ve", "caf\\u00e9", "for", "1,000", "２５", "cro\u00adwns"]


def test_a_diaeresis_in_an_entity_is_undone() -> None:
    assert same("na&iuml;ve M&auml;rz", "naïve März")


def test_one_letter_behind_an_ampersand_is_no_entity() -> None:
    assert written("in R&D; flags = a&b;") == ["in", "R", "D", "flags", "a", "b"]


def test_signs_are_numbers_and_single_letters() -> None:
    found = is_sign(words("x = 12 cats, é or 中 and 3,000 p.m.").hashes)
    assert "".join("x" if one else "." for one in found) == "xx.x...xxx"


def test_numbers_are_distinguished_from_each_other_and_from_words() -> None:
    assert len(set(words(" ".join(map(str, range(5000)))).hashes.tolist())) == 5000


PIECES = (
    "\\u00", "\\", "&amp;", "&#x3c;", "<<1=", ">>", "<b", ">", "[url=", "]", "1,000", "{,}", "é", "ﷺ", "½", "中", "\U000e0041",
)  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(st.lists(st.binary(max_size=12) | st.sampled_from([piece.encode() for piece in PIECES]), max_size=12).map(b"".join))
def test_spans_of_any_bytes_are_ordered_apart_and_inside(text: bytes) -> None:
    found = split_words(text)
    assert len(found.hashes) == len(found.starts) == len(found.ends)
    assert (found.starts < found.ends).all()
    assert (np.diff(found.starts) >= 0).all()
    assert (np.diff(found.ends) >= 0).all()
    for end, start in zip(found.ends[:-1], found.starts[1:], strict=True):
        assert end <= start or len(split_words(text[start:end]).hashes) > 1  # several words in one character, such as ½
    assert not len(found.starts) or (found.starts[0] >= 0 and found.ends[-1] <= len(text))


@settings(max_examples=100, deadline=None)
@given(st.text("abcxyzNTR0189  \n.;:!?-", max_size=60))
def test_plain_ascii_agrees_with_a_regular_expression(text: str) -> None:
    expected = [(match.start(), match.end(), match[0].lower()) for match in re.finditer("[A-Za-z]+|[0-9]+", text)]
    found = words(text)
    assert list(zip(found.starts.tolist(), found.ends.tolist(), strict=True)) == [(start, end) for start, end, _ in expected]
    names = [word for *_, word in expected]
    assert len(set(found.hashes.tolist())) == len(set(names)) == len(set(zip(names, found.hashes.tolist(), strict=True)))
    assert is_sign(found.hashes).tolist() == [word.isdigit() or len(word) == 1 for word in names]


def test_bytes_and_arrays_are_read_alike() -> None:
    assert words(PLAIN).hashes.tolist() == split_words(np.frombuffer(PLAIN.encode(), np.uint8)).hashes.tolist()
