import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from phasewise.tasks.data import tokenizer as module
from phasewise.tasks.data.tokenizer import BEGIN_OF_TEXT, END_OF_TEXT, SpecialTokens, load_tokenizer, shared_special_tokens, tokenizer_key
from phasewise.trainer.base.errors import DataError

TRAIN = {
    "code": ["def lighthouse(river): return river + river", "import lighthouse"] * 4,
    "web": ["The river runs past the lighthouse.", "Grüße vom Leuchtturm 🌳"] * 4,
}


def test_special_tokens_must_be_there_within_the_vocabulary_and_with_the_same_ids_everywhere(tmp_path: Path):
    for special, said in (
        ((), "must have the tokens"), ((BEGIN_OF_TEXT,), "must have the tokens"), ((END_OF_TEXT, "<s>"), "must have the tokens"),
        ((BEGIN_OF_TEXT, END_OF_TEXT), r"ids below the recipe's tokenizer.vocab_size of 9, found 9 \(<\|end_of_text\|>\)"),
    ):  # fmt: skip
        tokenizer = Tokenizer(models.BPE({letter: id for id, letter in enumerate("abcdefgh")}, []))
        tokenizer.add_special_tokens(list(special))
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        with pytest.raises(DataError, match=said):
            module.check_special_tokens(tmp_path / "tokenizer.json", vocab_size=9)
    ours, llama = SpecialTokens(0, 1), SpecialTokens(128_000, 128_001)
    assert shared_special_tokens({"law": llama, "web": llama}) == llama
    with pytest.raises(DataError, match="found the ids 0 and 1 in law, 128000 and 128001 in web"):
        shared_special_tokens({"law": ours, "web": llama})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    module.train_tokenizer(TRAIN.values(), 300, path)
    return load_tokenizer(path)


def test_what_a_file_says_of_cutting_and_filling_up_is_not_taken_from_it(trained: Tokenizer, tmp_path: Path):
    texts = ["a river", "a river runs past the lighthouse"]
    other = Tokenizer.from_str(trained.to_str())
    other.enable_truncation(2)
    other.enable_padding(length=40)
    (tmp_path / "tokenizer.json").write_text(other.to_str())
    read = load_tokenizer(tmp_path / "tokenizer.json")
    assert [one.ids for one in read.encode_batch(texts)] == [one.ids for one in trained.encode_batch(texts)]
    assert {len(one.ids) for one in other.encode_batch(texts)} == {40}


def test_a_tokenizer_with_dropout_broken_or_with_a_pattern_without_end_is_refused_by_name(trained: Tokenizer, tmp_path: Path):
    path = tmp_path / "tokenizer.json"
    written = json.loads(trained.to_str())
    with_dropout = {**written, "model": {**written["model"], "dropout": 0.5}}
    for content, said in ((with_dropout, r"the same tokens each time, found a dropout of 0\.5"), ({}, r"tokenizer\.json cannot be used")):
        path.write_text(json.dumps(content))
        with pytest.raises(DataError, match=said):
            load_tokenizer(path)
    written["pre_tokenizer"] = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    path.write_text(json.dumps(written))
    tokenizer = load_tokenizer(path)
    with pytest.raises(DataError, match=r"tokenizer\.json cannot be used: .*retry"), module.refused(path):
        tokenizer.encode("a" * 40 + "!")


@given(before=st.text(), after=st.text(max_size=5), name=st.sampled_from(["", BEGIN_OF_TEXT, END_OF_TEXT]))
def test_every_text_comes_back_and_one_that_names_a_special_token_is_text(trained: Tokenizer, before: str, after: str, name: str):
    ids = trained.encode(f"{before}{name}{after}", add_special_tokens=False).ids
    assert all(id >= 2 for id in ids)
    assert trained.decode(ids, skip_special_tokens=True) == f"{before}{name}{after}"


def test_its_key_names_what_decides_it_and_a_name_that_cannot_be_fetched_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    key = tokenizer_key(["a", "b"], 300, None)
    assert tokenizer_key(["b", "a"], 300, None) == key
    others = [tokenizer_key(documents, size, None) for documents, size in ((["a"], 300), (["a", "c"], 300), (["a", "b"], 301))]
    assert len({key, *others}) == 4
    for name, value in (("TOKENIZER_VERSION", "another"), ("MAX_BYTES_PER_COMPONENT", 1)):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            assert tokenizer_key(["a", "b"], 300, None) != key, name

    class Unreachable:
        @staticmethod
        def from_pretrained(_name: str, _revision: str):
            raise Exception("no route to the hub")  # as the library does

    monkeypatch.setitem(sys.modules, "tokenizers", SimpleNamespace(Tokenizer=Unreachable))
    with pytest.raises(DataError, match="the tokenizer somebody/tokenizer cannot be fetched from the hub: no route to the hub"):
        module.fetch_tokenizer("somebody/tokenizer")
