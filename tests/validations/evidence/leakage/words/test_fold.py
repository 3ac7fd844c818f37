import unicodedata

import pytest

from phasewise.validations.evidence.leakage import fold
from phasewise.validations.evidence.leakage.fold import DIGIT, DROPPED, KIND_SHIFT, LETTER, SEPARATOR, TABLE_SIZE, WORD, fold_table
from phasewise.validations.evidence.leakage.words import room_for


def codes_of(character: str) -> list[int]:
    code = int(fold_table().codes[ord(character)])
    return [piece for piece in ([code] if code >= 0 else fold_table().expansions[-code].tolist()) if piece != DROPPED]


def spelled(text: str) -> str:
    pieces = [piece for character in text for piece in codes_of(character)]
    return "".join(" " if piece == SEPARATOR else chr(piece & 0xFFFFFF) for piece in pieces)


@pytest.mark.parametrize(("text", "expected"), [
    ("The Quick 4 FOXES", "the quick 4 foxes"), ("café ÉLÈVE Ångström Łódź smørrebrød naïve", "cafe eleve angstrom lodz smorrebrod naive"),
    ("Straße ﬁne ǆ ½ ㎏ ™", "strasse fine dz 1 2 kg tm"), ("ᴡʀᴇɴ ɪꜱ ꜱᴍᴀʟʟ", "wren is small"), ("ѕсаре Аррlе Ноmе", "scape apple home"),
    ("Рrоvе Ηоме", "prove home"), ("ｗｒｅｎ３ ⓦⓡⓔⓝ 𝐰𝐫𝐞𝐧𝟗 𝓌𝓇ℯ𝓃 𝕨𝕣𝕖𝕟", "wren3 wren wren9 wren wren"), ("٣ ३ ３ ³ ₃ ③", "3 3 3 3 3 3"),
    ("z\u200be\u00adr\u2060o\ufeff\u0301", "zero"), ("“it’s” — a_b…", " it s    a b   "), ("🙂\x00\x7f", "   "),
    ("howĠmanyĊclips", "how many clips"),
])  # fmt: skip
def test_a_text_is_spelled_plainly(text: str, expected: str):
    assert spelled(text) == expected


@pytest.mark.parametrize(
    ("characters", "kind"), [("aZßжéㅏ가ा", LETTER), ("07٣３", DIGIT), ("東京々ぬヌ", WORD), (" .,_-$%&<\u3000\u2028\ud800", SEPARATOR)]
)
def test_kinds_of_characters(characters: str, kind: int):
    assert {piece >> KIND_SHIFT for character in characters for piece in codes_of(character)} == {kind}


def test_compatibility_forms_of_letters_and_digits_are_plain():
    for point in range(0x80, TABLE_SIZE):
        plain = unicodedata.normalize("NFKC", chr(point))
        if len(plain) == 1 and plain.isascii() and plain.isalnum():
            assert spelled(chr(point)) == plain.lower(), f"U+{point:04X}"


def test_accents_do_not_count_composed_or_apart():
    for point in (*range(0xC0, 0x250), *range(0x1E00, 0x1F00)):
        apart = unicodedata.normalize("NFD", chr(point))
        if apart[0].isascii() and point not in fold.BYTE_LEVEL_SPACES:
            assert spelled(chr(point)) == spelled(apart) == apart[0].lower(), f"U+{point:04X}"


def test_what_came_out_stays_what_it_is():
    table = fold_table()
    for piece in {*table.codes[table.codes > DROPPED].tolist(), *table.expansions[table.expansions > DROPPED].tolist()}:
        if (point := piece & 0xFFFFFF) < TABLE_SIZE:
            assert table.codes[point] == piece, f"U+{point:04X}"


def test_there_is_room_for_the_words_of_any_character():
    for point in (*range(0xD800), *range(0xE000, TABLE_SIZE)):
        kinds = [piece >> KIND_SHIFT for piece in codes_of(chr(point))]
        num_words = sum(kind != 0 and (kind == WORD or kind != before) for before, kind in zip([0, *kinds], kinds, strict=False))
        assert len(room_for(1000 * len(chr(point).encode())).hashes) >= 1000 * num_words, f"U+{point:04X}"
