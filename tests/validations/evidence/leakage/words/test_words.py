import html
import json
import re
import unicodedata
import urllib.parse
from collections.abc import Callable

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


SMALL_CAPITALS = str.maketrans("abcdeghijklmnoprtuvwz", "ᴀʙᴄᴅᴇɢʜɪᴊᴋʟᴍɴᴏᴘʀᴛᴜᴠᴡᴢ")
CYRILLIC = str.maketrans("aceopxyiHABEKMCTOP", "асеорхуіНАВЕКМСТОР")
FULLWIDTH = {point: point + 0xFEE0 for point in range(0x21, 0x7F)}
BOLD = (("a", 0x1D41A, 26), ("A", 0x1D400, 26), ("0", 0x1D7CE, 10))
MATH_BOLD = {ord(first) + at: bold + at for first, bold, count in BOLD for at in range(count)}
ENTITIES = "".join(f"&#{ord(letter)};" for letter in PLAIN)


def escaped(text: str) -> str:
    return json.dumps(text)[1:-1]


def escaped_but_for_letters(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


WILD = (
    'Zoë\'s café sold 1,234,567 clips\n\tat $0.50 each; "half of \\frac{3}{4} \\neq \\text{nothing}", & then <early> — naïve… if x < y or'
    "\r\n10,\\!000 > 9{,}999: <<16-7=9>>9 🙂 東京 [b]bold[/b] <p class='x'>C:\\users\\next</p> cout << a; b >> c"
)
DRESSES: tuple[Callable[[str], str], ...] = (
    escaped, lambda text: escaped(escaped(text)), lambda text: escaped(escaped(escaped(text))),
    escaped_but_for_letters, lambda text: escaped_but_for_letters(escaped_but_for_letters(text)),
    html.escape, lambda text: html.escape(html.escape(text)),
    lambda text: escaped(html.escape(text)), lambda text: html.escape(escaped(text)),
    lambda text: escaped(text).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"),  # JSON for a page
    lambda text: html.escape(text).encode("ascii", "xmlcharrefreplace").decode(),
    lambda text: html.escape(html.escape(text).encode("ascii", "xmlcharrefreplace").decode()),
)  # fmt: skip
PLAIN_DRESSED = (
    json.dumps(PLAIN), ENTITIES, "".join(f"&#x{ord(letter):X};" for letter in PLAIN), html.escape(ENTITIES),
    PLAIN.replace("é", "&eacute;"), unicodedata.normalize("NFD", PLAIN), PLAIN.translate(FULLWIDTH), PLAIN.translate(MATH_BOLD),
    PLAIN.translate(SMALL_CAPITALS), PLAIN.translate(CYRILLIC), "\u200b".join(PLAIN), "\u00ad".join(PLAIN),
    PLAIN.replace("'", "’").replace('"small"', "“small”"), PLAIN.upper(), PLAIN.replace(" ", "\u00a0"), PLAIN.replace(" ", "\n> "),
    PLAIN.replace(" ", " **").replace("cakes,", "_cakes_,"),
)  # fmt: skip
ADDRESS = 'Zoë\'s café sold 1,234,567 clips\n\tat $0.50 each; "half", & 20% then <b>bold</b> <<16-7=9>>9 — naïve… 🙂 東京 x < y'


@pytest.mark.parametrize(("dressed", "plain"), [
    *((dressed, PLAIN) for dressed in PLAIN_DRESSED), *((dress(WILD), WILD) for dress in DRESSES),
    (urllib.parse.quote(ADDRESS), ADDRESS), (urllib.parse.quote_plus(ADDRESS), ADDRESS),
    ("He has <b>nine</b> eggs.<br/>He eats two.", "He has nine eggs. He eats two."),
    ("<p class=x>He has nine</p><p class='y z'>eggs", "He has nine eggs"),
    (json.dumps('<td align="left">nine</td>').replace("<", "\\u003c"), "nine"),
    ("16 - 7 = <<16-7=9>>9 eggs, $<<2*9=18.0>>18", "16 - 7 = 9 eggs, $18"),
    (html.escape("<p class=x>16 - 7 = <<16-7=9>>9 <B>eggs</B></p>"), "16 - 7 = 9 eggs"),
    ("[b]nine[/b] eggs [url=http://a.b/c]here[/url]", "nine eggs here"), ("it costs 1,000 crowns", "it costs 1000 crowns"),
    ("it costs 1{,}000 crowns", "it costs 1000 crowns"), ("it costs 1,\\!000 crowns", "it costs 1000 crowns"),
    ("it costs 12,345,678 crowns", "it costs 12345678 crowns"), ("２５ and ٤٧ and २५", "25 and 47 and 25"),
    ("ﬁnd the oﬃce", "find the office"), ("Straße", "STRASSE"), ("\\ud83d\\ude00 smile", "😀 smile"),
    ("𝒜 naïve Ångström", "a naive angstrom"), ("na&iuml;ve M&auml;rz", "naïve März"),
], ids=lambda text: text[:24])  # fmt: skip
def test_a_text_in_another_dress_has_the_same_words(dressed: str, plain: str) -> None:
    assert dressed != plain
    assert same(dressed, plain)


@pytest.mark.parametrize(
    "latex", ["a \\neq b", "3 \\times 4", "\\frac{1}{2}", "\\theta + \\rho", "x \\to \\infty", "\\not\\in N", "\\tan \\nu"]
)
def test_latex_has_the_same_words_plain_and_escaped_and_in_upper_case(latex: str) -> None:
    for dressed in (json.dumps(latex), json.dumps(json.dumps(latex)), latex.upper(), latex.translate(FULLWIDTH)):
        assert same(latex, dressed)


@pytest.mark.parametrize(("text", "kept"), [
    ("cout << a == b << c; cin >> d >> e", "cout a b c cin d e"), ('out << "n=" << n; in >> 2 >> m', "out n n in 2 m"),
    ("cout << a; x >> b", "cout a x b"), ("if a < b and c > d then e", "if a b and c d then e"), ("1 << 4 and 2 >> 1", "1 4 and 2 1"),
    ("<<16-7\n=9>> << 1 = 2 >>3", "16 7 9 3"), ("<<see here>> stays", "see here stays"), ("x <y> z <early> <1>", "x y z early 1"),
    ("vector<int> v; <mytag>kept", "vector int v mytag kept"), ("x < b < c > d", "x b c d"), ("<p never closed", "p never closed"),
    ("ends in a < b", "ends in a b"), ("the list 1,2,3 ends", "the list 1 2 3 ends"), ("a,000", "a 000"),
    ("1,00 and 1,0000 and 1, 000", "1 00 and 1 0000 and 1 000"), ("1234,56 1,2345 12, 345 1,234,56", "1234 56 1 2345 12 345 1,234 56"),
    ("salt & pepper, R&D; AT&T = a&b;", "salt pepper R D AT T a b"), ("&#x110000; &#; &# x &#99999999;", "x 110000 x 99999999"),
    ("&am &amp", "am amp"), ("&#12", "12"), ("un&shy;seen", "un&shy;seen"), ("row[b2] and list[i + 1]", "row b 2 and list i 1"),
    ("a[0] b[max] c[k=2]", "a 0 b max c k 2"), ("[url=x", "url x"), ("abc123def", "abc 123 def"), ("中文 かな", "中 文 か な"),
    ("이름은 뭐", "이름은 뭐"), ("end \\\\\\", "end"), ("\\u12 \\x4 \\ud83d", "u 12 x 4"), ("a \\ud83d\\u", "a u"),
    ("50% of %zz %2", "50 of zz 2"), ("caf%C3%A9s na%c3 x%80y 1%2C000", "caf%C3%A9s na x y 1%2C000"),
    ("a </", "a"), ("a <b", "a b"), ("a <<1=2>", "a 1 2"), ("1{,", "1"), ("1,\\!", "1"), ("1,\\", "1"),
    (b"caf\xe2\x82", "caf"), (b"ab\xed\xa0\x80cd \xf4\x90\x80\x80x \xc3(", "ab cd x"),
    (b"one\xfftwo\xc3three\xe2\x82four\xf0\x9f\x98five\xe2\x82", "one two three four five"),
    *((text, "") for text in (b"", b" ", b"\n\xff", "…")),
])  # fmt: skip
def test_what_only_looks_like_a_dress_or_ends_too_early_stays(text: str | bytes, kept: str) -> None:
    assert written(text) == kept.split()


CUT = (
    "\\", "\\\\", "\\u", "\\u00", "\\ud83d", "\\ud83d\\u", "\\x", "\\x4", "&", "&#", "&#3", "&#x", "&l", "&amp", "&amp;", "&amp;#",
    "<", "<<", "<<1", "<<1=", "<<1=2", "<<1=2>", "<b", "</", "</b", "[b", "[/", "[url=", "1,", "1{", "1{,", "1,\\",
)  # fmt: skip


@pytest.mark.parametrize("cut", CUT)
def test_an_escape_or_tag_that_ends_with_the_text_takes_nothing_before_it(cut: str) -> None:
    assert written(f"plain words {cut}")[:2] == ["plain", "words"]


def test_a_words_span_is_the_word_as_written_and_arrays_are_read_like_bytes() -> None:
    assert words(PLAIN).hashes.tolist() == split_words(np.frombuffer(PLAIN.encode(), np.uint8)).hashes.tolist()
    text = 'He said: "na&icirc;ve <b>caf\\u00e9</b>" for 1,000 ２５ \u200bcro\u00adwns'
    assert written(text) == ["He", "said", "na&icirc;ve", "caf\\u00e9", "for", "1,000", "２５", "cro\u00adwns"]


def test_signs_are_numbers_which_are_distinguished_from_each_other_and_single_letters() -> None:
    assert len(set(words(" ".join(map(str, range(5000)))).hashes.tolist())) == 5000
    found = is_sign(words("x = 12 cats, é or 中 and 3,000 p.m.").hashes)
    assert "".join("x" if one else "." for one in found) == "xx.x...xxx"


PIECES = st.lists(
    st.sampled_from(
        [
            "a", "Zoë", "12", ",345", "{,}678", ",\\!", " ", "\\", "\\n", "\\u00e9", "\\u", "\\ud83d", "\\ude00", "&", "&amp;",
            "&eacute;", "&#39;", "&#", ";", "[b]", "[url=", "]", "<b>", "</p>", "<", "<<1=2", ">>", ">", "\u0301", "\u200b",
            "東", "🙂", "e", "n", "\n", "½", "ﷺ", "\U000e0041",
        ]
    ),
    max_size=20,
)  # fmt: skip
BYTES = st.lists(st.binary(max_size=12) | PIECES.map(lambda pieces: "".join(pieces[:3]).encode()), max_size=12).map(b"".join)


@settings(max_examples=120, deadline=None)
@given(BYTES)
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


@settings(deadline=None, max_examples=150)
@given(PIECES, PIECES)
def test_two_lines_have_the_words_of_each(first: list[str], second: list[str]) -> None:
    """But for a tag, which may go on in the next line."""
    above, below = "".join(piece for piece in first if "<" not in piece).encode(), "".join(second).encode()
    both, upper, lower = split_words(above + b"\n" + below), split_words(above), split_words(below)
    assert both.hashes.tolist() == [*upper.hashes.tolist(), *lower.hashes.tolist()]
    assert both.starts.tolist() == [*upper.starts.tolist(), *(lower.starts + len(above) + 1).tolist()]
    assert both.ends.tolist() == [*upper.ends.tolist(), *(lower.ends + len(above) + 1).tolist()]


@settings(deadline=None, max_examples=150)
@given(PIECES.map(lambda pieces: "".join(piece for piece in pieces if piece not in ("[url=", "<<1=2"))))
def test_an_escaped_text_has_the_words_of_the_text(text: str) -> None:
    """Whatever it holds, escapes of its own among it; but for tags that a line break ends, which is not seen where it is escaped."""
    assert same(escaped_but_for_letters(text), text)
