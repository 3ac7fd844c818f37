"""Named formats of planted items: the visible parts, the edits, and the position."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Literal

from experiments.leakage_recall import edits, escapes, lines, plants, unicode_games
from experiments.leakage_recall.plants import Layout
from experiments.leakage_recall.views import MIN_WORDS, PART, QUESTION, VIEWS, WHOLE, WITH_NUMERALS, View
from phasewise.validations.evidence.leakage.items import BenchmarkItem

Kind = Literal["reformatting", "edits", "short", "beyond"]
Dress = Callable[[str, Random], str]
TARGETS: dict[Kind, float | None] = {"reformatting": 0.99, "edits": 0.95, "short": None, "beyond": None}
PACKED = 50


def as_it_is(text: str, _rng: Random) -> str:
    return text


@dataclass(frozen=True)
class Format:
    name: str
    kind: Kind
    view: View = WHOLE
    dress: Dress = as_it_is
    layout: Layout = plants.among_paragraphs
    cover: Dress = as_it_is
    pack: int = 1

    @property
    def target(self) -> float | None:
        return TARGETS[self.kind]

    def suits(self, item: BenchmarkItem) -> bool:
        return self.view.can_show(item) and (self.view.num_words(item) >= MIN_WORDS) != (self.kind == "short")

    def text(self, item: BenchmarkItem, rng: Random) -> str:
        return self.dress(self.view.render(item, rng), rng)


DRESSES: dict[Kind, dict[str, Dress]] = {
    "reformatting": {
        "one line": lines.one_line,
        "a word a line": lines.word_a_line,
        "a sentence a line": lines.sentence_a_line,
        "runs of spaces and tabs": lines.wide_spaces,
        "carriage returns and blank lines": lines.blank_lines,
        "indented": lines.indented,
        "patch lines": lines.difference,
        "line numbers": lines.numbered_lines,
        "spaces around punctuation": lines.spaced_punctuation,
        "upper case": lines.upper,
        "lower case": lines.lower,
        "title case": lines.title_case,
        "random case": lines.random_case,
        "NFD": unicode_games.decomposed,
        "NFKC": unicode_games.compatibility_composed,
        "fullwidth letters": unicode_games.fullwidth,
        "mathematical bold letters": unicode_games.mathematical_bold,
        "mathematical sans-serif letters": unicode_games.mathematical_sans,
        "circled letters": unicode_games.circled,
        "curly quotes, dashes, ellipsis": unicode_games.typographic,
        "ASCII only": unicode_games.ascii_only,
        "no-break and thin spaces": unicode_games.other_spaces,
        "zero-width characters and soft hyphens inside words": unicode_games.invisible_inside_words,
        "zero-width characters everywhere": unicode_games.invisible_everywhere,
        "combining marks": unicode_games.combining_marks,
        "accents on vowels": unicode_games.accented,
        "struck through": unicode_games.struck_through,
        "small capitals": unicode_games.small_capitals,
        "ligatures": unicode_games.ligatures,
        "Arabic-Indic digits": unicode_games.arabic_indic_digits,
        "tags around one word in five": escapes.html_inline,
        "a span around every word": escapes.html_span_around_every_word,
        "HTML list": escapes.html_list,
        "bold Markdown words": escapes.markdown_bold,
        "Markdown bullets": escapes.markdown_bullets,
        "Markdown fence": escapes.markdown_fence,
        "Markdown escapes": escapes.markdown_escaped,
        "LaTeX escapes": escapes.latex_escaped,
        "wiki markup": escapes.wiki_markup,
        "forum markup": escapes.forum_markup,
        "thousands separators changed": edits.change_thousands,
        "punctuation replaced by spaces": edits.blank_punctuation,
        "Python escapes": escapes.python_escapes,
        "SQL escapes": escapes.sql_escaped,
    },
    "edits": {
        **{name: partial(edits.edit_words, edit=edit) for name, edit in edits.EDITS.items()},
        "numbers below 100 in words": edits.numerals_as_words,
        "punctuation deleted": edits.delete_punctuation,
        "no space after punctuation": lines.closed_punctuation,
        "homoglyphs for 30 % of the letters": unicode_games.homoglyphs,
        "homoglyphs for all letters": unicode_games.all_homoglyphs,
        "hyphenated at line ends": lines.hyphenated,
        "line numbers every 60 columns": lines.numbered_wrapped_lines,
        "UTF-8 read as Windows-1252": unicode_games.mojibake,
        "LaTeX list": escapes.latex_list,
        "Markdown headings": escapes.markdown_headings,
    },
    "beyond": {
        "time stamps every 80 columns": lines.log_lines,
        "subtitles": lines.subtitles,
        "digits for letters": lines.leet,
        "letters spaced out": lines.spaced_letters,
        "underscores for spaces": lines.underscores,
        "words joined": lines.joined_words,
        "without its last fifth": lines.without_last_fifth,
        "without its first fifth": lines.without_first_fifth,
    },
}
COVERS: dict[str, Dress] = {
    "re-wrapped at 40 columns": lines.wrapped_40,
    "re-wrapped at 60 columns": lines.wrapped_60,
    "re-wrapped at 100 columns": lines.wrapped_100,
    "quoted lines": lines.quoted,
    "comment lines": lines.commented,
    "JSON-escaped": escapes.json_ascii,
    "JSON-escaped, UTF-8": escapes.json_unicode,
    "JSON-escaped twice": escapes.json_twice_ascii,
    "JSON-escaped twice, UTF-8": escapes.json_twice_unicode,
    "HTML-escaped": escapes.html_escaped,
    "HTML-escaped twice": escapes.html_escaped_twice,
    "numeric entities": escapes.numeric_entities,
    "numeric entities everywhere": escapes.numeric_entities_everywhere,
    "HTML paragraphs": escapes.html_paragraphs,
    "HTML page": escapes.html_page,
    "XML with character data": escapes.xml_with_character_data,
    "percent-encoded": escapes.percent_encoded,
    "a byte-level tokenizer's letters": escapes.byte_level,
}
LAYOUTS: dict[str, Layout] = {
    "nothing around it": plants.alone,
    "at the start of a document": plants.at_the_start,
    "at the end of a document": plants.at_the_end,
    "inside a sentence": plants.inside_a_sentence,
    "split over two documents": plants.over_two_documents,
    "split over two documents, prose before and after": plants.over_two_documents_with_prose_around,
    "split over two documents, prose between": plants.over_two_documents_with_prose_between,
    "three copies": plants.three_times,
}
SHOWN: dict[str, View] = {"whole": WHOLE, "a part alone": PART}


def build_formats() -> dict[str, Format]:
    formats = [Format(name, "reformatting", view) for name, view in VIEWS.items()]
    for shown, view in SHOWN.items():
        formats += [Format(f"{name}, {shown}", "reformatting", view, layout=layout) for name, layout in LAYOUTS.items()]
        formats += [Format(f"{PACKED} items in a document, {shown}", "reformatting", view, pack=PACKED)]
        formats += [Format(f"{name}, {shown}", "reformatting", view, cover=cover) for name, cover in COVERS.items()]
        formats += [Format(f"{name}, {shown}", kind, view, dress) for kind, named in DRESSES.items() for name, dress in named.items()]
        formats += [Format(f"split over three documents, {shown}", "beyond", view, layout=plants.over_three_documents)]
    formats += [Format("in a long document, a part alone", "reformatting", PART, layout=plants.in_a_long_document)]
    formats += [Format("questions with two numbers below 100, in words", "edits", WITH_NUMERALS, edits.numerals_as_words)]
    short = {"lm-eval's format": WHOLE, **{name: VIEWS[name] for name in ("cloze: question and gold answer", "choices in one line")}}
    formats += [Format(f"short items, {name}", "short", view) for name, view in short.items()]
    formats += [Format("short items, question alone", "short", QUESTION)]
    return {found.name: found for found in formats}


FORMATS = build_formats()
