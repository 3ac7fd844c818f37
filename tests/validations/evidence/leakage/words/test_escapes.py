import html
import json
import urllib.parse
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasewise.validations.evidence.leakage.words import split_words


def hashes(text: str) -> list[int]:
    return split_words(text.encode()).hashes.tolist()


def written(text: bytes) -> list[str]:
    words = split_words(text)
    return [text[start:end].decode() for start, end in zip(words.starts.tolist(), words.ends.tolist(), strict=True)]


def escaped(text: str) -> str:
    return json.dumps(text)[1:-1]


def escaped_but_for_letters(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


WILD = (
    'Zoë\'s café sold 1,234,567 clips\n\tat $0.50 each; "half of \\frac{3}{4} \\neq \\text{nothing}", & then <early> — naïve… if x < y or'
    "\r\n10,\\!000 > 9{,}999: <<16-7=9>>9 🙂 東京 [b]bold[/b] <p class='x'>C:\\users\\next</p> cout << a; b >> c"
)
DRESSES: dict[str, Callable[[str], str]] = {
    "JSON": escaped,
    "JSON with letters": escaped_but_for_letters,
    "JSON twice": lambda text: escaped(escaped(text)),
    "JSON with letters twice": lambda text: escaped_but_for_letters(escaped_but_for_letters(text)),
    "HTML": html.escape,
    "HTML twice": lambda text: html.escape(html.escape(text)),
    "HTML in JSON": lambda text: escaped(html.escape(text)),
    "JSON in HTML": lambda text: html.escape(escaped(text)),
    "JSON for a page": lambda text: escaped(text).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"),
    "numeric entities": lambda text: html.escape(text).encode("ascii", "xmlcharrefreplace").decode(),
    "numeric entities twice": lambda text: html.escape(html.escape(text).encode("ascii", "xmlcharrefreplace").decode()),
}


@pytest.mark.parametrize("dress", DRESSES)
def test_a_text_that_has_everything_has_the_same_words(dress: str):
    assert hashes(DRESSES[dress](WILD)) == hashes(WILD)


@pytest.mark.parametrize("dress", [urllib.parse.quote, urllib.parse.quote_plus])
def test_a_text_in_an_address_has_the_same_words(dress: Callable[[str], str]):
    text = 'Zoë\'s café sold 1,234,567 clips\n\tat $0.50 each; "half", & 20% then <b>bold</b> <<16-7=9>>9 — naïve… 🙂 東京 x < y'
    assert hashes(dress(text)) == hashes(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"cout << a == b << c; cin >> d >> e", "cout a b c cin d e"),
        (b'out << "n=" << n; in >> 2 >> m', "out n n in 2 m"),
        (b"<<16-7\n=9>> << 1 = 2 >>3", "16 7 9 3"),
        (b"x <y> z <early> <1>", "x y z early 1"),
        (b"1234,56 1,2345 12, 345 1,234,56", "1234 56 1 2345 12 345 1,234 56"),
        (b"&#x110000; &#; &# x &#99999999;", "x 110000 x 99999999"),
        (b"a[0] b[max] c[k=2]", "a 0 b max c k 2"),
        (b"end \\\\\\", "end"),
        (b"50% of %zz %2", "50 of zz 2"),
        (b"caf%C3%A9s na%c3 x%80y 1%2C000", "caf%C3%A9s na x y 1%2C000"),
        (b"un&shy;seen", "un&shy;seen"),
        (b"\\u12 \\x4 \\ud83d", "u 12 x 4"),
        (b"a \\ud83d\\u", "a u"),
        (b"&am &amp", "am amp"),
        (b"&#12", "12"),
        (b"a </", "a"),
        (b"a <b", "a b"),
        (b"a <<1=2>", "a 1 2"),
        (b"[url=x", "url x"),
        (b"1{,", "1"),
        (b"1,\\!", "1"),
        (b"1,\\", "1"),
        (b"caf\xe2\x82", "caf"),
        (b"ab\xed\xa0\x80cd \xf4\x90\x80\x80x \xc3(", "ab cd x"),
    ],
)
def test_what_is_no_escape_or_ends_too_early(text: bytes, expected: str):
    assert written(text) == expected.split()


PIECES = st.lists(
    st.sampled_from(
        [
            "a", "Zoë", "12", ",345", "{,}678", ",\\!", " ", "\\", "\\n", "\\u00e9", "\\u", "\\ud83d", "\\ude00", "&", "&amp;",
            "&eacute;", "&#39;", "&#", ";", "[b]", "[url=", "]", "<b>", "</p>", "<", "<<1=2", ">>", ">", "\u0301", "\u200b",
            "東", "🙂", "e", "n", "\n", "½",
        ]
    ),
    max_size=20,
)  # fmt: skip


@settings(deadline=None, max_examples=150)
@given(PIECES, PIECES)
def test_two_lines_have_the_words_of_each(first: list[str], second: list[str]):
    """But for a tag, which may go on in the next line."""
    above, below = "".join(piece for piece in first if "<" not in piece).encode(), "".join(second).encode()
    words, upper, lower = split_words(above + b"\n" + below), split_words(above), split_words(below)
    assert words.hashes.tolist() == [*upper.hashes.tolist(), *lower.hashes.tolist()]
    assert words.starts.tolist() == [*upper.starts.tolist(), *(lower.starts + len(above) + 1).tolist()]
    assert words.ends.tolist() == [*upper.ends.tolist(), *(lower.ends + len(above) + 1).tolist()]


@settings(deadline=None, max_examples=150)
@given(PIECES.map(lambda pieces: "".join(piece for piece in pieces if piece not in ("[url=", "<<1=2"))))
def test_an_escaped_text_has_the_words_of_the_text(text: str):
    """Whatever it holds, escapes of its own among it; but for tags that a line break ends, which is not seen where it is escaped."""
    assert hashes(escaped_but_for_letters(text)) == hashes(text)
