"""How every text is normalised before it is compared, split and tokenized."""

import re
import sys
import unicodedata

from phasewise.tasks.data.source import Normalization
from phasewise.trainer.base.code_digest import code_digest

LINE_END = re.compile(r"(\r\n|\r|\n)")


def normalize(text: str, how: Normalization) -> str:
    """Unicode's composed form, plain line ends, and no spaces and tabs at the ends of lines, as far as each is wished.

    A second time changes nothing.
    """
    if how.unicode == "NFC" and not text.isascii():
        text = unicodedata.normalize("NFC", text)
    if how.line_ends == "lf":
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if how.trailing_spaces == "strip":  # line by line: a pattern of spaces before an end takes quadratic time on a long run of spaces
        text = "".join(part.rstrip(" \t") for part in LINE_END.split(text))
    return text


NORMALIZER = f"nfc-lf-2+{code_digest(sys.modules[__name__])}+unicode-{unicodedata.unidata_version}"
"""Version of the code and of the Unicode tables that made a text even."""
