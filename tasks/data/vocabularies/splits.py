"""How a text is cut into the pieces that byte-level BPE merges within. No token reaches over a cut.

Every cut is a pattern of the `tokenizers` library, so `tokenizer.json` says all of it, and whoever reads that file cuts alike.
"""

from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer

SplitName = Literal["trinity", "llama3", "gpt2", "llama2", "neox"]
SPLITS: tuple[SplitName, ...] = get_args(SplitName)

MAX_DIGITS = 510
"""A longer run of digits is cut into runs of so many, from its beginning. It is divisible by three."""
DIGITS = (
    rf"\d{{1,{MAX_DIGITS}}}",  # a run is apart from what is around it
    r"\A\d{1,2}(?=(?:\d{3})+\z)",  # what does not fill a group of three comes first
    r"\d{3}",
)
"""Groups of three that begin at the right: 1|234|567. A pattern is put to each piece that the one before it made. A look ahead has at
most `MAX_DIGITS` digits before it and is tried once a piece, so the time is proportional to the length (Trinity Large report, 2.1.1)."""

SCRIPTS = (
    "\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u2f00-\u2fdf"  # Chinese characters, and their radicals
    "\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f"  # Japanese syllables
    "\u0e00-\u0e7f\u0e80-\u0eff\u1780-\u17ff"  # Thai, Lao, Khmer
    "\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff"  # Myanmar
    "\uac00-\ud7af\u1100-\u11ff"  # Korean
)
"""Scripts without spaces between words, as a set of characters (Trinity Large report, 2.1.1)."""

ASCII_MARKS = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
WHITE_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
WORDS = rf"{ASCII_MARKS}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|{WHITE_SPACE}"
"""DeepSeek V3's: a mark with the letters after it; letters with what is before them; marks; white space."""

LLAMA3 = rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{WHITE_SPACE}"
"""Llama 3's: groups of three digits begin at the left: 123|456|7."""

LLAMA2 = (
    r"[\p{N}\r\n\t]",  # a digit, a line end and a tab are tokens of their own
    r" ?[\p{L}\p{M}]+| ?[^\s\p{L}\p{M}\p{N}]+| +(?= \S)| +",
)
"""What Llama 2's vocabulary can have: no token has letters and marks in it, or a digit and anything else, and a space is the beginning of
the token that follows it, or in a run of spaces. SentencePiece has these rules when it chooses entries, and no pattern when it cuts."""

NEOX_SPACES = r" {2,24}"
"""GPT-NeoX has an entry for each run of 2 to 24 spaces, which is found before anything else; the rest is cut as by GPT-2."""

PATTERNS: dict[SplitName, tuple[str, ...]] = {
    "trinity": (*DIGITS, f"[{SCRIPTS}]+", WORDS),
    "llama3": (LLAMA3,),
    "gpt2": (),
    "llama2": LLAMA2,
    "neox": (NEOX_SPACES,),
}
"""Before bytes; those that have GPT-2's have it after these."""


def build_pre_tokenizer(name: SplitName) -> "PreTokenizer":
    """Cuts a text, and writes the bytes of each piece as the characters of byte-level BPE.

    Args:
        name: `trinity` has the three stages of the Trinity Large report, 2.1.1: digits, scripts, words. `llama3` has one pattern. `gpt2`
            is the one that a recipe's own tokenizer has. `neox` has that one, and runs of spaces apart. `llama2` has the rules of Llama 2.
    """
    from tokenizers import Regex, pre_tokenizers

    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PATTERNS[name]]
    has_pattern_of_its_own = name in ("gpt2", "neox")
    return pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=has_pattern_of_its_own)])
