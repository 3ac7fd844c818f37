import random
from functools import cache

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from phasewise.validations.evidence.leakage.detokenize import build_detokenizer

TEXTS = (
    "Seven brown wrens built nests beneath the lighthouse.",
    "Žluťoučký kůň úpěl ďábelské ódy – naïve café",
    "smile 😀 family 👩‍👩‍👧 flag 🇨🇿 math 𝒜𝟚",
    "中文 かな 한국어 العربية",
    "tabs\tand\r\nlines\n\n  spaces   \u00a0\u200b\u00ad\x00\x7f",
    "def f(x):\n    return x ** 2  # <<1+1=2>>",
    "",
)
SPECIAL = ("<|begin|>", "<|end|>")


@cache
def byte_level(sequence: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel()]) if sequence else decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=[*SPECIAL], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS * 4, trainer)
    tokenizer.add_special_tokens(["<|pad|>"])
    tokenizer.add_tokens([AddedToken("[tag]", special=False)])
    return tokenizer


def decoded(tokenizer: Tokenizer, ids: list[int]) -> bytes:
    return tokenizer.decode(ids, skip_special_tokens=False).encode()


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("kind", [np.uint16, np.uint32, np.int64])
def test_tokens_give_the_bytes_of_the_tokenizer(kind: type[np.generic], sequence: bool) -> None:
    tokenizer = byte_level(sequence)
    detokenize = build_detokenizer(tokenizer)
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        assert detokenize(np.array(ids, kind)) == decoded(tokenizer, ids) == text.encode()


def test_special_tokens_part_words_and_added_words_stay_as_written() -> None:
    tokenizer = Tokenizer.from_str(byte_level().to_str())
    tokenizer.add_tokens([AddedToken("[výraz]", special=False)])
    ids = tokenizer.encode(f"<|begin|>one [tag] [výraz] two<|end|><|pad|>{TEXTS[2]}<|end|>").ids
    assert {tokenizer.token_to_id(name) for name in (*SPECIAL, "<|pad|>", "[tag]", "[výraz]")} <= set(ids)
    assert build_detokenizer(tokenizer)(np.array(ids)) == f"one [tag] [výraz] two  {TEXTS[2]}".encode()


def test_any_tokens_in_a_row_give_the_same_wherever_the_text_is_valid() -> None:
    tokenizer = byte_level()
    detokenize, rng = build_detokenizer(tokenizer), random.Random(1)
    special = {tokenizer.token_to_id(name) for name in (*SPECIAL, "<|pad|>")}
    for _ in range(100):
        ids = [rng.randrange(tokenizer.get_vocab_size()) for _ in range(30)]
        plain = [number for number in ids if number not in special]
        found = detokenize(np.array(plain, np.int32))
        assert found.decode(errors="replace").encode() == decoded(tokenizer, plain)
        ends = [plain[0], *ids, plain[0]]  # special tokens at the ends are nothing
        by_token = [b" " if number in special else detokenize(np.array([number])) for number in ends]
        assert detokenize(np.array(ends, np.int32)) == b"".join(by_token)
        assert detokenize(np.array([number for number in ids if number in special], np.int32)) == b""


def test_another_decoder_or_none_is_asked_itself() -> None:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "wren": 1, "##s": 2, "sing": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(["[SEP]"])
    plain = Tokenizer(models.WordLevel({"[UNK]": 0, "wrens": 1, "sing": 2}, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    for one in (tokenizer, plain):
        ids = one.encode("wrens sing").ids
        assert build_detokenizer(one)(np.array(ids)) == b"wrens sing" == decoded(one, ids)
    ids = tokenizer.encode("wrens sing").ids
    assert build_detokenizer(tokenizer)(np.array([4, *ids, 4, *ids, 4])) == b"wrens sing wrens sing"
