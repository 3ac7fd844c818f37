import json
import random
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers

from phasewise.tasks.data import tokenizer_training as module
from phasewise.tasks.data.plan import DataPlan, plan_data
from phasewise.tasks.data.prepare import make_missing_tokenizer
from phasewise.tasks.data.tokenizer import check_tokenizer
from phasewise.tasks.data.tokenizer_training import MIN_VOCAB_SIZE, SPLITS, Fit, ScriptFit, SplitName, measure, train, truncate
from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.trainer.base.identity import digest_of_bytes
from tests.tasks.conftest import World, write_prose

FOLDER_VOCAB_SIZE = 320
TEXTS = {
    "numbers": [" ".join(str(7919 * number % 1_000_003) for number in range(400))],
    "prose": [write_prose(number, 20) for number in range(8)] + ["日本語日本語 한국어한국어 Grüße 🌳"] * 5,
}
VOCAB_SIZE = 600


def write(folder: Path, seed: int = 0) -> Path:
    content = train({"prose": [write_prose(seed, 40)]}, FOLDER_VOCAB_SIZE, split="trinity").content
    read = {
        "component": "prose", "documents_key": "d", "cache_digest": "c", "phase": "first", "verdict_digest": "v", "documents": 1,
        "text_bytes": 9, "is_whole": True,
    }  # fmt: skip
    manifest = {
        "tokenizer_digest": digest_of_bytes(content.encode()), "vocab_size": FOLDER_VOCAB_SIZE, "split": "trinity", "recipe": "r",
        "max_bytes_per_component": 9, "scale": "proxy", "trained_on": (read,), "trained_by": module.TRAINED_BY,
    }  # fmt: skip
    module.write_folder(folder, content, module.TokenizerManifest.model_validate(manifest))
    return folder


def plan_of(world: World, name: str) -> DataPlan:
    return plan_data({"web": world.source("web")}, world.home, vocab_size=FOLDER_VOCAB_SIZE, tokenizer_name=name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "mine")


def test_data_are_prepared_with_it_and_its_content_decides_the_caches_and_its_place_does_not(world: World, folder: Path, tmp_path: Path):
    plan = plan_of(world, str(folder))
    assert make_missing_tokenizer(plan, FOLDER_VOCAB_SIZE, str(folder))
    assert plan.tokenizer.read_bytes() == (folder / "tokenizer.json").read_bytes()
    check_tokenizer(plan.tokenizer)
    assert not make_missing_tokenizer(plan, FOLDER_VOCAB_SIZE, str(folder))

    def key(name: object) -> str:
        return plan_of(world, str(name)).components["web"].train.key

    assert key(folder) == key(shutil.copytree(folder, tmp_path / "copy"))
    assert len({key(folder), key(write(tmp_path / "other", seed=1)), key("somebody/mine")}) == 3


def test_one_that_was_changed_and_what_is_no_tokenizer_are_refused_before_anything_is_prepared(world: World, folder: Path, tmp_path: Path):
    plan = plan_of(world, str(folder))
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace("<|begin_of_text|>", "<|begin|>"))
    with pytest.raises(DataError, match=r"was changed after it was written\. Delete .* and train it again"):
        plan_of(world, str(folder))
    with pytest.raises(DataError, match="was changed after it was written"):
        make_missing_tokenizer(plan, FOLDER_VOCAB_SIZE, str(folder))
    assert not plan.tokenizer.exists()
    with pytest.raises(ConfigError, match=f"found none at {tmp_path}"):
        plan_of(world, str(tmp_path))
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {}}))
    with pytest.raises(DataError, match="does not read as a tokenizer"):
        plan_of(world, str(tmp_path))


def cut(text: str, name: SplitName = "trinity") -> list[str]:
    return [text[start:stop] for _, (start, stop) in module.build_pre_tokenizer(name).pre_tokenize_str(text)]


@given(digits=st.text("0123456789", min_size=1, max_size=module.MAX_DIGITS))
def test_digits_are_cut_as_the_report_s_look_ahead_cuts_them(digits: str):
    assert cut(digits) == re.sub(r"(?<=\d)(?=(\d{3})+(?!\d))", "|", digits).split("|")


@pytest.mark.timeout(300)  # a guard against hanging: a cut that looks ahead to the end of the run at each digit takes days
def test_millions_of_digits_come_to_an_end():
    digits = "".join(random.Random(0).choices("0123456789", k=3_000_000))
    tokenizer = Tokenizer(models.BPE(vocab={digit: int(digit) for digit in "0123456789"}, merges=[]))
    tokenizer.pre_tokenizer = module.build_pre_tokenizer("trinity")
    (found,) = tokenizer.encode_batch_fast([digits])
    assert len(found.ids) == len(digits)


@given(text=st.text(), name=st.sampled_from(SPLITS))
def test_nothing_is_lost_between_the_cuts(text: str, name: SplitName):
    assert "".join(cut(text, name)) == text


def content(split: SplitName = "trinity", vocab_size: int = VOCAB_SIZE) -> str:
    return train(TEXTS, vocab_size, split=split).content


@pytest.fixture(scope="module", params=SPLITS)
def trained(request: pytest.FixtureRequest) -> tuple[SplitName, str]:
    return request.param, content(request.param)


@pytest.mark.parametrize("vocab_size", [MIN_VOCAB_SIZE, MIN_VOCAB_SIZE + 1, 400, VOCAB_SIZE - 1, VOCAB_SIZE])
def test_a_cut_one_is_the_one_that_training_gives(trained: tuple[SplitName, str], vocab_size: int):
    split, larger = trained
    assert truncate(larger, vocab_size) == content(split, vocab_size)


def test_two_merges_may_make_one_entry():
    written = json.loads(content(vocab_size=MIN_VOCAB_SIZE))
    merges = [["a", "b"], ["b", "c"], ["a", "bc"], ["ab", "c"], ["c", "d"]]
    for number, token in enumerate(("ab", "bc", "abc", "cd")):
        written["model"]["vocab"][token] = MIN_VOCAB_SIZE + number
    larger = json.dumps({**written, "model": {**written["model"], "merges": merges}})
    for entries, kept in ((2, 2), (3, 3), (4, 5)):
        model = json.loads(truncate(larger, MIN_VOCAB_SIZE + entries))["model"]
        assert (model["merges"], len(model["vocab"])) == (merges[:kept], MIN_VOCAB_SIZE + entries)


def test_special_tokens_of_a_template_have_entries_and_nothing_is_learnt_from_them():
    more = ("<|eot_id|>", "<|start_header_id|>")
    texts = {"chat": ["<|start_header_id|>" * 50 + " river mountain river mountain" * 20]}
    larger = train(texts, 272, split="llama3", special_tokens=more).content
    tokenizer = Tokenizer.from_str(larger)
    assert [tokenizer.id_to_token(number) for number in range(4)] == ["<|begin_of_text|>", "<|end_of_text|>", *more]
    assert tokenizer.encode("<|eot_id|>", add_special_tokens=False).ids == [2]
    assert not [token for token in tokenizer.get_vocab() if "head" in token and token not in more]
    assert truncate(larger, 266, more) == train(texts, 266, split="llama3", special_tokens=more).content
    with pytest.raises(ConfigError, match="at least 260, for 256 bytes and 4 special tokens"):
        truncate(larger, 259, more)
    with pytest.raises(DataError, match="its entries must be 2 special tokens"):
        truncate(larger, 266)


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="at least 258"):
        train(TEXTS, 257, split="trinity")
    with pytest.raises(DataError, match="must give 300 entries, found 259 in 2 bytes"):
        train({"a": ["ab"]}, 300, split="trinity")
    larger = content()
    for vocab_size, said in ((257, "at least 258"), (VOCAB_SIZE + 1, f"at most the {VOCAB_SIZE} entries")):
        with pytest.raises(ConfigError, match=said):
            truncate(larger, vocab_size)
    other = json.loads(larger)
    other["model"]["merges"][0], other["model"]["merges"][1] = other["model"]["merges"][1], other["model"]["merges"][0]
    for changed in (other, {"model": {"type": "WordLevel", "vocab": {"a": 0}}}, {}):
        with pytest.raises(DataError, match="cut by the rank of its merges"):
            truncate(json.dumps(changed), 300)


def by_bytes(*merged: str, split: SplitName = "trinity") -> Tokenizer:
    """Every byte is a token, but for the pieces that are merged."""
    texts = [piece for piece in merged for _ in range(50)]
    size = MIN_VOCAB_SIZE + sum(len(piece.encode()) - 1 for piece in merged)
    return Tokenizer.from_str(train({"a": texts}, size, split=split).content)


BYTES = by_bytes()


def test_a_small_text_by_hand_and_one_that_does_not_come_back_is_counted():
    found = measure(by_bytes(" cat"), {"a": ["a cat", " cat é"], "b": ["日本 12\n"]})
    assert found.subsets == {"a": Fit(2, 12, 11, 4, 6, 0, 2.0, 11 / 6, 1.5), "b": Fit(1, 10, 6, 2, 10, 0, 1.0, 0.6, 5.0)}
    assert (found.subsets["a"].bytes_per_token, found.subsets["a"].fertility, found.subsets["b"].characters_per_token) == (2.0, 1.5, 0.6)
    latin = ScriptFit(1 + 4 + 4 + 2, 1 + 1 + 1 + 2, 11 / 5)
    assert found.scripts == {
        "latin": latin, "white space": ScriptFit(3, 3, 1.0), "cjk": ScriptFit(6, 6, 1.0), "digits": ScriptFit(2, 2, 1.0),
    }  # fmt: skip
    lossy = Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    lossy.normalizer = normalizers.Lowercase()
    lossy.decoder = decoders.ByteLevel()
    assert measure(lossy, {"a": ["ab", "aB", "ba"]}).subsets["a"].not_back == 1


@given(texts=st.lists(st.text(min_size=1), min_size=1, max_size=4))
def test_scripts_add_up_to_the_whole(texts: list[str]):
    found = measure(BYTES, {"a": texts})
    whole = found.subsets["a"]
    assert whole.not_back == 0
    assert sum(fit.tokens for fit in found.scripts.values()) == whole.tokens == whole.text_bytes
    assert sum(fit.text_bytes for fit in found.scripts.values()) == whole.text_bytes


def test_scripts_and_white_space_beside_what_it_is_between():
    scripts = {
        "aé": "latin", "ж": "cyrillic", "日": "cjk", "한": "hangul", "ไ": "thai", "7½": "digits", "\n\u00a0": "white space",
        "+🌳": "punctuation and symbols",
    }  # fmt: skip
    assert all(module.script_of(character) == script for characters, script in scripts.items() for character in characters)
    assert list(module.white_space_tokens(BYTES).values()) == [1, 2, 4, 8, 16, 2, 4, 2, 2]
    found = module.white_space_tokens(by_bytes(" y"))
    assert (found["1 space"], found["2 spaces"], found["two tabs"]) == (0, 1, 2)


@pytest.mark.parametrize("split", ["trinity", "llama3", "gpt2"])
def test_how_digits_are_cut_is_found_by_asking(split: SplitName):
    numbers = " ".join(str(7919 * number % 1_000_003) for number in range(5000))
    found = {"trinity": "threes from the right", "llama3": "threes from the left", "gpt2": "no rule"}
    assert module.digit_groups(Tokenizer.from_str(train({"a": [numbers]}, 1200, split=split).content)) == found[split]
