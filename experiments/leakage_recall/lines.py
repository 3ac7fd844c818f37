"""Variants of a text with different spaces, line breaks, letter case and line prefixes."""

import re
import textwrap
from random import Random


def wrap(text: str, width: int) -> str:
    return "\n\n".join(textwrap.fill(block, width, break_long_words=False) for block in re.split(r"\n\s*\n", text))


def wrapped_40(text: str, _rng: Random) -> str:
    return wrap(text, 40)


def wrapped_60(text: str, _rng: Random) -> str:
    return wrap(text, 60)


def wrapped_100(text: str, _rng: Random) -> str:
    return wrap(text, 100)


def quoted(text: str, rng: Random) -> str:
    """An answer to an answer to a letter."""
    mark = rng.choice(("> ", ">> ", "> > ", "| "))
    return textwrap.indent(wrap(text, 66), mark, lambda _: True)


def commented(text: str, rng: Random) -> str:
    """Comment lines of a program."""
    mark = rng.choice(("# ", "// ", " * ", "-- ", ";; ", "% "))
    return textwrap.indent(wrap(text, 72), mark, lambda _: True)


def difference(text: str, rng: Random) -> str:
    """Lines of a patch."""
    return textwrap.indent(text, rng.choice("+-"), lambda _: True)


def indented(text: str, _rng: Random) -> str:
    """Twelve spaces in front of every line."""
    return textwrap.indent(text, " " * 12)


def numbered_lines(text: str, rng: Random) -> str:
    pattern = rng.choice(("{:>4} {}", "{}: {}", "{:03d}| {}", "L{} {}"))
    return "\n".join(pattern.format(number, line) for number, line in enumerate(text.splitlines(), start=rng.randrange(1, 900)))


def numbered_wrapped_lines(text: str, rng: Random) -> str:
    """A line number in front of every 60 columns."""
    return numbered_lines(wrap(text, 60), rng)


def hyphenated(text: str, rng: Random) -> str:
    """Lines of 60 columns, as out of a PDF: half of them end inside a word, with a hyphen."""
    lines, line = list[str](), ""
    for word in text.split():
        if len(line) + len(word) > 60 and word.isalpha() and len(word) > 5 and rng.random() < 0.5:
            place = rng.randrange(2, len(word) - 2)
            lines.append(f"{line} {word[:place]}-")
            line = word[place:]
        elif len(line) + len(word) > 60:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return "\n".join([*lines, line])


def one_line(text: str, _rng: Random) -> str:
    return " ".join(text.split())


def word_a_line(text: str, _rng: Random) -> str:
    return "\n".join(text.split())


def sentence_a_line(text: str, _rng: Random) -> str:
    """A blank line after every sentence."""
    return re.sub(r"(?<=[.?!]) +", "\n\n", text)


def wide_spaces(text: str, rng: Random) -> str:
    """Runs of two to five spaces, and tabs."""
    return re.sub(" +", lambda _: rng.choice(("  ", "   ", "     ", "\t")), text)


def blank_lines(text: str, _rng: Random) -> str:
    """Carriage returns, and blank lines between lines."""
    return text.replace("\n", "\r\n \r\n")


def spaced_punctuation(text: str, _rng: Random) -> str:
    return re.sub(r"([^\w\s'’])", r" \1 ", text)


def closed_punctuation(text: str, _rng: Random) -> str:
    """No space after punctuation."""
    return re.sub(r"(?<=[.,;:?!)]) +", "", text)


def spaced_letters(text: str, _rng: Random) -> str:
    return " ".join(text.replace(" ", "  "))


def underscores(text: str, rng: Random) -> str:
    return text.replace(" ", rng.choice("_+-/"))


def joined_words(text: str, _rng: Random) -> str:
    """No spaces, every word with a capital."""
    return "".join(word[:1].upper() + word[1:] for word in text.split())


def upper(text: str, _rng: Random) -> str:
    return text.upper()


def lower(text: str, _rng: Random) -> str:
    return text.lower()


def title_case(text: str, _rng: Random) -> str:
    return text.title()


def random_case(text: str, rng: Random) -> str:
    """Capitals at random."""
    return "".join(character.upper() if rng.random() < 0.5 else character.lower() for character in text)


def leet(text: str, _rng: Random) -> str:
    return text.translate(str.maketrans("aeios", "43105"))


def subtitles(text: str, _rng: Random) -> str:
    """Six words at a time between two times."""
    parts = text.split()
    pieces = [" ".join(parts[start : start + 6]) for start in range(0, len(parts), 6)]
    return "\n\n".join(f"{i}\n00:00:{i % 60:02d},000 --> 00:00:{i % 60:02d},900\n{piece}" for i, piece in enumerate(pieces, start=1))


def log_lines(text: str, _rng: Random) -> str:
    """A time stamp in front of every 80 columns."""
    return "\n".join(f"2024-03-05 10:22:{i % 60:02d} INFO {line}" for i, line in enumerate(wrap(text, 80).splitlines()))


def without_last_fifth(text: str, _rng: Random) -> str:
    found = list(re.finditer(r"\S+", text))
    return text[: found[max(0, len(found) * 4 // 5 - 1)].end()] if found else text


def without_first_fifth(text: str, _rng: Random) -> str:
    found = list(re.finditer(r"\S+", text))
    return text[found[len(found) // 5].start() :] if found else text
