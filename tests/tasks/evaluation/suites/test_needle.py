"""MK-NIAH through lm-eval: scored by retrieval, at any length that the model reads, and a hole where the needle would be cut off."""

import re
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from phasewise.tasks.data.tokenizer import special_tokens
from phasewise.tasks.evaluation.language_model import JaxLanguageModel
from phasewise.tasks.evaluation.needles import Haystack, Needles, lengths_of, needle_suite, words_of_folder
from phasewise.tasks.evaluation.suite import Measured, Options, run_suite
from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.trainer.config import ModelConfig
from phasewise.trainer.model.params import Params
from tests.tasks.evaluation.suites.conftest import Scripted

WORDS = [f"ba{'ce' * (number % 7)}" for number in range(2_000)]
FEW = Needles(length=300, items_per_depth=1, depths=(0.0, 0.5, 1.0))


def run(model: Any, tmp_path: Path, *lengths: int, haystack: Haystack | None = lambda: WORDS) -> Measured:
    how = Options(None, haystack=haystack, needles=FEW)
    return run_suite(needle_suite(lengths, model.max_length), model, how, place=tmp_path / "model", weights="last", about={})


def reader(scripted: Scripted, tokenizer: Tokenizer, **answers: Any) -> Any:
    """A scripted model that counts tokens as ours does."""
    model = scripted(**answers)
    setattr(model, "tok_encode", lambda text: [0, *tokenizer.encode(text, add_special_tokens=False).ids])  # noqa: B010
    return model


def value_of(prompt: str) -> str:
    """What a model that finds the needle says."""
    key = prompt.rpartition("of the ")[2].removesuffix(" is")
    found = re.search(rf"number of the {key} is (\d+)\.", prompt)
    assert found
    return found[1]


def test_who_finds_the_needle_has_all_points(scripted: Scripted, tokenizer: Tokenizer, tmp_path: Path):
    found = reader(
        scripted,
        tokenizer,
        score=lambda prompt, text: -float(text.strip() != value_of(prompt)),
        say=lambda prompt: f" {value_of(prompt)}. And",
    )
    rows = run(found, tmp_path, 300, 600).results
    assert [row["benchmark"] for row in rows] == ["niah:300", "niah_written:300", "niah:600", "niah_written:600"]
    assert [row["value"] for row in rows] == [1.0] * 4
    assert {row["items"] for row in rows} == {3}
    assert [row["cut"] for row in rows] == [{"contexts": 0, "of": row["cut"]["of"]} for row in rows if row["cut"]]


def test_who_writes_another_value_or_more_has_none(scripted: Scripted, tokenizer: Tokenizer, tmp_path: Path):
    for say in ("", " 111111", " the 123456"):
        model = reader(scripted, tokenizer, say=lambda prompt, said=say: said)
        rows = {row["benchmark"]: row for row in run(model, tmp_path / (say.strip() or "nothing"), 300).results}
        assert rows["niah_written:300"]["value"] == 0.0
        assert (rows["niah:300"]["baseline"] or 0.0) >= 0.25


def test_a_length_that_the_model_does_not_read_is_a_hole(scripted: Scripted, tokenizer: Tokenizer, tmp_path: Path):
    model = reader(scripted, tokenizer)
    rows = run(model, tmp_path, 300, 5_000).results
    assert [row["hole"] is None for row in rows] == [True, True, False, False]
    assert "5,000 tokens, and the model reads 4,096: the needle would be cut off" in (rows[2]["hole"] or "")
    assert all(len(tokenizer.encode(asked[0]).ids) < 300 for asked in model.asked)


def test_no_text_to_hide_it_in_is_a_hole(scripted: Scripted, tokenizer: Tokenizer, tmp_path: Path):
    assert "no text to hide needles in" in (run(reader(scripted, tokenizer), tmp_path, 300, haystack=None).results[0]["hole"] or "")


def test_too_short_a_length_is_a_hole(scripted: Scripted, tokenizer: Tokenizer, tmp_path: Path):
    assert "have no room for 4 needles" in (run(reader(scripted, tokenizer), tmp_path, 64).results[0]["hole"] or "")


def test_what_holds_is_read_and_another_text_is_measured_again(scripted: Scripted, tokenizer: Tokenizer, tmp_path: Path):
    model = reader(scripted, tokenizer)
    assert run(model, tmp_path, 300).read == ()
    assert run(model, tmp_path, 300).read == ("niah:300", "niah_written:300")
    assert run(model, tmp_path, 300, haystack=lambda: WORDS[1:]).read == ()


@pytest.mark.parametrize(("name", "lengths"), [("niah", ()), ("niah:8192", (8_192,)), ("niah:128,256", (128, 256))])
def test_lengths_are_named_behind_a_colon(name: str, lengths: tuple[int, ...]):
    assert lengths_of(name) == lengths


@pytest.mark.parametrize("name", ["niah:", "niah:8k", "niah:10", "niah:128,128", "niah:-128"])
def test_what_is_no_length_is_refused(name: str):
    with pytest.raises(ConfigError, match="must have lengths in tokens, each once and 64 or more"):
        lengths_of(name)


def test_without_a_length_it_is_parts_of_what_the_model_reads():
    assert [one.label for one in needle_suite((), 4_096).asked][::2] == ["niah:1024", "niah:2048", "niah:4096"]
    assert [one.label for one in needle_suite((), 100).asked][::2] == ["niah:64", "niah:100"]


def test_words_of_a_folder(tmp_path: Path):
    with pytest.raises(DataError, match="put one that the model never saw into niah"):
        words_of_folder(tmp_path)
    (tmp_path / "niah").mkdir()
    (tmp_path / "niah" / "b.txt").write_text("three four")
    (tmp_path / "niah" / "a.txt").write_text("one\ntwo")
    assert words_of_folder(tmp_path) == ["one", "two", "three", "four"]


def test_a_model_of_ours_reads_more_than_it_was_trained_on_where_it_is_told_to(
    params: Params, config: ModelConfig, tokenizer: Tokenizer, tmp_path: Path
):
    model = JaxLanguageModel(params=params, config=config, tokenizer=tokenizer, special=special_tokens(tokenizer))
    assert "the model reads 48" in (run(model, tmp_path, 300).results[0]["hole"] or "")
    with pytest.raises(ConfigError, match="must be more than the 48 tokens"):
        model.read_up_to(48)
    model.read_up_to(320)
    choice, written = run(model, tmp_path, 300).results
    assert (choice["hole"], written["hole"], choice["items"]) == (None, None, 3)
    assert choice["cut"] == {"contexts": 0, "of": 12}
    assert written["cut"] == {"contexts": 0, "of": 3}
    assert "it reads 320 tokens, and was trained on rows of 48" in choice["remarks"]
