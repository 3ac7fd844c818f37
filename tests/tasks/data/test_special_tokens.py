"""What a tokenizer must have is asked before anything is tokenized."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from phasewise.tasks.data.special_tokens import SpecialTokens, check_special_tokens, shared_special_tokens, special_tokens
from phasewise.tasks.data.tokenizer import BEGIN_OF_TEXT, END_OF_TEXT
from phasewise.trainer.base.errors import DataError


def written(folder: Path, *special: str, first: int = 0) -> Path:
    """A tokenizer of a few letters with these tokens, numbered from the letters on."""
    tokenizer = Tokenizer(models.BPE({letter: id for id, letter in enumerate("abcdefgh"[: 8 - first])}, []))
    tokenizer.add_special_tokens(list(special))
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def test_the_ids_are_the_tokenizers_own(tmp_path: Path) -> None:
    path = written(tmp_path, END_OF_TEXT, BEGIN_OF_TEXT)
    check_special_tokens(path, vocab_size=10)
    assert special_tokens(Tokenizer.from_file(str(path))) == SpecialTokens(begin=9, end=8)


@pytest.mark.parametrize("special", [(), (BEGIN_OF_TEXT,), (END_OF_TEXT, "<s>")])
def test_a_tokenizer_without_one_of_them_is_refused(tmp_path: Path, special: tuple[str, ...]) -> None:
    with pytest.raises(DataError, match="must have the tokens"):
        check_special_tokens(written(tmp_path, *special), vocab_size=100)


def test_an_id_beyond_the_vocabulary_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, BEGIN_OF_TEXT, END_OF_TEXT)
    with pytest.raises(DataError, match=r"ids below the recipe's tokenizer.vocab_size of 9, found 9 \(<\|end_of_text\|>\)"):
        check_special_tokens(path, vocab_size=9)


def test_all_must_have_the_same_ids() -> None:
    ours = SpecialTokens(0, 1)
    llama = SpecialTokens(128_000, 128_001)
    assert shared_special_tokens({"law": llama, "web": llama}) == llama
    with pytest.raises(DataError, match="found the ids 0 and 1 in law, 128000 and 128001 in web"):
        shared_special_tokens({"law": ours, "web": llama})
