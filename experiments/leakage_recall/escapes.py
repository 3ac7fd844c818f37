"""The same text escaped, quoted or marked up."""

import html
import json
import re
import urllib.parse
from random import Random

LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\~{}",
    "^": r"\^{}",
}


def json_ascii(text: str, _rng: Random) -> str:
    return json.dumps(text)[1:-1]


def json_unicode(text: str, _rng: Random) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def json_twice_ascii(text: str, rng: Random) -> str:
    """A JSON string inside a JSON string, in ASCII."""
    return json_ascii(json.dumps(text), rng)


def json_twice_unicode(text: str, rng: Random) -> str:
    """A JSON string inside a JSON string, as UTF-8."""
    return json_unicode(json.dumps(text, ensure_ascii=False), rng)


def python_escapes(text: str, _rng: Random) -> str:
    return ascii(text)


def html_escaped(text: str, _rng: Random) -> str:
    """Named entities."""
    return html.escape(text)


def html_escaped_twice(text: str, _rng: Random) -> str:
    """Entities of entities."""
    return html.escape(html.escape(text))


def numeric_entities(text: str, rng: Random) -> str:
    """Numbers, decimal or hexadecimal, for everything but letters, digits, spaces."""
    pattern = rng.choice(("&#{0};", "&#x{0:x};"))
    return re.sub(r"[^A-Za-z0-9\s]", lambda found: pattern.format(ord(found.group())), text)


def numeric_entities_everywhere(text: str, _rng: Random) -> str:
    return re.sub(r"\S", lambda found: f"&#{ord(found.group())};", text)


def html_paragraphs(text: str, _rng: Random) -> str:
    blocks = html.escape(text).split("\n\n")
    return "\n".join(f'<p class="body">{block.replace(chr(10), "<br/>")}</p>' for block in blocks)


def html_list(text: str, _rng: Random) -> str:
    """Lines as points of a list, without a space between the tags."""
    return "<ul>" + "".join(f"<li>{html.escape(line)}</li>" for line in text.splitlines() if line.strip()) + "</ul>"


def html_inline(text: str, rng: Random) -> str:
    """One word in five in bold, in a link or in a span."""
    tags = (
        ("<b>", "</b>"),
        ('<a href="https://example.org/page?id=3&amp;x=1">', "</a>"),
        ('<span style="color: red">', "</span>"),
        ("<i>", "</i>"),
    )
    return _around_words(html.escape(text), rng, tags, one_in=5)


def html_span_around_every_word(text: str, rng: Random) -> str:
    """As a page with an identifier for every word."""
    return _around_words(html.escape(text), rng, (('<span class="w" id="w7">', "</span>"),), one_in=1)


def html_page(text: str, rng: Random) -> str:
    """A page with a header, a style and a script around it."""
    head = "<!DOCTYPE html>\n<html><head><title>Page</title><style>p { margin: 0 auto; }</style></head>\n<body>\n"
    return f"{head}{html_paragraphs(text, rng)}\n<script>var x = 1;</script></body></html>"


def xml_with_character_data(text: str, _rng: Random) -> str:
    """Unescaped inside an element."""
    return f'<entry id="17"><text><![CDATA[{text}]]></text></entry>'


def percent_encoded(text: str, rng: Random) -> str:
    return rng.choice((urllib.parse.quote, urllib.parse.quote_plus))(text)


def byte_level(text: str, _rng: Random) -> str:
    return text.replace(" ", "\u0120").replace("\n", "\u010a")


def latex_escaped(text: str, _rng: Random) -> str:
    """LaTeX's special characters escaped."""
    return "".join(LATEX.get(character, character) for character in text)


def latex_list(text: str, rng: Random) -> str:
    marked = _around_words(text, rng, (("\\emph{", "}"), ("\\textbf{", "}")), one_in=8)
    return "\\begin{enumerate}\n" + "\n".join(f"  \\item {line}" for line in marked.splitlines()) + "\n\\end{enumerate}"


def sql_escaped(text: str, _rng: Random) -> str:
    """A string of an insert statement."""
    doubled = text.replace("'", "''")
    return f"INSERT INTO posts (id, body) VALUES (42, '{doubled}');"


def markdown_bold(text: str, rng: Random) -> str:
    """One word in five in bold, italic or code."""
    return _around_words(text, rng, (("**", "**"), ("*", "*"), ("_", "_"), ("`", "`")), one_in=5)


def markdown_bullets(text: str, _rng: Random) -> str:
    return "\n".join(f"* {sentence}" for sentence in re.split(r"(?<=[.?!])\s+|\n+", text) if sentence)


def markdown_fence(text: str, _rng: Random) -> str:
    """A fenced block."""
    return f"```text\n{text}\n```"


def markdown_escaped(text: str, _rng: Random) -> str:
    return re.sub(r"([\\`*_{}\[\]()#+.!|<>~-])", r"\\\1", text)


def markdown_headings(text: str, _rng: Random) -> str:
    """A heading above every line."""
    return "\n\n".join(f"## Part {number}\n\n{line}" for number, line in enumerate(filter(str.strip, text.splitlines()), start=1))


def wiki_markup(text: str, rng: Random) -> str:
    return _around_words(text, rng, (("'''", "'''"), ("[[", "]]"), ("''", "''")), one_in=6)


def forum_markup(text: str, rng: Random) -> str:
    return "[quote=anna]" + _around_words(text, rng, (("[b]", "[/b]"), ("[i]", "[/i]")), one_in=6) + "[/quote]"


def _around_words(text: str, rng: Random, marks: tuple[tuple[str, str], ...], *, one_in: int) -> str:
    def mark(found: re.Match[str]) -> str:
        before, after = rng.choice(marks)
        return f"{before}{found.group()}{after}" if rng.random() * one_in < 1 else found.group()

    return re.sub(r"(?<![\w&#;])[A-Za-z]+(?![\w;])", mark, text)
