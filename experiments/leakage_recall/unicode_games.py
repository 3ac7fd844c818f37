"""A text in different code points."""

import re
import unicodedata
from random import Random

# Look-alikes of Latin letters in Cyrillic, Greek, Armenian and phonetic writing.
LOOK_ALIKES = {
    "a": "аα", "c": "сϲ", "d": "ԁ", "e": "е", "g": "ɡ", "h": "һ", "i": "іι", "j": "ј", "k": "κк", "l": "ӏ", "o": "оο", "p": "рρ", "q": "ԛ",
    "s": "ѕ", "u": "υ", "v": "νѵ", "w": "ԝ", "x": "хχ", "y": "уγ", "A": "АΑ", "B": "ВΒ", "C": "С", "E": "ЕΕ", "H": "НΗ", "I": "ІΙ",
    "J": "Ј", "K": "КΚ", "M": "МΜ", "N": "Ν", "O": "ОΟ", "P": "РΡ", "S": "Ѕ", "T": "ТΤ", "X": "ХΧ", "Y": "ҮΥ", "Z": "Ζ",
}  # fmt: skip
SMALL_CAPITALS = dict(zip("abcdefghijklmnoprstuvwyz", "ᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘʀꜱᴛᴜᴠᴡʏᴢ", strict=True))
INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff\u00ad\u200e\u200f\u202c\u180e"
SPACES = "\u00a0\u2009\u202f\u2002\u2003\u3000\u205f"
COMBINING = "\u0300\u0301\u0308\u0323\u0331\u0336\u20dd"
LIGATURES = {"ffi": "ﬃ", "ffl": "ﬄ", "ff": "ﬀ", "fi": "ﬁ", "fl": "ﬂ", "st": "ﬆ"}
TYPOGRAPHY = {"--": "—", " - ": " – ", "...": "…", "-": "‑"}


def decomposed(text: str, _rng: Random) -> str:
    """NFD."""
    return unicodedata.normalize("NFD", text)


def compatibility_composed(text: str, _rng: Random) -> str:
    """NFKC."""
    return unicodedata.normalize("NFKC", text)


def fullwidth(text: str, _rng: Random) -> str:
    """Fullwidth letters, digits and punctuation."""
    return text.translate({code: code + 0xFEE0 for code in range(0x21, 0x7F)})


def mathematical_bold(text: str, _rng: Random) -> str:
    """Mathematical bold letters and digits."""
    return _shifted(text, upper=0x1D400, lower=0x1D41A, digits=0x1D7CE)


def mathematical_sans(text: str, _rng: Random) -> str:
    """Mathematical sans-serif letters and double-struck digits."""
    return _shifted(text, upper=0x1D5A0, lower=0x1D5BA, digits=0x1D7D8)


def circled(text: str, _rng: Random) -> str:
    """Letters in circles."""
    return _shifted(text, upper=0x24B6, lower=0x24D0, digits=ord("0"))


def typographic(text: str, _rng: Random) -> str:
    for plain, fine in TYPOGRAPHY.items():
        text = text.replace(plain, fine)
    text = re.sub(r'"(?=\w)', "“", text).replace('"', "”")
    return re.sub(r"'(?=\w)(?<!\w')", "‘", text).replace("'", "’")


def ascii_only(text: str, _rng: Random) -> str:
    for fine, plain in {"’": "'", "‘": "'", "“": '"', "”": '"', "–": "-", "—": "-", "…": "..."}.items():
        text = text.replace(fine, plain)
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()


def other_spaces(text: str, rng: Random) -> str:
    """No-break, thin and wide spaces."""
    return re.sub(" ", lambda _: rng.choice(SPACES), text)


def invisible_inside_words(text: str, rng: Random) -> str:
    """Zero-width characters and soft hyphens inside one word in three."""
    return re.sub(r"\w{3,}", lambda word: _insert(word.group(), rng.choice(INVISIBLE), rng) if rng.random() < 0.35 else word.group(), text)


def invisible_everywhere(text: str, rng: Random) -> str:
    """A zero-width character after every character."""
    return "".join(character + rng.choice(INVISIBLE) for character in text)


def homoglyphs(text: str, rng: Random) -> str:
    return _look_alikes(text, rng, 0.3)


def all_homoglyphs(text: str, rng: Random) -> str:
    return _look_alikes(text, rng, 1.0)


def combining_marks(text: str, rng: Random) -> str:
    return re.sub(r"[A-Za-z]", lambda found: found.group() + (rng.choice(COMBINING) if rng.random() < 0.33 else ""), text)


def accented(text: str, rng: Random) -> str:
    """Precomposed letters with accents for one vowel in two."""
    marked = {
        vowel: unicodedata.normalize("NFC", vowel + mark)
        for vowel, mark in zip("aeiouAEIOU", "\u0301\u0300\u0308\u0302\u0301" * 2, strict=True)
    }
    return re.sub("[aeiouAEIOU]", lambda found: marked[found.group()] if rng.random() < 0.5 else found.group(), text)


def struck_through(text: str, _rng: Random) -> str:
    """A combining stroke through every letter."""
    return re.sub(r"\w", lambda found: found.group() + "\u0336", text)


def small_capitals(text: str, _rng: Random) -> str:
    """Small capitals for the small letters."""
    return "".join(SMALL_CAPITALS.get(character, character) for character in text)


def ligatures(text: str, _rng: Random) -> str:
    for letters, ligature in LIGATURES.items():
        text = text.replace(letters, ligature)
    return text


def arabic_indic_digits(text: str, _rng: Random) -> str:
    """Arabic-Indic digits."""
    return text.translate({ord("0") + digit: 0x660 + digit for digit in range(10)})


def mojibake(text: str, _rng: Random) -> str:
    return text.encode().decode("cp1252", errors="replace")


def _shifted(text: str, *, upper: int, lower: int, digits: int) -> str:
    table = {ord("A") + i: upper + i for i in range(26)} | {ord("a") + i: lower + i for i in range(26)}
    return text.translate(table | {ord("0") + i: digits + i for i in range(10)})


def _look_alikes(text: str, rng: Random, share: float) -> str:
    return "".join(rng.choice(LOOK_ALIKES[letter]) if letter in LOOK_ALIKES and rng.random() < share else letter for letter in text)


def _insert(word: str, character: str, rng: Random) -> str:
    place = rng.randrange(1, len(word))
    return word[:place] + character + word[place:]
