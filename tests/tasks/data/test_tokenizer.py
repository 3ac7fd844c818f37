"""The byte-level tokenizer: the same for the same training split, and every text comes back."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from phasewise.tasks.data import tokenizer as module
from phasewise.tasks.data.tokenizer import (
    BEGIN_OF_TEXT,
    END_OF_TEXT,
    SpecialTokens,
    check_special_tokens,
    fetch_tokenizer,
    load_tokenizer,
    refused,
    shared_special_tokens,
    tokenizer_key,
    train_tokenizer,
)
from phasewise.trainer.base.errors import DataError


def written(folder: Path, *special: str, first: int = 0) -> Path:
    """A tokenizer of a few letters with these tokens, numbered from the letters on."""
    tokenizer = Tokenizer(models.BPE({letter: id for id, letter in enumerate("abcdefgh"[: 8 - first])}, []))
    tokenizer.add_special_tokens(list(special))
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path


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


TRAIN = {
    "code": ["def lighthouse(river): return river + river", "import lighthouse"] * 4,
    "web": ["The river runs past the lighthouse.", "Grüße vom Leuchtturm 🌳"] * 4,
}


def train(root: Path, vocab_size: int = 300) -> Path:
    train_tokenizer(TRAIN.values(), vocab_size, root / "tokenizer.json")
    return root / "tokenizer.json"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(train(tmp_path_factory.mktemp("tokenizer")))


def test_what_a_file_says_of_cutting_and_filling_up_is_not_taken_from_it(trained: Tokenizer, tmp_path: Path):
    """A tokenizer of the hub may be saved so: then documents would end early, and their tokens depend on those beside them."""
    texts = ["a river", "a river runs past the lighthouse"]
    other = Tokenizer.from_str(trained.to_str())
    other.enable_truncation(2)
    other.enable_padding(length=40)
    (tmp_path / "tokenizer.json").write_text(other.to_str())
    read = load_tokenizer(tmp_path / "tokenizer.json")
    assert [one.ids for one in read.encode_batch(texts)] == [one.ids for one in trained.encode_batch(texts)]
    assert {len(one.ids) for one in other.encode_batch(texts)} == {40}


def test_a_tokenizer_with_chance_in_it_is_refused(trained: Tokenizer, tmp_path: Path):
    written = json.loads(trained.to_str())
    written["model"]["dropout"] = 0.5
    (tmp_path / "tokenizer.json").write_text(json.dumps(written))
    with pytest.raises(DataError, match=r"must give a text the same tokens each time, found a dropout of 0\.5"):
        load_tokenizer(tmp_path / "tokenizer.json")


def test_a_file_that_is_no_tokenizer_and_a_pattern_without_end_are_refused_by_name(trained: Tokenizer, tmp_path: Path):
    """The library panics at such a pattern, which is no `Exception`."""
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    with pytest.raises(DataError, match=r"tokenizer\.json cannot be used"):
        load_tokenizer(path)
    written = json.loads(trained.to_str())
    written["pre_tokenizer"] = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    path.write_text(json.dumps(written))
    tokenizer = load_tokenizer(path)
    with pytest.raises(DataError, match=r"tokenizer\.json cannot be used: .*retry"), refused(path):
        tokenizer.encode("a" * 40 + "!")


@given(text=st.text())
def test_every_text_comes_back(trained: Tokenizer, text: str):
    ids = trained.encode(text, add_special_tokens=False).ids
    assert trained.decode(ids) == text
    assert all(id >= 2 for id in ids)


@given(before=st.text(max_size=5), after=st.text(max_size=5), name=st.sampled_from([BEGIN_OF_TEXT, END_OF_TEXT]))
def test_text_that_names_a_special_token_is_text(trained: Tokenizer, before: str, after: str, name: str):
    """Else a document could end itself, and what comes after would be missing where it is looked for."""
    ids = trained.encode(f"{before}{name}{after}", add_special_tokens=False).ids
    assert all(id >= 2 for id in ids)
    assert trained.decode(ids, skip_special_tokens=True) == f"{before}{name}{after}"


def test_its_key_names_what_decides_it(monkeypatch: pytest.MonkeyPatch):
    key = tokenizer_key(["a", "b"], 300, None)
    assert tokenizer_key(["b", "a"], 300, None) == key
    others = [tokenizer_key(documents, size, None) for documents, size in ((["a"], 300), (["a", "c"], 300), (["a", "b"], 301))]
    assert len({key, *others}) == 4
    for name, value in (("TOKENIZER_VERSION", "another"), ("MAX_BYTES_PER_COMPONENT", 1)):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            assert tokenizer_key(["a", "b"], 300, None) != key, name


def test_a_name_that_cannot_be_fetched_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Unreachable:
        @staticmethod
        def from_pretrained(_name: str):
            raise Exception("no route to the hub")  # as the library does

    monkeypatch.setitem(sys.modules, "tokenizers", SimpleNamespace(Tokenizer=Unreachable))
    with pytest.raises(DataError, match="the tokenizer somebody/tokenizer cannot be fetched from the hub: no route to the hub"):
        fetch_tokenizer("somebody/tokenizer", tmp_path / "tokenizer.json")
    assert not (tmp_path / "tokenizer.json").exists()
